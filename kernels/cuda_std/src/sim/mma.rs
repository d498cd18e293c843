//! Warp products and the matrix loads that feed them.

use super::collective::{Lanes, meet};
use super::handle::Handle;
use super::state::{Thread, current};

fn convert(register: u32, high: bool, bf16: bool) -> f32 {
    let bits = if high { register >> 16 } else { register & 0xffff };
    if bf16 { f32::from_bits(bits << 16) } else { half::f16::from_bits(bits as u16).to_f32() }
}

/// `mma.sync.m16n8k16` with f32 sums.
pub(crate) fn m16n8k16(acc: &mut [f32; 4], a: [u32; 4], b: [u32; 2], bf16: bool) {
    let c = acc.map(f32::to_bits);
    let words = [a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], c[2], c[3]];
    let multiply = |lanes: &mut Lanes, _: Handle<Thread>| {
        let (mut a, mut b) = ([[0f32; 16]; 16], [[0f32; 8]; 16]);
        for (lane, words) in lanes.iter().enumerate() {
            let (g, t) = (lane / 4, lane % 4);
            for half in 0..2 {
                for i in 0..4 {
                    a[g + 8 * (i % 2)][2 * t + 8 * (i / 2) + half] = convert(words[i], half == 1, bf16);
                }
                for i in 0..2 {
                    b[2 * t + 8 * i + half][g] = convert(words[4 + i], half == 1, bf16);
                }
            }
        }
        for (lane, words) in lanes.iter_mut().enumerate() {
            for i in 0..4 {
                let (row, column) = (lane / 4 + 8 * (i / 2), 2 * (lane % 4) + i % 2);
                let sum = (0..16).fold(f32::from_bits(words[6 + i]), |sum, k| sum + a[row][k] * b[k][column]);
                words[6 + i] = sum.to_bits();
            }
        }
    };
    let what = if bf16 { "mma.sync.m16n8k16 (bf16)" } else { "mma.sync.m16n8k16 (f16)" };
    let words = meet(current(), what, &words, multiply);
    for i in 0..4 {
        acc[i] = f32::from_bits(words[6 + i]);
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
        let rows = *lanes;
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
