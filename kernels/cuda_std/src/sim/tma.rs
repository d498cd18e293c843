//! The tensor memory accelerator: boxes between global and shared memory.
//!
//! Tensor maps are opaque to kernels. On the simulated device they hold [`encode_tensor_map`]'s own encoding.

use super::finding::FindingKind;
use super::handle::Handle;
use super::mbarrier;
use super::memory::Fault;
use super::state::{Block, Cluster, Pending, Thread, current};
use super::wgmma::swizzle;

/// Marks a map as one of ours.
const MAGIC: u64 = 0x5349_4d54_4d41_5031;
const MAX_RANK: usize = 5;

/// How a box lies in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swizzle {
    /// Row after row.
    None,
    /// The 16-byte pieces of every 128-byte row are permuted by the row's number modulo 8.
    Bytes128,
}

/// A tensor map for the simulated device: what `cuTensorMapEncodeTiled` makes for a GPU. `dims` and `boxes` count
/// elements, innermost first; `strides` count bytes, from the second dimension on. What lies outside reads as zero.
///
/// Panics where the driver would refuse the map.
pub fn encode_tensor_map(
    base: u64,
    dims: &[u64],
    strides: &[u64],
    boxes: &[u32],
    element_bytes: u32,
    swizzle: Swizzle,
) -> [u64; 16] {
    let rank = dims.len();
    assert!(
        (1..=MAX_RANK).contains(&rank) && strides.len() + 1 == rank && boxes.len() == rank,
        "rank {rank}"
    );
    assert!(base.is_multiple_of(16), "the tensor's address {base:#x} is not a multiple of 16");
    assert!(dims.iter().all(|&d| (1..=1 << 32).contains(&d)), "dimensions {dims:?}");
    assert!(strides.iter().all(|s| s.is_multiple_of(16) && *s < 1 << 40), "strides {strides:?}");
    assert!(boxes.iter().all(|&b| (1..=256).contains(&b)), "box {boxes:?}");
    let row = boxes[0] * element_bytes;
    assert!(row.is_multiple_of(16), "a box row of {row} bytes");
    assert!(swizzle == Swizzle::None || row <= 128, "a box row of {row} bytes with the 128-byte swizzle");
    let mut map = [0; 16];
    map[0] = MAGIC;
    map[1] = base;
    map[2] = rank as u64 | u64::from(element_bytes) << 8 | u64::from(swizzle == Swizzle::Bytes128) << 16;
    for i in 0..rank {
        map[3] |= u64::from(boxes[i] - 1) << (8 * i);
        map[4 + i] = dims[i];
        map[9 + i] = if i == 0 { u64::from(element_bytes) } else { strides[i - 1] };
    }
    map
}

/// A map taken apart.
struct Map {
    base: u64,
    rank: usize,
    element_bytes: usize,
    swizzled: bool,
    dims: [u64; MAX_RANK],
    strides: [u64; MAX_RANK],
    boxes: [usize; MAX_RANK],
}

impl Map {
    fn read(address: u64) -> Result<Self, Fault> {
        if address == 0 || !address.is_multiple_of(8) {
            return Err((FindingKind::Misuse, format!("no tensor map at {address:#x}")));
        }
        // SAFETY: the kernel's parameter, which lives on the host for the whole launch; the address comes from
        // `ParamAddress` and the offset of a field of 128 bytes.
        let words = unsafe { (address as *const [u64; 16]).read() };
        if words[0] != MAGIC {
            return Err((
                FindingKind::Misuse,
                "a tensor map that was not made for the simulated device".into(),
            ));
        }
        let mut map = Map {
            base: words[1],
            rank: (words[2] & 0xff) as usize,
            element_bytes: (words[2] >> 8 & 0xff) as usize,
            swizzled: words[2] >> 16 & 1 == 1,
            dims: [1; MAX_RANK],
            strides: [0; MAX_RANK],
            boxes: [1; MAX_RANK],
        };
        for i in 0..map.rank {
            map.boxes[i] = (words[3] >> (8 * i) & 0xff) as usize + 1;
            map.dims[i] = words[4 + i];
            map.strides[i] = words[9 + i];
        }
        Ok(map)
    }

    fn row_bytes(&self) -> usize {
        self.boxes[0] * self.element_bytes
    }

    fn bytes(&self) -> usize {
        self.boxes.iter().product::<usize>() * self.element_bytes
    }
}

/// `cp.async.bulk.tensor` from global to shared memory, in the blocks of the cluster whose bit is set in `blocks`.
pub(crate) fn load(map: u64, to: u32, coordinates: &[i32], barrier: u32, blocks: Option<u16>) {
    let mut thread = current();
    if let Err(fault) = start_load(&mut thread, map, to, coordinates, barrier, blocks) {
        thread.report(fault);
    }
}

fn start_load(
    thread: &mut Handle<Thread>,
    map: u64,
    to: u32,
    coordinates: &[i32],
    barrier: u32,
    blocks: Option<u16>,
) -> Result<(), Fault> {
    let map = Map::read(map)?;
    if map.rank != coordinates.len() {
        let what = format!("a copy of {} dimensions through a map of {}", coordinates.len(), map.rank);
        return Err((FindingKind::Misuse, what));
    }
    let alignment = if map.swizzled { 1024 } else { 128 };
    if !to.is_multiple_of(alignment) {
        return Err((
            FindingKind::Misaligned,
            format!("a box at shared address {to}, not a multiple of {alignment}"),
        ));
    }
    let mut cluster = thread.cluster;
    let own = thread.block.rank;
    let mask = blocks.map_or(1 << own, u32::from);
    if mask >> cluster.blocks.len() != 0 {
        return Err((FindingKind::Misuse, format!("a copy to the blocks {mask:#b} of the cluster")));
    }
    let bytes = map.bytes();
    let mut targets = Vec::new();
    for rank in (0..cluster.blocks.len()).filter(|rank| mask >> rank & 1 == 1) {
        let mut block = Handle::new(&mut cluster.blocks[rank]);
        let index = mbarrier::for_copy(&mut block, thread, barrier)?;
        let offset = block.shared.offset(to, 16)?;
        block.shared.offset(to + bytes as u32 - 16, 16)?;
        if let Err(fault) = block.shared.begin_copy(offset, bytes, thread.actor()) {
            thread.report(fault);
        }
        targets.push((block, index));
    }
    let coordinates: Vec<i64> = coordinates.iter().map(|&c| i64::from(c)).collect();
    let sender = *thread;
    let step = move |cluster| finish_load(cluster, sender, &map, to, &coordinates, &targets);
    // Copies are unordered among each other: a queue each.
    let queue = 2 << 32 | u64::from(thread.machine.rng.next());
    cluster.pending.push(Pending { queue, step: Box::new(step) });
    Ok(())
}

fn finish_load(
    cluster: Handle<Cluster>,
    mut sender: Handle<Thread>,
    map: &Map,
    to: u32,
    coordinates: &[i64],
    targets: &[(Handle<Block>, usize)],
) {
    let mut memory = sender.machine.memory;
    let mut row = vec![0u8; map.row_bytes()];
    let rows = map.boxes[1..].iter().product::<usize>();
    for number in 0..rows {
        row.fill(0);
        let (mut rest, mut address, mut inside) = (number, map.base, true);
        for (i, coordinate) in coordinates.iter().enumerate().take(map.rank).skip(1) {
            let at = coordinate + (rest % map.boxes[i]) as i64;
            rest /= map.boxes[i];
            inside &= at >= 0 && (at as u64) < map.dims[i];
            address = address.wrapping_add((at as u64).wrapping_mul(map.strides[i]));
        }
        let first = coordinates[0].max(0);
        let end = (coordinates[0] + map.boxes[0] as i64).min(map.dims[0] as i64);
        if inside && first < end {
            let size = map.element_bytes as i64;
            let from = address.wrapping_add((first * size) as u64);
            let into = ((first - coordinates[0]) * size) as usize..((end - coordinates[0]) * size) as usize;
            if let Err(fault) = memory.load_bytes(from, &mut row[into], sender.me, &sender.clock) {
                sender.report_for(fault);
            }
        }
        for &(mut block, index) in targets {
            let stamp = block.mbarriers[index].copy_stamp();
            for (piece, value) in row.chunks_exact(16).enumerate() {
                let address = to as usize + number * row.len() + 16 * piece;
                let address = if map.swizzled { swizzle(address) } else { address };
                let offset = address - super::shared::BASE as usize;
                block.shared.finish_copy(offset, value, stamp, true);
            }
        }
    }
    for &(block, index) in targets {
        mbarrier::complete_bytes(cluster, block, index, map.bytes());
    }
}
