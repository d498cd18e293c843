//! Tensors that somebody else owns.

use super::{Shape, Tensor};
use crate::device::Device;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::problem::Strides;

/// Where a view's first element lies.
#[derive(Clone, Copy)]
pub(crate) enum Memory<'a, T> {
    Host(&'a [T]),
    Gpu {
        address: u64,
        /// Elements from there on that are known to be the tensor's; unknown for memory of others.
        len: Option<usize>,
        /// Unknown for memory of others.
        device: Option<Device>,
    },
}

/// As [`Memory`], to be written.
pub(crate) enum MemoryMut<'a, T> {
    Host(&'a mut [T]),
    Gpu { address: u64, len: Option<usize>, device: Option<Device> },
}

/// A tensor that somebody else owns, to be read. The last dimension is contiguous, the others have any strides.
///
/// ```
/// use flash_attention::{Strides, TensorView};
/// // Two heads of two columns, packed as (batch, head, sequence, dim).
/// let memory = [0.0f32, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0];
/// let view = TensorView::from_slice(&memory, [1, 2, 2, 2])?.with_strides(Strides::bhsd(2, 2, 2))?;
/// assert_eq!(view.shape(), [1, 2, 2, 2]);
/// # Ok::<(), flash_attention::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct TensorView<'a, T> {
    pub(crate) memory: Memory<'a, T>,
    pub(crate) shape: Shape,
    pub(crate) strides: Strides,
}

/// A tensor that somebody else owns, to be written. As [`TensorView`] otherwise.
///
/// ```
/// use flash_attention::{Attention, Device, Stream, Strides, Tensor, TensorViewMut};
/// // O goes into the second half of each row of a larger buffer.
/// let q = Tensor::from_slice(Device::Cpu, &[1.0f32, 2.0], [1, 2, 1, 1])?;
/// let mut buffer = [0.0f32; 4];
/// let whole = TensorViewMut::from_slice(&mut buffer, [1, 2, 1, 2])?;
/// let o = whole.window(1, [1, 2, 1, 1], Strides { batch: 4, seq: 2, head: 1 })?;
/// Attention::forward(&q, &q, &q).causal(true).run_into(&Stream::new(Device::Cpu)?, o, None)?;
/// assert_eq!((buffer[0], buffer[1], buffer[2]), (0.0, 1.0, 0.0));
/// # Ok::<(), flash_attention::Error>(())
/// ```
pub struct TensorViewMut<'a, T> {
    pub(crate) memory: MemoryMut<'a, T>,
    pub(crate) shape: Shape,
    pub(crate) strides: Strides,
}

impl<'a, T: Element> TensorView<'a, T> {
    /// A contiguous tensor on the CPU that begins where `values` does.
    ///
    /// ```
    /// use flash_attention::TensorView;
    /// // Longer than the shape needs: the rest is nobody's.
    /// let cache = [0.0f32; 100];
    /// assert_eq!(TensorView::from_slice(&cache, [1, 3, 2, 8])?.shape(), [1, 3, 2, 8]);
    /// assert!(TensorView::from_slice(&cache, [1, 7, 2, 8]).is_err());
    /// # Ok::<(), flash_attention::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] where the shape has more elements than the slice.
    pub fn from_slice(values: &'a [T], shape: Shape) -> Result<Self> {
        Self::new(Memory::Host(values), shape)
    }

    /// A contiguous tensor that lies in `memory`.
    pub(crate) fn new(memory: Memory<'a, T>, shape: Shape) -> Result<Self> {
        let strides = contiguous(shape);
        TensorView { memory, shape, strides }.with_strides(strides)
    }

    /// A contiguous tensor in device memory of another library.
    ///
    /// ```no_run
    /// use flash_attention::TensorView;
    /// # let pointer: *const half::f16 = std::ptr::null();
    /// // SAFETY: PyTorch's `tensor.data_ptr()`, of a tensor that outlives the stream's work.
    /// let q = unsafe { TensorView::<half::f16>::from_raw(pointer as u64, [2, 1024, 16, 64]) };
    /// # Ok::<(), flash_attention::Error>(())
    /// ```
    ///
    /// # Safety
    /// From the address on there is memory of the GPU, as far as the shape and later strides reach. It stays alive,
    /// and nobody writes it, until every stream that it is given to has run the work: the calls return before that.
    pub unsafe fn from_raw(address: u64, shape: Shape) -> Self {
        let memory = Memory::Gpu { address, len: None, device: None };
        TensorView { memory, shape, strides: contiguous(shape) }
    }

    /// The same memory with other strides, in elements; 0 repeats an entry.
    ///
    /// ```
    /// use flash_attention::{Strides, TensorView};
    /// let memory = [0.0f32; 3 * 8];
    /// let keys = TensorView::from_slice(&memory, [1, 3, 1, 8])?;
    /// // One key head in the memory, seen as a batch of 5: every entry is the same.
    /// let shared = keys.window(0, [5, 3, 1, 8], Strides { batch: 0, seq: 8, head: 8 })?;
    /// assert_eq!(shared.shape(), [5, 3, 1, 8]);
    /// let past_the_end = keys.with_strides(Strides { batch: 24, seq: 9, head: 8 });
    /// assert!(past_the_end.is_err());
    /// # Ok::<(), flash_attention::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] where they reach past the end of the memory.
    pub fn with_strides(self, strides: Strides) -> Result<Self> {
        let len = match self.memory {
            Memory::Host(values) => Some(values.len()),
            Memory::Gpu { len, .. } => len,
        };
        len.map_or(Ok(()), |len| inside(len, self.shape, strides))?;
        Ok(TensorView { strides, ..self })
    }

    /// A tensor of another shape that begins `offset` elements into the same memory.
    ///
    /// ```
    /// use flash_attention::{Strides, TensorView};
    /// // The first 3 of 10 rows of a cache of keys, from row 2 on.
    /// let (rows, heads, dim) = (10, 2, 4);
    /// let cache = vec![0.0f32; rows * heads * dim];
    /// let keys = TensorView::from_slice(&cache, [1, rows, heads, dim])?;
    /// let window = keys.window(2 * heads * dim, [1, 3, heads, dim], Strides::bshd(rows, heads, dim))?;
    /// assert_eq!(window.shape(), [1, 3, heads, dim]);
    /// # Ok::<(), flash_attention::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] where it reaches past the end of the memory.
    pub fn window(self, offset: usize, shape: Shape, strides: Strides) -> Result<Self> {
        let memory = match self.memory {
            Memory::Host(values) => Memory::Host(values.get(offset..).ok_or_else(|| past(offset))?),
            Memory::Gpu { address, len, device } => {
                Memory::Gpu { address: behind::<T>(address, offset), len: rest(len, offset)?, device }
            }
        };
        TensorView { memory, shape, strides }.with_strides(strides)
    }

    /// `(batch, sequence, head, dim)`.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The device, where it is known.
    pub fn device(&self) -> Option<Device> {
        match self.memory {
            Memory::Host(_) => Some(Device::Cpu),
            Memory::Gpu { device, .. } => device,
        }
    }

    /// The address of the first element.
    pub(crate) fn address(&self) -> u64 {
        match self.memory {
            Memory::Host(values) => values.as_ptr() as u64,
            Memory::Gpu { address, .. } => address,
        }
    }
}

impl<'a, T: Element> TensorViewMut<'a, T> {
    /// As [`TensorView::from_slice`].
    ///
    /// # Errors
    /// As there.
    pub fn from_slice(values: &'a mut [T], shape: Shape) -> Result<Self> {
        Self::new(MemoryMut::Host(values), shape)
    }

    /// A contiguous tensor that lies in `memory`.
    pub(crate) fn new(memory: MemoryMut<'a, T>, shape: Shape) -> Result<Self> {
        let strides = contiguous(shape);
        TensorViewMut { memory, shape, strides }.with_strides(strides)
    }

    /// As [`TensorView::from_raw`].
    ///
    /// # Safety
    /// As there, and nobody reads the memory before the work is done either.
    pub unsafe fn from_raw(address: u64, shape: Shape) -> Self {
        let memory = MemoryMut::Gpu { address, len: None, device: None };
        TensorViewMut { memory, shape, strides: contiguous(shape) }
    }

    /// As [`TensorView::with_strides`]; no two rows may share memory, which the call that writes checks.
    ///
    /// # Errors
    /// As there.
    pub fn with_strides(self, strides: Strides) -> Result<Self> {
        let len = match &self.memory {
            MemoryMut::Host(values) => Some(values.len()),
            MemoryMut::Gpu { len, .. } => *len,
        };
        len.map_or(Ok(()), |len| inside(len, self.shape, strides))?;
        Ok(TensorViewMut { strides, ..self })
    }

    /// As [`TensorView::window`].
    ///
    /// # Errors
    /// As there.
    pub fn window(self, offset: usize, shape: Shape, strides: Strides) -> Result<Self> {
        let memory = match self.memory {
            MemoryMut::Host(values) => MemoryMut::Host(values.get_mut(offset..).ok_or_else(|| past(offset))?),
            MemoryMut::Gpu { address, len, device } => {
                MemoryMut::Gpu { address: behind::<T>(address, offset), len: rest(len, offset)?, device }
            }
        };
        TensorViewMut { memory, shape, strides }.with_strides(strides)
    }

    /// `(batch, sequence, head, dim)`.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The device, where it is known.
    pub fn device(&self) -> Option<Device> {
        match self.memory {
            MemoryMut::Host(_) => Some(Device::Cpu),
            MemoryMut::Gpu { device, .. } => device,
        }
    }

    /// The address of the first element.
    pub(crate) fn address(&self) -> u64 {
        match &self.memory {
            MemoryMut::Host(values) => values.as_ptr() as u64,
            MemoryMut::Gpu { address, .. } => *address,
        }
    }
}

impl<'a, T: Element> From<&'a Tensor<T>> for TensorView<'a, T> {
    fn from(tensor: &'a Tensor<T>) -> Self {
        tensor.view()
    }
}

impl<'a, T: Element> From<&'a mut Tensor<T>> for TensorViewMut<'a, T> {
    fn from(tensor: &'a mut Tensor<T>) -> Self {
        tensor.view_mut()
    }
}

/// Strides of a contiguous `(batch, sequence, head, dim)`. A shape that is too large for memory fails [`inside`].
pub(crate) fn contiguous([_, seqlen, heads, dim]: Shape) -> Strides {
    let seq = heads.saturating_mul(dim);
    Strides { batch: seqlen.saturating_mul(seq), seq, head: dim }
}

/// The address `offset` elements behind `address`; at the end of all addresses, which every call refuses, where there
/// is none.
fn behind<T>(address: u64, offset: usize) -> u64 {
    address.saturating_add(offset.saturating_mul(size_of::<T>()) as u64)
}

/// What is left of a known length behind `offset`.
fn rest(len: Option<usize>, offset: usize) -> Result<Option<usize>> {
    len.map(|len| len.checked_sub(offset).ok_or_else(|| past(offset))).transpose()
}

fn past(offset: usize) -> Error {
    Error::invalid("offset", offset, "it lies past the end of the memory", "check the offset")
}

/// Refuses strides that reach past `len` elements.
fn inside(len: usize, shape: Shape, strides: Strides) -> Result<()> {
    if shape.contains(&0) {
        return Ok(());
    }
    let [batch, seqlen, heads, dim] = shape;
    let reach = [(strides.batch, batch), (strides.seq, seqlen), (strides.head, heads)]
        .iter()
        .map(|&(stride, extent)| stride as u128 * (extent - 1) as u128)
        .fold(dim as u128, u128::saturating_add);
    if reach <= len as u128 {
        return Ok(());
    }
    Err(Error::invalid(
        "shape",
        format!("{shape:?} with {strides:?}"),
        format!("it needs {reach} elements and the memory has {len}"),
        "check shape and strides",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_stay_inside_their_memory() {
        let memory = [0.0f32; 24];
        let view = TensorView::from_slice(&memory, [1, 3, 2, 4]).unwrap();
        assert!(view.with_strides(Strides::bhsd(3, 2, 4)).is_ok());
        assert!(view.with_strides(Strides { batch: 999, seq: 0, head: 20 }).is_ok());
        let message = view.with_strides(Strides { batch: 0, seq: 9, head: 4 }).err().unwrap().to_string();
        assert_eq!(
            message,
            "shape is [1, 3, 2, 4] with Strides { batch: 0, seq: 9, head: 4 }, but it needs 26 elements and the \
             memory has 24; check shape and strides"
        );
        assert!(TensorView::from_slice(&memory, [1, 5, 5, 1]).is_err());
        assert!(TensorView::from_slice(&memory, [usize::MAX, 0, 5, 1]).is_ok());
        assert!(TensorView::from_slice(&memory, [usize::MAX, usize::MAX, 5, 1]).is_err());
    }

    #[test]
    fn an_offset_beyond_all_memory_is_an_error() {
        let memory = [0.0f32; 24];
        let view = TensorView::from_slice(&memory, [1, 3, 2, 4]).unwrap();
        for offset in [25, usize::MAX] {
            let message =
                view.window(offset, [1, 1, 1, 1], Strides::bshd(1, 1, 1)).err().unwrap().to_string();
            assert_eq!(
                message,
                format!("offset is {offset}, but it lies past the end of the memory; check the offset")
            );
        }
        assert!(view.window(24, [0, 1, 1, 1], Strides::bshd(1, 1, 1)).is_ok());
        // SAFETY: nothing is read.
        let foreign = unsafe { TensorView::<f32>::from_raw(1 << 20, [1, 3, 2, 4]) };
        // Nobody knows its length: the call that gets the view refuses an address up there.
        let far = foreign.window(usize::MAX, [1, 1, 1, 1], Strides::bshd(1, 1, 1)).unwrap();
        assert_eq!(far.address(), u64::MAX);
    }
}
