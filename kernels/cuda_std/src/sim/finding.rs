//! What the simulated device has to say about a launch.

use std::backtrace::Backtrace;
use std::fmt;

/// The kinds of bugs that the simulated device recognises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FindingKind {
    /// An access outside the memory that was given to the kernel.
    OutOfBounds,
    /// An address that is not a multiple of what the instruction asks.
    Misaligned,
    /// A read of memory that nobody has written, or that the caller did not give (padding).
    Uninitialised,
    /// Two accesses of which one writes, with nothing that orders them.
    Race,
    /// A generic write that the asynchronous proxy reads without `fence.proxy.async` in between.
    ProxyFence,
    /// Memory touched while a copy into it is in flight.
    CopyInFlight,
    /// Registers of a product in flight read or written, or a product without its `wgmma.fence`.
    RegistersInFlight,
    /// Threads of a warp or a block that wait at different barriers, or that ended before one.
    BarrierDivergence,
    /// Nobody can go on.
    Deadlock,
    /// A write outside the valid region of the outputs.
    WriteOutsideOutput,
    /// A misused instruction: a bad descriptor, an uninitialised mbarrier, a wrong byte count.
    Misuse,
    /// The kernel panicked on the host: an arithmetic overflow, say.
    Panic,
}

/// One bug, as one thread met it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What kind.
    pub kind: FindingKind,
    /// The kernel's name, as the launch gives it.
    pub kernel: String,
    /// The block.
    pub block: u32,
    /// The thread in its block.
    pub thread: u32,
    /// Source line of the kernel, where it is known.
    pub location: Option<String>,
    /// What happened.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} in {} block {} thread {}", self.kind, self.kernel, self.block, self.thread)?;
        if let Some(location) = &self.location {
            write!(f, " at {location}")?;
        }
        write!(f, ": {}", self.what)
    }
}

/// Findings of a launch in the making. The source lines are looked up when it is over: that needs far more stack
/// than a simulated thread has.
#[derive(Default)]
pub(crate) struct Findings {
    list: Vec<(Finding, Backtrace)>,
    pub dropped: usize,
}

/// Findings kept a launch; a broken kernel repeats itself in every thread.
const KEPT: usize = 12;
/// Findings after which a launch is given up.
pub(crate) const GIVE_UP: usize = 2000;

impl Findings {
    pub(crate) fn count(&self) -> usize {
        self.list.len() + self.dropped
    }

    pub(crate) fn add(&mut self, finding: Finding) {
        let same_kind = self.list.iter().filter(|(f, _)| f.kind == finding.kind).count();
        if self.list.len() < KEPT || same_kind < 2 {
            self.list.push((finding, Backtrace::force_capture()));
        } else {
            self.dropped += 1;
        }
    }

    pub(crate) fn finish(self) -> Vec<Finding> {
        let locate = |(mut finding, trace): (Finding, Backtrace)| {
            if finding.location.is_none() {
                finding.location = kernel_line(&trace.to_string());
            }
            finding
        };
        self.list.into_iter().map(locate).collect()
    }
}

/// The innermost line that is neither the device library's nor the standard library's.
fn kernel_line(trace: &str) -> Option<String> {
    let library = file!().trim_end_matches("sim/finding.rs");
    let here = std::env::current_dir().unwrap_or_default();
    for place in trace.lines().filter_map(|line| line.trim().strip_prefix("at ")) {
        // The trace shortens paths below the current directory.
        let place = here.join(place.strip_prefix("./").unwrap_or(place)).display().to_string();
        if [library, "/rustc/", "/library/", "corosensei"].iter().any(|part| place.contains(part)) {
            continue;
        }
        // `path:line:column`, without the folders above the crate and without the column.
        let place = place.rsplit_once(':').map_or(&*place, |(place, _)| place);
        let start = ["/kernels/", "/host/"].iter().filter_map(|folder| place.rfind(folder)).min();
        return Some(place[start.map_or(0, |slash| slash + 1)..].to_string());
    }
    None
}
