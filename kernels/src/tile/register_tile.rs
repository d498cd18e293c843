//! Tiles that a block of threads holds in registers, a fragment each.

use cuda_std::thread;

/// A thread's fragment of a tile; which rows and columns these are is [`ThreadGrid`]'s.
#[derive(Clone, Copy, Debug)]
pub struct RegisterTile<const ROWS: usize, const COLUMNS: usize>(pub [[f32; COLUMNS]; ROWS]);

/// A number for each of a thread's rows.
pub type RowVector<const ROWS: usize> = [f32; ROWS];

impl<const ROWS: usize, const COLUMNS: usize> RegisterTile<ROWS, COLUMNS> {
    /// All zeros.
    #[inline(always)]
    pub fn zero() -> Self {
        RegisterTile([[0.0; COLUMNS]; ROWS])
    }

    /// Replaces each value by `f(row, column, value)`, with the row and column of the whole tile.
    #[inline(always)]
    pub fn map(&mut self, grid: &ThreadGrid, f: impl Fn(u32, u32, f32) -> f32) {
        for i in 0..ROWS {
            for j in 0..COLUMNS {
                self.0[i][j] = f(grid.row(i), grid.column(j), self.0[i][j]);
            }
        }
    }

    /// Multiplies each row by its factor: `diag(factors) * self`.
    #[inline(always)]
    pub fn scale_rows(&mut self, factors: &RowVector<ROWS>) {
        for (row, factor) in self.0.iter_mut().zip(factors) {
            for value in row {
                *value *= factor;
            }
        }
    }
}

/// The threads of a block as a grid over a tile: `width` threads side by side share a row and lie in one warp.
///
/// Fragments are interleaved: fragment row `i` is tile row `y + i * height`, and fragment column `j` is tile column
/// `x + j * width`, or, where columns come in quads, quad `j` starts at column `4 * (x + j * width)`. Neighbouring
/// threads thus touch neighbouring memory.
#[derive(Clone, Copy, Debug)]
pub struct ThreadGrid {
    /// Threads that share a row: a power of two up to 32.
    pub width: u32,
    /// Rows of threads.
    pub height: u32,
    x: u32,
    y: u32,
}

impl ThreadGrid {
    /// This thread's place among `threads` threads, `width` to a row.
    #[inline(always)]
    pub fn new(threads: u32, width: u32) -> Self {
        let index = thread::thread_idx_x();
        ThreadGrid { width, height: threads / width, x: index % width, y: index / width }
    }

    /// Tile row of fragment row `i`.
    #[inline(always)]
    pub fn row(&self, i: usize) -> u32 {
        self.y + i as u32 * self.height
    }

    /// Tile column of fragment column `j`.
    #[inline(always)]
    pub fn column(&self, j: usize) -> u32 {
        self.x + j as u32 * self.width
    }

    /// First tile column of fragment quad `j`.
    #[inline(always)]
    pub fn quad(&self, j: usize) -> u32 {
        4 * self.column(j)
    }

    /// Whether this thread is the first of those that share its rows.
    #[inline(always)]
    pub fn is_first_of_row(&self) -> bool {
        self.x == 0
    }
}
