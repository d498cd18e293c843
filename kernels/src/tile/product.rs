//! The two products of attention, each a tile in registers from two tiles in shared memory: the inner loops of
//! `tiled` and `standard` alike.
//!
//! Both step through the summed dimension by quads. A step reads a quad of each row (and column) of the fragment and
//! multiplies every pair, so an element read from shared memory serves as many multiplications as the fragment is
//! wide or high.

use super::register_tile::{RegisterTile, ThreadGrid};
use super::shared_tile::SharedTile;
use cuda_std::math;

/// `out += A B^T`: row `i` of A times row `j` of B, over the first `depth` columns, rounded up to a quad.
///
/// # Safety
/// Both tiles have the rows that `grid` names and hold zeros or data up to the last quad; a barrier has made them
/// visible.
#[inline(always)]
pub unsafe fn multiply_transposed<const WIDTH: u32, const ROWS: usize, const COLUMNS: usize>(
    out: &mut RegisterTile<ROWS, COLUMNS>,
    a_smem: SharedTile<WIDTH>,
    b_smem: SharedTile<WIDTH>,
    depth: u32,
    grid: &ThreadGrid,
) {
    for step in 0..depth.div_ceil(4) {
        let mut a_frag = [[0.0; 4]; ROWS];
        for (i, quad) in a_frag.iter_mut().enumerate() {
            // SAFETY: inside the tile.
            *quad = unsafe { a_smem.quad(grid.row(i), 4 * step) };
        }
        for j in 0..COLUMNS {
            // SAFETY: inside the tile.
            let b_quad = unsafe { b_smem.quad(grid.column(j), 4 * step) };
            for k in 0..4 {
                for i in 0..ROWS {
                    out.0[i][j] = math::fma(a_frag[i][k], b_quad[k], out.0[i][j]);
                }
            }
        }
    }
}

/// `out += A B`: row `i` of A times columns of B, over the first `depth` rows of B, rounded up to a quad. The columns
/// of `out` are quads of neighbours.
///
/// # Safety
/// Both tiles have the rows and columns that `grid` names and hold zeros or data up to the last quad; a barrier has
/// made them visible.
#[inline(always)]
pub unsafe fn multiply<const DEPTH: u32, const WIDTH: u32, const ROWS: usize, const COLUMNS: usize>(
    out: &mut RegisterTile<ROWS, COLUMNS>,
    a_smem: SharedTile<DEPTH>,
    b_smem: SharedTile<WIDTH>,
    depth: u32,
    grid: &ThreadGrid,
) {
    for step in 0..depth.div_ceil(4) {
        let mut a_frag = [[0.0; 4]; ROWS];
        for (i, quad) in a_frag.iter_mut().enumerate() {
            // SAFETY: inside the tile.
            *quad = unsafe { a_smem.quad(grid.row(i), 4 * step) };
        }
        for k in 0..4 {
            for j in 0..COLUMNS / 4 {
                // SAFETY: inside the tile.
                let b_quad = unsafe { b_smem.quad(4 * step + k as u32, grid.quad(j)) };
                for i in 0..ROWS {
                    for column in 0..4 {
                        let value = &mut out.0[i][4 * j + column];
                        *value = math::fma(a_frag[i][k], b_quad[column], *value);
                    }
                }
            }
        }
    }
}
