//! Instructions of a whole warp: the lanes meet, the last one does the work for all.

use super::finding::FindingKind;
use super::handle::Handle;
use super::state::{Thread, Wait, current};

/// Words that a lane brings to or takes from a meeting.
pub(crate) const WORDS: usize = 12;
pub(crate) type Lanes = [[u32; WORDS]; 32];

/// Where the lanes of a warp meet.
#[derive(Default)]
pub(crate) struct Rendezvous {
    arrived: u32,
    /// The instruction that they meet at.
    what: &'static str,
    /// Which of the two buffers the meeting uses: nobody can be two meetings ahead.
    turn: usize,
    buffers: [Lanes; 2],
}

/// Brings `words`, waits for the other lanes, lets the last one run `work` on what all brought, and gives this
/// lane's words after it.
pub(crate) fn meet(
    mut thread: Handle<Thread>,
    what: &'static str,
    words: &[u32],
    work: impl FnOnce(&mut Lanes, Handle<Thread>),
) -> [u32; WORDS] {
    let mut warp = thread.warp;
    let lanes = warp.lanes;
    let lane = thread.lane as usize;
    let meeting = &mut warp.meeting;
    if meeting.arrived == 0 {
        meeting.what = what;
    } else if !std::ptr::eq(meeting.what, what) && meeting.what != what {
        let text = format!("lane {lane} is at {what} while other lanes wait at {}", meeting.what);
        thread.report((FindingKind::BarrierDivergence, text));
    }
    let meeting = &mut warp.meeting;
    let turn = meeting.turn;
    meeting.buffers[turn][lane][..words.len()].copy_from_slice(words);
    meeting.arrived += 1;
    if meeting.arrived < lanes {
        thread.block_on(Wait::Lanes(what));
    } else {
        meeting.arrived = 0;
        meeting.turn ^= 1;
        work(&mut meeting.buffers[turn], thread);
        let all = ((1u64 << lanes) - 1) as u32;
        thread.wake_lanes(all & !(1 << lane));
    }
    warp.meeting.buffers[turn][lane]
}

/// `shfl.sync.bfly`.
pub(crate) fn shuffle_xor(value: u32, mask: u32) -> u32 {
    shuffle("shfl.sync.bfly", value, |lane| lane ^ mask)
}

/// `shfl.sync.idx`.
pub(crate) fn shuffle_idx(value: u32, from: u32) -> u32 {
    shuffle("shfl.sync.idx", value, |_| from)
}

fn shuffle(what: &'static str, value: u32, source: impl FnOnce(u32) -> u32) -> u32 {
    let thread = current();
    let warp = thread.warp;
    let turn = warp.meeting.turn;
    meet(thread, what, &[value], |_, _| {});
    warp.meeting.buffers[turn][(source(thread.lane) & 31) as usize][0]
}

/// `vote.sync.ballot`.
pub(crate) fn ballot(predicate: bool) -> u32 {
    let thread = current();
    let lanes = thread.warp.lanes as usize;
    let vote = |words: &mut Lanes, _: Handle<Thread>| {
        let all = (0..lanes).fold(0, |all, lane| all | (words[lane][0] & 1) << lane);
        words.iter_mut().for_each(|lane| lane[0] = all);
    };
    meet(thread, "vote.sync", &[u32::from(predicate)], vote)[0]
}

/// `bar.warp.sync`.
pub(crate) fn sync_warp() {
    let mut thread = current();
    meet(thread, "bar.warp.sync", &[], |_, mut thread| {
        let warp = thread.warp;
        let lanes = warp.first..warp.first + warp.lanes as usize;
        let mut all = thread.clock.clone();
        thread.cluster.threads[lanes.clone()].iter().for_each(|lane| all.join(&lane.clock));
        thread.cluster.threads[lanes].iter_mut().for_each(|lane| lane.clock.copy_from(&all));
    });
    thread.tick();
}
