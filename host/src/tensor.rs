//! Strided tensors `(batch, sequence, head, dim)` on the CPU or on a GPU, owned or borrowed.

mod view;

use crate::device::{Device, Gpu};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::module::check;
use crate::problem::Strides;
use std::marker::PhantomData;
pub(crate) use view::{Memory, MemoryMut, contiguous};
pub use view::{TensorView, TensorViewMut};

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
    /// ```
    /// use flash_attention::{Device, Tensor};
    /// let o = Tensor::<f32>::zeros(Device::Cpu, [1, 3, 2, 4])?;
    /// assert_eq!(o.to_vec()?, [0.0; 24]);
    /// # Ok::<(), flash_attention::Error>(())
    /// ```
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
    /// ```
    /// use flash_attention::{Device, Tensor};
    /// let error = Tensor::from_slice(Device::Cpu, &[0.0f32; 5], [1, 2, 1, 3]).unwrap_err();
    /// let message = "values is 5 elements, but the shape [1, 2, 1, 3] has 6; pass as many as the shape has";
    /// assert_eq!(error.to_string(), message);
    /// # Ok::<(), flash_attention::Error>(())
    /// ```
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
    ///
    /// ```
    /// use flash_attention::{Device, Strides, Tensor};
    /// // Memory in the order (batch, head, sequence, dim), seen as (batch, sequence, head, dim).
    /// let (seqlen, heads, dim) = (3, 2, 4);
    /// let tensor = Tensor::<f32>::zeros(Device::Cpu, [1, seqlen, heads, dim])?;
    /// let view = tensor.view().with_strides(Strides::bhsd(seqlen, heads, dim))?;
    /// assert_eq!(view.shape(), [1, seqlen, heads, dim]);
    /// # Ok::<(), flash_attention::Error>(())
    /// ```
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
    ///
    /// ```
    /// use flash_attention::{Device, Tensor};
    /// let mut lse = Tensor::<f32>::zeros(Device::Cpu, [1, 2, 3, 1])?;
    /// assert_eq!(lse.view_mut().shape(), [1, 2, 3, 1]);
    /// # Ok::<(), flash_attention::Error>(())
    /// ```
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

fn elements(shape: Shape) -> Result<usize> {
    let bytes = shape.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent));
    bytes.filter(|&n| n <= isize::MAX as usize / 8).ok_or_else(|| {
        Error::invalid("shape", format!("{shape:?}"), "must fit in memory", "use a smaller tensor")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
