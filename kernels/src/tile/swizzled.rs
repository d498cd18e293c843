//! Tiles of 16-bit elements in shared memory, as TMA writes and wgmma reads them.
//!
//! A tile of `ROWS x COLS` lies as slabs of 64 columns, one after the other; a slab's row is 128 bytes, and inside
//! every 8 rows (1024 bytes, the swizzle atom) the 16-byte pieces of a row are permuted by the row's number, so that
//! neither a row nor a column of pieces meets the same banks twice.

use cuda_std::mbarrier::Mbarrier;
use cuda_std::mutant;
use cuda_std::shared::SharedPtr;
use cuda_std::tma::TensorMapPtr;
use cuda_std::wgmma::Descriptor;

/// Columns of a slab: 128 bytes.
pub const SLAB_COLS: u32 = 64;
/// Bytes of a swizzle atom: 8 rows of a slab.
const ATOM_BYTES: u32 = 1024;

/// Which rows of a `(batch, sequence, head, head dim)` tensor a tile holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// First row of the sequence.
    pub first: i32,
    /// Head.
    pub head: i32,
    /// Batch entry.
    pub batch: i32,
}

/// One tile of `ROWS x COLS` elements.
#[derive(Clone, Copy)]
pub struct SharedTile<const ROWS: u32, const COLS: u32>(SharedPtr<u16>);

impl<const ROWS: u32, const COLS: u32> SharedTile<ROWS, COLS> {
    const SLABS: u32 = COLS.div_ceil(SLAB_COLS);
    const SLAB_BYTES: u32 = ROWS * SLAB_COLS * 2;
    /// Size of the tile.
    pub const BYTES: u32 = Self::SLABS * Self::SLAB_BYTES;

    /// Starts the copies that fill the tile; rows and columns outside the tensor become zeros. They count
    /// [`Self::BYTES`] at `full`.
    ///
    /// # Safety
    /// The map's box is 64 columns by `ROWS` rows; nothing touches the tile until `full` completes.
    #[inline(always)]
    pub unsafe fn load(self, map: TensorMapPtr, rows: Rows, full: Mbarrier) {
        self.for_each_slab(|at, column| {
            // SAFETY: the slab lies inside the tile, and the caller keeps others away.
            unsafe { map.load_4d(at, [column, rows.first, rows.head, rows.batch], full) }
        });
    }

    /// [`load`](Self::load) from a map in which the heads of a group are the second dimension: the tile's rows become
    /// those of `rows.first` of all the group's heads, then the next, as many as fit; `rows.head` is the group.
    ///
    /// # Safety
    /// The map's box is 64 columns by `ROWS` rows, heads and sequence taken together; nothing touches the tile until
    /// `full` completes.
    #[inline(always)]
    pub unsafe fn load_packed(self, map: TensorMapPtr, rows: Rows, full: Mbarrier) {
        self.for_each_slab(|at, column| {
            // SAFETY: the slab lies inside the tile, and the caller keeps others away.
            unsafe { map.load_5d(at, [column, 0, rows.first, rows.head, rows.batch], full) }
        });
    }

    /// Where each slab lies, and its first column.
    #[inline(always)]
    fn for_each_slab(self, load: impl Fn(SharedPtr<u16>, i32)) {
        for slab in 0..Self::SLABS {
            load(self.0.offset(slab * Self::SLAB_BYTES / 2), (slab * SLAB_COLS) as i32);
        }
    }

    /// Lane `lane`'s part of the A operand: the warp's 16 rows from `first_row` on, 16 columns from `16 * step` on, in the
    /// layout of [`crate::tile::fragment`].
    ///
    /// # Safety
    /// The tile is full, and all lanes of the warp read theirs.
    #[inline(always)]
    pub unsafe fn fragment(self, first_row: u32, lane: u32, step: u32) -> [u32; 4] {
        let (row, pair) = (first_row + lane / 4, lane % 4);
        let mut fragment = [0; 4];
        for (i, register) in fragment.iter_mut().enumerate() {
            // Registers 0 to 3: rows r and r + 8 of the left 8 columns, then of the right ones.
            let (row, piece) = (row + 8 * (i as u32 % 2), 2 * step + i as u32 / 2);
            let slab = piece / 8 * Self::SLAB_BYTES / 4;
            let word = slab + row * 32 + ((piece % 8) ^ (row % 8)) * 4 + pair;
            // SAFETY: inside the tile.
            *register = unsafe { self.0.cast::<u32>().load(word) };
        }
        fragment
    }

    /// The tile as an operand whose contraction dimension are its columns, from column `16 * step` on.
    #[inline(always)]
    pub fn columns_contracted(self, step: u32) -> Descriptor {
        const STEPS_OF_SLAB: u32 = SLAB_COLS / 16;
        let offset =
            step / STEPS_OF_SLAB * Self::SLAB_BYTES + step % STEPS_OF_SLAB * mutant!(WideStep, 64, 32);
        Descriptor::new(self.0.address(), ATOM_BYTES, ATOM_BYTES).advance(offset)
    }

    /// The tile as an operand whose contraction dimension are its rows, from row `16 * step` on.
    #[inline(always)]
    pub fn rows_contracted(self, step: u32) -> Descriptor {
        let leading = mutant!(LeadingOfAtom, ATOM_BYTES, Self::SLAB_BYTES);
        Descriptor::new(self.0.address(), leading, ATOM_BYTES).advance(step * 2 * ATOM_BYTES)
    }
}

/// Tiles one after the other.
#[derive(Clone, Copy)]
pub struct Tiles<const ROWS: u32, const COLS: u32>(SharedPtr<u16>);

impl<const ROWS: u32, const COLS: u32> Tiles<ROWS, COLS> {
    /// Elements of a tile.
    pub const ELEMENTS: u32 = SharedTile::<ROWS, COLS>::BYTES / 2;

    /// The tiles that start at an address aligned to 1024 bytes.
    #[inline(always)]
    pub const fn new(first: SharedPtr<u16>) -> Self {
        const { assert!(ROWS.is_multiple_of(8), "a tile is made of whole swizzle atoms") };
        Tiles(first)
    }

    /// Tile number `index`.
    #[inline(always)]
    pub fn at(self, index: u32) -> SharedTile<ROWS, COLS> {
        SharedTile(self.0.offset(index * Self::ELEMENTS))
    }
}
