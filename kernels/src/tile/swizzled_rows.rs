//! Tiles of 16-bit elements in shared memory, row after row, as `ldmatrix` reads them.
//!
//! A row is `CHUNKS` chunks of 16 bytes. `ldmatrix` fetches eight rows' chunks of one column at once; stored plainly
//! they would all sit in the same banks. So each row's chunks are permuted by an XOR with the row's number: any eight
//! consecutive rows then have a column's chunks in eight different groups of four banks, and a row stays a row, so
//! that copies along it are free of conflicts too.

use cuda_std::global::GlobalPtr;
use cuda_std::mutant;
use cuda_std::shared::SharedPtr;
use cuda_std::{cp_async, ldmatrix, register, thread, warp};

/// Elements of a chunk.
pub const CHUNK: u32 = 8;
/// What one lane moves at once: a chunk of 8 elements.
type Chunk = [u32; 4];

/// A tile whose rows are `CHUNKS` chunks long, a multiple of 4.
#[derive(Clone, Copy)]
pub struct SwizzledRows<const CHUNKS: u32>(SharedPtr<Chunk>);

impl<const CHUNKS: u32> SwizzledRows<CHUNKS> {
    /// Chunks that are permuted among themselves. A row of a multiple of 128 bytes starts in bank 0, and its number's
    /// low 3 bits spread it over the 8 groups of banks; one of an odd multiple of 64 bytes starts in bank 0 or 16, so
    /// that its number's second and third bit do.
    pub const PERMUTED: u32 = if CHUNKS.is_multiple_of(8) { 8 } else { 4 };

    /// The tile at an address aligned to 128 bytes.
    #[inline(always)]
    pub const fn new(first: SharedPtr<u16>) -> Self {
        const { assert!(CHUNKS.is_multiple_of(4), "the permutation needs whole groups of four chunks") };
        SwizzledRows(first.cast())
    }

    /// The number that a row's chunk indices are XORed with.
    const fn key(row: u32) -> u32 {
        if Self::PERMUTED == 8 { row % 8 } else { row / 2 % 4 }
    }

    /// Where a chunk lies in the tile, counted in chunks.
    const fn place(row: u32, chunk: u32) -> u32 {
        row * CHUNKS + (chunk ^ Self::key(row))
    }

    // Both views are made anew at each use: a few instructions, where keeping them would take registers that the
    // products want.

    /// What this lane reads of every A operand, and of every B operand whose contraction runs along the rows: of 16 x 16
    /// elements, the left half's 8 x 8 matrices come first, from the top.
    #[inline(always)]
    pub fn lane(self) -> LaneView<CHUNKS> {
        let lane = register::opaque(warp::lane_id());
        self.lane_view(lane % 16, lane / 16)
    }

    /// What this lane reads of every B operand whose contraction runs along the columns: the upper half's matrices come
    /// first, from the left, because a product takes its B from neighbouring registers only.
    #[inline(always)]
    pub fn lane_of_rows(self) -> LaneView<CHUNKS> {
        let lane = register::opaque(warp::lane_id());
        self.lane_view(lane % 8 + lane / 16 * 8, lane / 8 % 2)
    }

    const fn lane_view(self, row: u32, chunk: u32) -> LaneView<CHUNKS> {
        LaneView(self.0.offset(Self::place(row, chunk)))
    }
}

/// The address that one lane passes to `ldmatrix` for the 16 x 16 elements at the tile's corner.
#[derive(Clone, Copy)]
pub struct LaneView<const CHUNKS: u32>(SharedPtr<Chunk>);

impl<const CHUNKS: u32> LaneView<CHUNKS> {
    /// The same lane's address for the 16 x 16 elements at `(row, column)`, multiples of 16; constants leave one XOR
    /// that many products share.
    #[inline(always)]
    const fn at(self, row: u32, column: u32) -> SharedPtr<Chunk> {
        let chunk = column / CHUNK;
        let inside = chunk % SwizzledRows::<CHUNKS>::PERMUTED;
        // The lane's row changes by a multiple of 8, which leaves its key as it is; the low bits of the address are
        // the permuted chunk alone, because rows and tiles start at multiples of the permuted group.
        let permuted = SharedPtr::<Chunk>::new(self.0.address() ^ (inside * size_of::<Chunk>() as u32));
        permuted.offset(row * CHUNKS + chunk - inside)
    }

    /// The view of the tile that lies `chunks` further on.
    #[inline(always)]
    pub const fn offset(self, chunks: u32) -> Self {
        LaneView(self.0.offset(chunks))
    }

    /// The 16 rows by 16 columns at `(row, column)` as an A operand whose contraction runs along the columns.
    ///
    /// # Safety
    /// All lanes of the warp; the elements are written and visible.
    #[inline(always)]
    pub unsafe fn a(self, row: u32, column: u32) -> [u32; 4] {
        // SAFETY: as the caller promises.
        unsafe { ldmatrix::x4(self.at(row, column)) }
    }

    /// The same elements as two B operands, of 8 rows each, whose contraction runs along the columns.
    ///
    /// # Safety
    /// As for [`a`](Self::a); the view is one [of rows](SwizzledRows::lane_of_rows).
    #[inline(always)]
    pub unsafe fn b_of_rows(self, row: u32, column: u32) -> [[u32; 2]; 2] {
        // SAFETY: as the caller promises.
        let [a, b, c, d] = unsafe { ldmatrix::x4(self.at(row, column)) };
        [[a, b], [c, d]]
    }

    /// The same elements as two B operands, of 8 columns each, whose contraction runs along the rows.
    ///
    /// # Safety
    /// As for [`a`](Self::a).
    #[inline(always)]
    pub unsafe fn b_of_columns(self, row: u32, column: u32) -> [[u32; 2]; 2] {
        // SAFETY: as the caller promises.
        let [a, b, c, d] = unsafe { ldmatrix::x4_trans(self.at(row, column)) };
        [[a, b], [c, d]]
    }
}

/// Copies tiles of `CHUNKS` wide rows, from the top of one head's matrix down, with all `THREADS` of the block.
///
/// Neighbouring threads take neighbouring chunks of a row, 64 or 128 bytes of it, so that a warp's copies are whole
/// sectors; a thread's column and its rows' key are then the same in every pass.
#[derive(Clone, Copy)]
pub struct TileCopier<const CHUNKS: u32, const THREADS: u32> {
    /// This thread's first chunk of the next tile.
    from: GlobalPtr<u16>,
    /// Elements from row to row.
    row_stride: i64,
    /// Where this thread's first chunk goes, in chunks from the tile's start.
    to: u32,
    /// This thread's first row of every tile.
    row: i32,
    /// Bit `i`: whether column `8 * i` exists to the right of this thread's first chunk, that being column 0.
    columns: u32,
}

impl<const CHUNKS: u32, const THREADS: u32> TileCopier<CHUNKS, THREADS> {
    const THREADS_OF_ROW: u32 = SwizzledRows::<CHUNKS>::PERMUTED;
    const ROWS_OF_PASS: u32 = THREADS / Self::THREADS_OF_ROW;

    /// Starts at the row `first` of rows of `columns` elements.
    #[inline(always)]
    pub fn new(head: GlobalPtr<u16>, row_stride: i64, first: i32, columns: u32) -> Self {
        const { assert!(Self::ROWS_OF_PASS.is_multiple_of(8), "a pass keeps the key of a thread's row") };
        let thread = thread::thread_idx_x();
        let (row, chunk) = (thread / Self::THREADS_OF_ROW, thread % Self::THREADS_OF_ROW);
        TileCopier {
            from: head.offset(i64::from(first + row as i32) * row_stride + i64::from(chunk * CHUNK)),
            row_stride,
            to: mutant!(UnswizzledWrites, row * CHUNKS + chunk, SwizzledRows::<CHUNKS>::place(row, chunk)),
            row: row as i32,
            // Up to 32 chunks.
            columns: ((1u64 << (columns / CHUNK)) - 1) as u32 >> chunk,
        }
    }

    /// Starts the copies of this thread's share of the next `ROWS` rows, of which `rows` exist; rows and columns that
    /// do not exist become zeros.
    ///
    /// # Safety
    /// All threads of the block; nobody touches `tile` before the copies are waited for.
    #[inline(always)]
    pub unsafe fn copy_next<const ROWS: u32>(&mut self, tile: SwizzledRows<CHUNKS>, rows: i32) {
        for pass in 0..ROWS.div_ceil(Self::ROWS_OF_PASS) {
            let row = pass * Self::ROWS_OF_PASS;
            let rows_of_pass = Self::ROWS_OF_PASS.min(ROWS - row);
            if rows_of_pass == Self::ROWS_OF_PASS || self.row < rows_of_pass as i32 {
                let columns = if self.row + (row as i32) < rows { self.columns } else { 0 };
                for part in 0..CHUNKS / Self::THREADS_OF_ROW {
                    let chunk = part * Self::THREADS_OF_ROW;
                    let to = tile.0.offset(self.to + row * CHUNKS + chunk);
                    let from = self.from.offset(i64::from(chunk * CHUNK)).cast();
                    // SAFETY: only existing elements are read, at rows that the caller aligned to 16 bytes.
                    unsafe { cp_async::copy_16(to, from, columns >> chunk & 1 != 0) }
                }
            }
            // Opaque, or every pass and the whole tile get distances of their own, in registers all the time.
            let next = self.from.offset(i64::from(rows_of_pass) * self.row_stride);
            self.from = GlobalPtr::new(register::opaque_address(next.address()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<const CHUNKS: u32>() {
        let mut seen = std::collections::HashSet::new();
        for row in 0..64 {
            for chunk in 0..CHUNKS {
                let place = SwizzledRows::<CHUNKS>::place(row, chunk);
                assert!(place / CHUNKS == row && seen.insert(place), "{CHUNKS}: ({row}, {chunk}) at {place}");
            }
        }
        // 8 chunks of a phase fill the 32 banks once where they are all different modulo 8.
        let conflict_free = |mut places: Vec<u32>| {
            places.iter_mut().for_each(|place| *place %= 8);
            places.sort();
            places == (0..8).collect::<Vec<_>>()
        };
        for chunk in 0..CHUNKS {
            for first in (0..64).step_by(8) {
                let column =
                    (first..first + 8).map(|row| SwizzledRows::<CHUNKS>::place(row, chunk)).collect();
                assert!(conflict_free(column), "{CHUNKS} chunks: column {chunk} from row {first}");
            }
        }
        // A copy's phase: 8 threads in 8 / THREADS_OF_ROW rows.
        let threads_of_row = SwizzledRows::<CHUNKS>::PERMUTED;
        for first in (0..64).step_by(8 / threads_of_row as usize) {
            for part in (0..CHUNKS).step_by(threads_of_row as usize) {
                let copy = (0..8)
                    .map(|i| {
                        SwizzledRows::<CHUNKS>::place(first + i / threads_of_row, part + i % threads_of_row)
                    })
                    .collect();
                assert!(conflict_free(copy), "{CHUNKS} chunks: copy to row {first}, chunk {part}");
            }
        }
        // A lane's address by one XOR and a constant is the place of the row and chunk meant.
        for (row, half) in (0..16).flat_map(|row| [(row, 0), (row, 1)]) {
            let tile = SwizzledRows::<CHUNKS>::new(SharedPtr::new(1024));
            let view = tile.lane_view(row, half);
            for (first, column) in
                [(0, 0), (16, 16), (48, 0), (32, CHUNKS * CHUNK - 16), (0, 32 % (CHUNKS * 8))]
            {
                let meant = SwizzledRows::<CHUNKS>::place(first + row, column / CHUNK + half);
                assert_eq!(view.at(first, column).address(), 1024 + 16 * meant);
            }
        }
    }

    #[test]
    fn permutes_without_bank_conflicts() {
        check::<4>();
        check::<8>();
        check::<12>();
        check::<16>();
        check::<24>();
        check::<32>();
    }
}
