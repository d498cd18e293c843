//! Tiles in shared memory, as f32 whatever the tensors are made of: each element is converted once, when it comes in.

use super::global_rows::GlobalRows;
use super::register_tile::{RegisterTile, ThreadGrid};
use cuda_std::element::Element;
use cuda_std::shared::SharedPtr;
use cuda_std::{register, thread};

/// Rows of `WIDTH` columns, a multiple of 4.
///
/// Each row is followed by 4 unused columns: reading the same quad of eight neighbouring rows then touches all 32
/// banks once, where a row length that is a multiple of 32 would put the eight into the same four banks.
#[derive(Clone, Copy)]
pub struct SharedTile<const WIDTH: u32> {
    first: SharedPtr<f32>,
}

impl<const WIDTH: u32> SharedTile<WIDTH> {
    const PITCH: u32 = WIDTH + 4;

    /// Elements that a tile of `rows` rows occupies.
    pub const fn len(rows: u32) -> u32 {
        rows * Self::PITCH
    }

    /// The tile that starts at `first`, aligned to 16 bytes.
    #[inline(always)]
    pub fn new(first: SharedPtr<f32>) -> Self {
        SharedTile { first }
    }

    /// The rows from `row` on.
    #[inline(always)]
    pub fn rows_from(self, row: u32) -> Self {
        SharedTile { first: self.first.offset(row * Self::PITCH) }
    }

    /// The columns `column .. column + 4` of a row, `column` a multiple of 4.
    ///
    /// # Safety
    /// The quad lies in the tile, was written, and a barrier stands between.
    #[inline(always)]
    pub unsafe fn quad(self, row: u32, column: u32) -> [f32; 4] {
        // SAFETY: as the caller promises; pitch and column are multiples of 4.
        unsafe { self.first.offset(row * Self::PITCH + column).cast::<[f32; 4]>().load(0) }
    }

    /// Copies `ROWS` rows of a tensor from `first_row` on, by all `THREADS` threads of the block; what the tensor does
    /// not have becomes zero.
    ///
    /// # Safety
    /// The tensor is readable, the tile has `ROWS` rows, and a barrier stands between this and any other use of them.
    #[inline(always)]
    pub unsafe fn fill<E: Element, const ROWS: u32, const THREADS: u32>(
        self,
        source: &GlobalRows<E>,
        first_row: i32,
    ) {
        // SAFETY: as the caller promises.
        unsafe {
            if source.in_quads() {
                self.fill_by::<E, ROWS, THREADS>(source, first_row, true);
            } else {
                self.fill_by::<E, ROWS, THREADS>(source, first_row, false);
            }
        }
    }

    #[inline(always)]
    unsafe fn fill_by<E: Element, const ROWS: u32, const THREADS: u32>(
        self,
        source: &GlobalRows<E>,
        first_row: i32,
        quads: bool,
    ) {
        /// Loads in flight at once.
        const BATCH: usize = 4;
        const { assert!((ROWS * WIDTH / 4).is_multiple_of(THREADS * BATCH as u32)) };
        // Not a constant for the compiler, which would otherwise write out every step.
        let batches = register::opaque(ROWS * WIDTH / 4 / THREADS / BATCH as u32);
        for batch in 0..batches {
            let quad = |i: usize| (batch * BATCH as u32 + i as u32) * THREADS + thread::thread_idx_x();
            let (row, column) = (|i| quad(i) / (WIDTH / 4), |i| quad(i) % (WIDTH / 4) * 4);
            let mut values = [[0.0; 4]; BATCH];
            for i in 0..BATCH {
                // SAFETY: the caller's tensor.
                values[i] = unsafe { source.load(first_row + row(i) as i32, column(i), quads) };
            }
            for i in 0..BATCH {
                let place = self.first.offset(row(i) * Self::PITCH + column(i)).cast::<[f32; 4]>();
                // SAFETY: inside the tile's ROWS rows.
                unsafe { place.store(0, values[i]) }
            }
        }
    }

    /// Writes a register tile here.
    ///
    /// # Safety
    /// The tile has the rows, and a barrier stands between this and any other use of them.
    #[inline(always)]
    pub unsafe fn store<const ROWS: usize, const COLUMNS: usize>(
        self,
        fragment: &RegisterTile<ROWS, COLUMNS>,
        grid: &ThreadGrid,
    ) {
        for (i, row) in fragment.0.iter().enumerate() {
            for (j, &value) in row.iter().enumerate() {
                // SAFETY: as the caller promises.
                unsafe { self.first.store(grid.row(i) * Self::PITCH + grid.column(j), value) }
            }
        }
    }
}
