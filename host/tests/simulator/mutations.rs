//! One-line bugs planted in the device library and the kernels, each to be caught by the simulated device or by the
//! comparison with the reference.

use super::case::{Case, Layout};
use flash_attention::sim::{Mutation, Options};
use flash_attention::{Causal, DType, Family};
use flash_attention_kernels::config::entries;
use rayon::prelude::*;

/// Bugs that may stay unseen, of all that are planted.
const MAY_ESCAPE: usize = 1;

/// What a change to a kernel has to survive: several blocks of keys with growing scores under a causal mask, tails,
/// gaps, offsets beyond 32 bits.
fn probes() -> Vec<(Case, usize)> {
    let new = |lengths| Case::new(DType::Bf16, lengths, 64);
    let causal = Causal::BottomRight;
    vec![
        (
            Case { causal, heads: (2, 1), batch: 2, magnitude: 8.0, layout: Layout::Gaps, ..new((150, 250)) },
            1,
        ),
        (Case { magnitude: 8.0, ..new((70, 205)) }, 1),
        (Case { heads: (2, 2), ..new((40, 50)) }, 1 << 26),
        // Three heads in the tiles' rows of four.
        (Case { causal, heads: (6, 2), layout: Layout::Gaps, ..new((20, 90)) }, 1),
        // Two slabs of 64 columns.
        (Case::new(DType::Bf16, (70, 205), 128), 1),
    ]
}

/// The first fault that the probes show. Every family gets a chance before the next probe: most bugs belong to one.
fn first_fault(mutation: Option<Mutation>) -> Option<String> {
    let families = [Family::Sm90, Family::Sm80, Family::Tiled];
    let shipped = families.map(|family| (family, entries().any(|entry| entry.family == family)));
    for (seed, (case, stretch)) in
        (0..2).flat_map(|seed| probes().into_iter().map(move |probe| (seed, probe)))
    {
        for (family, _) in shipped.into_iter().filter(|(_, exists)| *exists) {
            let options = Options { mutation, stretch, seed, ..Options::default() };
            if let Some(fault) = case.faults(family, &options).into_iter().next() {
                return Some(fault);
            }
        }
    }
    None
}

#[test]
fn planted_bugs_are_caught() {
    assert_eq!(first_fault(None), None, "without a bug");
    let caught: Vec<_> =
        Mutation::ALL.par_iter().map(|&mutation| (mutation, first_fault(Some(mutation)))).collect();
    for (mutation, fault) in &caught {
        println!("{mutation:?}: {}", fault.as_deref().unwrap_or("NOT CAUGHT"));
    }
    // The bugs of a family that this build has not cannot be planted.
    let whole = entries().any(|entry| entry.family == Family::Sm90);
    let reached = |mutation: Mutation| whole || mutation.was_reached();
    let escaped: Vec<_> =
        caught.iter().filter(|(mutation, fault)| reached(*mutation) && fault.is_none()).collect();
    assert!(escaped.len() <= MAY_ESCAPE, "not caught: {escaped:?}");
}
