use super::*;
use crate::problem::DType;
use std::collections::HashSet;

const ADDRESSES: Addresses = Addresses { q: 0x10000, k: 0x20000, v: 0x30000, o: 0x40000, lse: 0x50000 };

/// 2 x 16 rows of 2 heads of 8 f16 columns: 1 KiB a tensor.
fn problem() -> Problem {
    Problem::new(DType::F16, 2, 16, 2, 8)
}

fn message(problem: &Problem, addresses: &Addresses) -> String {
    check(problem, addresses).map_or_else(|error| error.to_string(), |()| "right".to_owned())
}

#[test]
fn addresses_are_checked() {
    let p = problem();
    assert_eq!(message(&p, &ADDRESSES), "right");
    assert_eq!(message(&p, &Addresses { lse: 0, ..ADDRESSES }), "right");
    insta::assert_snapshot!(message(&p, &Addresses { v: 0, ..ADDRESSES }), @"v is a null address, but must point to device memory; pass the tensor's address");
    insta::assert_snapshot!(message(&p, &Addresses { k: 0x20001, ..ADDRESSES }), @"k is at address 0x20001, but must be aligned to its elements of 2 bytes; check the offset that was added to the address");
    insta::assert_snapshot!(message(&p, &Addresses { lse: 0x50002, ..ADDRESSES }), @"lse is at address 0x50002, but must be aligned to its elements of 4 bytes; check the offset that was added to the address");
    let mut far = p;
    far.k.batch = usize::MAX / 4;
    insta::assert_snapshot!(message(&far, &ADDRESSES), @"k is a tensor of 4611686018427388159 elements, but must end below address 2^63; check its strides");
}

#[test]
fn empty_tensors_need_no_address() {
    let mut p = problem();
    p.seqlen_k = 0;
    assert_eq!(message(&p, &Addresses { k: 0, v: 0, ..ADDRESSES }), "right");
    p.seqlen_q = 0;
    assert_eq!(message(&p, &Addresses::default()), "right");
    p.batch = 0;
    assert_eq!(message(&p, &Addresses::default()), "right");
}

#[test]
fn outputs_have_memory_of_their_own() {
    let p = problem();
    insta::assert_snapshot!(message(&p, &Addresses { o: 0x10000, ..ADDRESSES }), @"o is at address 0x10000, but must not share memory with q at 0x10000; give the output memory of its own");
    insta::assert_snapshot!(message(&p, &Addresses { o: 0x203fe, ..ADDRESSES }), @"o is at address 0x203fe, but must not share memory with k at 0x20000; give the output memory of its own");
    assert_eq!(message(&p, &Addresses { o: 0x20400, ..ADDRESSES }), "right");
    insta::assert_snapshot!(message(&p, &Addresses { lse: 0x30010, ..ADDRESSES }), @"lse is at address 0x30010, but must not share memory with v at 0x30000; give the output memory of its own");
    insta::assert_snapshot!(message(&p, &Addresses { lse: 0x403fc, ..ADDRESSES }), @"lse is at address 0x403fc, but must not share memory with o at 0x40000; give the output memory of its own");
    let mut twice = p;
    twice.o.head = 4;
    insta::assert_snapshot!(message(&twice, &ADDRESSES), @"o is a tensor with the strides Strides { batch: 256, seq: 16, head: 4 }, but no two of its rows may share memory; give the output strides that step over whole rows");
    let mut broadcast = p;
    broadcast.o.batch = 0;
    assert!(message(&broadcast, &ADDRESSES).contains("no two of its rows may share memory"));
    // Inputs may repeat and share as they like.
    let mut shared = p;
    shared.k.batch = 0;
    assert_eq!(message(&shared, &Addresses { k: 0x10000, v: 0x10000, ..ADDRESSES }), "right");
}

#[test]
fn tensors_interleaved_in_one_buffer_do_not_overlap() {
    // (batch, sequence, 4, head, dim): Q, K, V and O side by side in each row.
    let mut p = problem();
    let strides = Strides { batch: 16 * 64, seq: 64, head: 8 };
    (p.q, p.k, p.v, p.o) = (strides, strides, strides, strides);
    let at = |n: u64| 0x10000 + n * 32;
    let packed = Addresses { q: at(0), k: at(1), v: at(2), o: at(3), lse: 0 };
    assert_eq!(message(&p, &packed), "right");
    assert_ne!(message(&p, &Addresses { o: at(3) + 2, ..packed }), "right");
    assert_ne!(message(&p, &Addresses { o: at(2) + 30, ..packed }), "right");
    // (batch, sequence, head, 4, dim).
    let strides = Strides { batch: 16 * 64, seq: 64, head: 32 };
    (p.q, p.k, p.v, p.o) = (strides, strides, strides, strides);
    let at = |n: u64| 0x10000 + n * 16;
    assert_eq!(message(&p, &Addresses { q: at(0), k: at(1), v: at(2), o: at(3), lse: 0 }), "right");
}

#[test]
fn no_overlap_is_ever_missed() {
    let mut state = 1u64;
    let mut random = |n: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % n
    };
    let bytes = |e: &Extent| {
        let mut set = HashSet::new();
        let [(bs, b), (ss, s), (hs, h)] = e.dims;
        for at in (0..b).flat_map(|i| (0..s).flat_map(move |j| (0..h).map(move |k| i * bs + j * ss + k * hs)))
        {
            set.extend(e.address + at..e.address + at + e.row);
        }
        set
    };
    let (mut apart, mut found_apart) = (0, 0);
    for _ in 0..4000 {
        let mut extent = || Extent {
            name: "x",
            address: 100 + random(40),
            row: 1 + random(4),
            dims: [(random(50), 1 + random(3)), (random(20), 1 + random(4)), (random(12), 1 + random(3))],
        };
        let (a, b) = (extent(), extent());
        let share = !bytes(&a).is_disjoint(&bytes(&b));
        assert!(a.overlaps(&b) || !share, "{a:?} {b:?}");
        apart += usize::from(!share);
        found_apart += usize::from(!a.overlaps(&b));
        let rows = a.dims.iter().map(|&(_, n)| n).product::<u64>();
        let distinct = bytes(&a).len() as u64 == rows * a.row;
        assert!(a.overlaps_itself() || distinct, "{a:?}");
    }
    assert!(found_apart * 2 > apart, "{found_apart} of {apart} disjoint pairs are seen to be so");
}
