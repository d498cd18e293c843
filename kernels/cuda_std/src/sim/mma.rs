//! Warp products and the matrix loads that feed them.

use super::collective::{Lanes, meet};
use super::handle::Handle;
use super::state::{Thread, current};

/// The halves of a register as numbers.
#[inline(always)]
fn halves<const BF16: bool>(register: u32) -> [f32; 2] {
    if BF16 {
        [f32::from_bits(register << 16), f32::from_bits(register & 0xffff_0000)]
    } else {
        [f16_to_f32(register as u16), f16_to_f32((register >> 16) as u16)]
    }
}

/// The value of a binary16, without asking what this processor can do: that takes longer than the conversion.
#[inline(always)]
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff) << 13;
    // The exponents' biases differ by 112, which scales subnormal values into the normal ones they are in f32.
    let finite = f32::from_bits(magnitude) * f32::from_bits((112 + 127) << 23);
    let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(finite.to_bits() | special | u32::from(bits & 0x8000) << 16)
}

/// `mma.sync.m16n8k16` with f32 sums.
pub(crate) fn m16n8k16(acc: &mut [f32; 4], a: [u32; 4], b: [u32; 2], bf16: bool) {
    let c = acc.map(f32::to_bits);
    let words = [a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], c[2], c[3]];
    let words = match bf16 {
        true => meet(current(), "mma.sync.m16n8k16 (bf16)", &words, multiply::<true>),
        false => meet(current(), "mma.sync.m16n8k16 (f16)", &words, multiply::<false>),
    };
    for i in 0..4 {
        acc[i] = f32::from_bits(words[6 + i]);
    }
}

fn multiply<const BF16: bool>(lanes: &mut Lanes, _: Handle<Thread>) {
    let (mut a, mut b, mut sums) = ([[0f32; 16]; 16], [[0f32; 8]; 16], [[0f32; 8]; 16]);
    for (lane, words) in lanes.iter().enumerate() {
        let (g, t) = (lane / 4, lane % 4);
        for i in 0..4 {
            let at = 2 * t + 8 * (i / 2);
            a[g + 8 * (i % 2)][at..at + 2].copy_from_slice(&halves::<BF16>(words[i]));
            sums[g + 8 * (i / 2)][2 * t + i % 2] = f32::from_bits(words[6 + i]);
        }
        for i in 0..2 {
            let [low, high] = halves::<BF16>(words[4 + i]);
            (b[2 * t + 8 * i][g], b[2 * t + 8 * i + 1][g]) = (low, high);
        }
    }
    // A row of sums is a vector; each sum still takes its products in order.
    for (a, sums) in a.iter().zip(&mut sums) {
        for (x, b) in a.iter().zip(&b) {
            for (sum, y) in sums.iter_mut().zip(b) {
                *sum += x * y;
            }
        }
    }
    for (lane, words) in lanes.iter_mut().enumerate() {
        for i in 0..4 {
            words[6 + i] = sums[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2].to_bits();
        }
    }
}

/// `ldmatrix.x4`, each matrix transposed or not: this lane's row starts at `address`.
pub(crate) fn ldmatrix(address: u32, transposed: bool) -> [u32; 4] {
    let mut thread = current();
    let mut block = thread.block;
    let address = crate::mutant!(NeighbourReads, address ^ 16, address);
    let row = block.shared.load::<16>(address, thread.actor()).unwrap_or_else(|fault| {
        thread.report(fault);
        [0xff; 16]
    });
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(row.chunks_exact(4)) {
        *word = u32::from_le_bytes(bytes.try_into().expect("4 bytes"));
    }
    let distribute = |lanes: &mut Lanes, _: Handle<Thread>| {
        let rows: [[u32; 4]; 32] = std::array::from_fn(|lane| std::array::from_fn(|i| lanes[lane][i]));
        let at = |matrix: usize, row: usize, column: usize| {
            let word = rows[8 * matrix + row][column / 2];
            if column % 2 == 1 { word >> 16 } else { word & 0xffff }
        };
        for (lane, words) in lanes.iter_mut().enumerate() {
            let (g, t) = (lane / 4, 2 * (lane % 4));
            for (matrix, word) in words[..4].iter_mut().enumerate() {
                *word = if transposed {
                    at(matrix, t, g) | at(matrix, t + 1, g) << 16
                } else {
                    at(matrix, g, t) | at(matrix, g, t + 1) << 16
                };
            }
        }
    };
    let what = if transposed { "ldmatrix.x4.trans" } else { "ldmatrix.x4" };
    let words = meet(thread, what, &words, distribute);
    [words[0], words[1], words[2], words[3]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_binary16_has_its_value() {
        for bits in 0..=u16::MAX {
            let (ours, right) = (f16_to_f32(bits), half::f16::from_bits(bits).to_f32());
            assert!(ours == right || ours.is_nan() && right.is_nan(), "{bits:#x}: {ours}, {right}");
        }
    }
}
