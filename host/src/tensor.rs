//! Strided tensors `(batch, sequence, head, dim)` on the CPU or on a GPU, owned or borrowed.

use crate::device::{Device, Gpu};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::module::check;
use crate::problem::Strides;
use std::marker::PhantomData;

/// `(batch, sequence, head, dim)`.
pub type Shape = [usize; 4];

/// A tensor with memory of its own on one device.
///
/// Work that reads or writes it may still be in some stream when it is dropped: dropping waits for the device.
///
/// ```
/// use flash_attention::{Device, Tensor};
/// let tensor = Tensor::from_slice(Device::Cpu, &[1.0f32, 2.0, 3.0, 4.0], [1, 2, 1, 2])?;
/// assert_eq!(tensor.shape(), [1, 2, 1, 2]);
/// assert_eq!(tensor.to_vec()?, [1.0, 2.0, 3.0, 4.0]);
/// # Ok::<(), flash_attention::Error>(())
/// ```
pub struct Tensor<T> {
    storage: Storage<T>,
    shape: Shape,
    strides: Strides,
}

enum Storage<T> {
    Host(Vec<T>),
    Gpu(Buffer<T>),
}

/// Device memory of `len` elements.
struct Buffer<T> {
    gpu: &'static Gpu,
    address: u64,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: Element> Buffer<T> {
    /// Memory with anything in it.
    fn new(gpu: &'static Gpu, len: usize) -> Result<Self> {
        let mut address = 0;
        // The driver has no allocations of nothing.
        if len > 0 {
            let _entered = gpu.enter()?;
            // SAFETY: a place for the address.
            let code = unsafe { (gpu.driver().cuMemAlloc)(&mut address, len * size_of::<T>()) };
            check(gpu.driver(), "cuMemAlloc", code)?;
        }
        Ok(Buffer { gpu, address, len, elements: PhantomData })
    }

    fn write(&mut self, values: &[T]) -> Result<()> {
        assert_eq!(values.len(), self.len);
        if self.len == 0 {
            return Ok(());
        }
        self.gpu.synchronize()?;
        let _entered = self.gpu.enter()?;
        let driver = self.gpu.driver();
        // SAFETY: both sides have len elements.
        let code =
            unsafe { (driver.cuMemcpyHtoD)(self.address, values.as_ptr().cast(), size_of_val(values)) };
        check(driver, "cuMemcpyHtoD", code)?;
        // A copy from pageable memory may return before the device has it, and streams do not wait for it.
        self.gpu.synchronize()
    }

    fn read(&self) -> Result<Vec<T>> {
        let mut values = vec![T::default(); self.len];
        if self.len > 0 {
            self.gpu.synchronize()?;
            let _entered = self.gpu.enter()?;
            let driver = self.gpu.driver();
            let bytes = size_of_val(values.as_slice());
            // SAFETY: both sides have len elements, and every bit pattern is an element.
            let code = unsafe { (driver.cuMemcpyDtoH)(values.as_mut_ptr().cast(), self.address, bytes) };
            check(driver, "cuMemcpyDtoH", code)?;
        }
        Ok(values)
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        if self.len == 0 {
            return;
        }
        // A failure here is an earlier one's: the context is broken, and its memory with it.
        let _ = self.gpu.synchronize();
        if let Ok(_entered) = self.gpu.enter() {
            // SAFETY: the memory is freed once, and nothing on the device uses it any more.
            unsafe { (self.gpu.driver().cuMemFree)(self.address) };
        }
    }
}

impl<T: Element> Tensor<T> {
    /// A contiguous tensor with anything in it on a GPU, zeros on the CPU: for outputs.
    pub(crate) fn for_output(device: Device, shape: Shape) -> Result<Self> {
        let len = elements(shape)?;
        let storage = match device {
            Device::Cpu => Storage::Host(vec![T::default(); len]),
            Device::Cuda(ordinal) => Storage::Gpu(Buffer::new(Gpu::get(ordinal)?, len)?),
        };
        Ok(Tensor { storage, shape, strides: contiguous(shape) })
    }

    /// A contiguous tensor of zeros.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where there is no such device, [`Error::Driver`] where its memory is used up.
    pub fn zeros(device: Device, shape: Shape) -> Result<Self> {
        let mut tensor = Self::for_output(device, shape)?;
        if let Storage::Gpu(buffer) = &mut tensor.storage
            && buffer.len > 0
        {
            let gpu = buffer.gpu;
            let _entered = gpu.enter()?;
            let bytes = buffer.len * size_of::<T>();
            // SAFETY: the buffer has that many bytes.
            check(gpu.driver(), "cuMemsetD8", unsafe {
                (gpu.driver().cuMemsetD8)(buffer.address, 0, bytes)
            })?;
            gpu.synchronize()?;
        }
        Ok(tensor)
    }

    /// A contiguous tensor with a copy of `values`.
    ///
    /// # Errors
    /// As [`Tensor::zeros`], and [`Error::Invalid`] where the shape has another number of elements.
    pub fn from_slice(device: Device, values: &[T], shape: Shape) -> Result<Self> {
        if elements(shape)? != values.len() {
            return Err(Error::invalid(
                "values",
                format!("{} elements", values.len()),
                format!("the shape {shape:?} has {}", elements(shape)?),
                "pass as many as the shape has",
            ));
        }
        let storage = match device {
            Device::Cpu => Storage::Host(values.to_vec()),
            Device::Cuda(ordinal) => {
                let mut buffer = Buffer::new(Gpu::get(ordinal)?, values.len())?;
                buffer.write(values)?;
                Storage::Gpu(buffer)
            }
        };
        Ok(Tensor { storage, shape, strides: contiguous(shape) })
    }

    /// The tensor's memory, in the order in which it lies there. On a GPU it waits for the device first.
    ///
    /// # Errors
    /// [`Error::Driver`] also where earlier work failed.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        match &self.storage {
            Storage::Host(values) => Ok(values.clone()),
            Storage::Gpu(buffer) => buffer.read(),
        }
    }

    /// The tensor's device.
    pub fn device(&self) -> Device {
        match &self.storage {
            Storage::Host(_) => Device::Cpu,
            Storage::Gpu(buffer) => buffer.gpu.device(),
        }
    }

    /// `(batch, sequence, head, dim)`.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The whole tensor, to be read.
    pub fn view(&self) -> TensorView<'_, T> {
        let memory = match &self.storage {
            Storage::Host(values) => Memory::Host(values),
            Storage::Gpu(buffer) => Memory::Gpu {
                address: buffer.address,
                len: Some(buffer.len),
                device: Some(buffer.gpu.device()),
            },
        };
        TensorView { memory, shape: self.shape, strides: self.strides }
    }

    /// The whole tensor, to be written.
    pub fn view_mut(&mut self) -> TensorViewMut<'_, T> {
        let memory = match &mut self.storage {
            Storage::Host(values) => MemoryMut::Host(values),
            Storage::Gpu(buffer) => MemoryMut::Gpu {
                address: buffer.address,
                len: Some(buffer.len),
                device: Some(buffer.gpu.device()),
            },
        };
        TensorViewMut { memory, shape: self.shape, strides: self.strides }
    }
}

impl<T> std::fmt::Debug for Tensor<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let device = match &self.storage {
            Storage::Host(_) => Device::Cpu,
            Storage::Gpu(buffer) => buffer.gpu.device(),
        };
        write!(f, "Tensor<{}>({:?} on {device})", std::any::type_name::<T>(), self.shape)
    }
}

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
pub struct TensorViewMut<'a, T> {
    pub(crate) memory: MemoryMut<'a, T>,
    pub(crate) shape: Shape,
    pub(crate) strides: Strides,
}

impl<'a, T: Element> TensorView<'a, T> {
    /// A contiguous tensor on the CPU that begins where `values` does.
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
    /// # Safety
    /// From the address on there is memory of the GPU, as far as the shape and later strides reach. It stays alive,
    /// and nobody writes it, until every stream that it is given to has run the work: the calls return before that.
    pub unsafe fn from_raw(address: u64, shape: Shape) -> Self {
        let memory = Memory::Gpu { address, len: None, device: None };
        TensorView { memory, shape, strides: contiguous(shape) }
    }

    /// The same memory with other strides, in elements; 0 repeats an entry.
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
    /// # Errors
    /// [`Error::Invalid`] where it reaches past the end of the memory.
    pub fn window(self, offset: usize, shape: Shape, strides: Strides) -> Result<Self> {
        let memory = match self.memory {
            Memory::Host(values) => Memory::Host(values.get(offset..).ok_or_else(|| past(offset))?),
            Memory::Gpu { address, len, device } => Memory::Gpu {
                address: address + (offset * size_of::<T>()) as u64,
                len: rest(len, offset)?,
                device,
            },
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
            MemoryMut::Gpu { address, len, device } => MemoryMut::Gpu {
                address: address + (offset * size_of::<T>()) as u64,
                len: rest(len, offset)?,
                device,
            },
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

fn elements(shape: Shape) -> Result<usize> {
    let bytes = shape.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent));
    bytes.filter(|&n| n <= isize::MAX as usize / 8).ok_or_else(|| {
        Error::invalid("shape", format!("{shape:?}"), "must fit in memory", "use a smaller tensor")
    })
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
    fn a_shape_has_to_fit_its_values() {
        let message = Tensor::from_slice(Device::Cpu, &[0.0f32; 5], [1, 2, 1, 3]).unwrap_err().to_string();
        assert_eq!(
            message,
            "values is 5 elements, but the shape [1, 2, 1, 3] has 6; pass as many as the shape has"
        );
        assert!(Tensor::<f32>::zeros(Device::Cpu, [usize::MAX, 2, 1, 3]).is_err());
    }
}
