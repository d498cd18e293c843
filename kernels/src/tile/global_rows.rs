//! A view of one head of a tensor in global memory.

use crate::params::Strides;
use cuda_std::element::Element;
use cuda_std::global::GlobalPtr;

/// The rows of one head of a tensor `(batch, sequence, head, dim)`, in any layout whose rows are contiguous. Rows and
/// columns past the end read as zeros and are never touched.
#[derive(Clone, Copy)]
pub struct GlobalRows<E: Element> {
    first: GlobalPtr<E::Bits>,
    row_stride: i64,
    rows: i32,
    columns: u32,
    in_quads: bool,
}

impl<E: Element> GlobalRows<E> {
    /// Head `head` of sequence `batch` of the tensor at `address`: `rows` rows of `columns` elements.
    #[inline(always)]
    pub fn new(address: u64, strides: &Strides, batch: u32, head: u32, rows: u32, columns: u32) -> Self {
        let offset = i64::from(batch) * strides.batch + i64::from(head) * strides.head;
        let first = GlobalPtr::<E::Bits>::new(address).offset(offset);
        let misaligned = first.address() % size_of::<E::Four>() as u64;
        let in_quads = misaligned == 0 && strides.seq % 4 == 0 && columns.is_multiple_of(4);
        GlobalRows { first, row_stride: strides.seq, rows: rows as i32, columns, in_quads }
    }

    /// The columns from `column`, a multiple of 4, on.
    #[inline(always)]
    pub fn columns_from(self, column: u32) -> Self {
        let first = self.first.offset(i64::from(column));
        GlobalRows { first, columns: self.columns - column, ..self }
    }

    /// Whether four elements can move at once, which the same answer for all rows and threads allows to ask once.
    #[inline(always)]
    pub fn in_quads(&self) -> bool {
        self.in_quads
    }

    /// The columns `column .. column + 4` of a row, `column` a multiple of 4; `quads` is [`in_quads`](Self::in_quads)
    /// as a constant.
    ///
    /// # Safety
    /// The tensor is readable as far as its shape and strides reach.
    #[inline(always)]
    pub unsafe fn load(&self, row: i32, column: u32, quads: bool) -> [f32; 4] {
        let mut values = [0.0; 4];
        if row < self.rows && column < self.columns {
            let quad = self.at(row, column);
            // SAFETY: inside the tensor; four at once only where all are aligned and present.
            unsafe {
                if quads {
                    values = E::four_to_f32(quad.cast::<E::Four>().load(0));
                } else {
                    for i in 0..4 {
                        if column + (i as u32) < self.columns {
                            values[i] = E::to_f32(quad.load(i as i64));
                        }
                    }
                }
            }
        }
        values
    }

    /// Rounds and writes the columns `column .. column + 4` of a row, as far as they exist.
    ///
    /// # Safety
    /// The tensor is writable as far as its shape and strides reach, and no other thread touches these elements.
    #[inline(always)]
    pub unsafe fn store(&self, row: i32, column: u32, values: [f32; 4]) {
        if row < self.rows && column < self.columns {
            let quad = self.at(row, column);
            // SAFETY: inside the tensor; four at once only where all are aligned and present.
            unsafe {
                if self.in_quads {
                    quad.cast::<E::Four>().store(0, E::four_from_f32(values));
                } else {
                    for i in 0..4 {
                        if column + (i as u32) < self.columns {
                            quad.store(i as i64, E::from_f32(values[i]));
                        }
                    }
                }
            }
        }
    }

    /// Rounds and writes one element, if its row exists.
    ///
    /// # Safety
    /// As [`store`](Self::store); the column exists.
    #[inline(always)]
    pub unsafe fn store_one(&self, row: i32, column: u32, value: f32) {
        if row < self.rows {
            // SAFETY: as the caller promises.
            unsafe { self.at(row, column).store(0, E::from_f32(value)) }
        }
    }

    #[inline(always)]
    fn at(&self, row: i32, column: u32) -> GlobalPtr<E::Bits> {
        self.first.offset(i64::from(row) * self.row_stride + i64::from(column))
    }
}
