//! Tensors in and out by DLPack, the exchange format of PyTorch, JAX, CuPy and others.
//!
//! [`Imported`] owns a tensor that somebody else exported and gives views of it; [`export`] and [`export_versioned`]
//! hand a tensor of ours to somebody else. Nothing is copied. Who takes an exported tensor calls its deleter exactly
//! once; [`Imported`] does so when it is dropped.
//!
//! The structures are those of DLPack 1.x (`dlpack.h`), both the unversioned one ("dltensor" capsules) and the
//! versioned one ("dltensor_versioned").
//!
//! ```
//! use flash_attention::dlpack::{self, Imported, Layout};
//! use flash_attention::{Device, Tensor};
//!
//! let ours = Tensor::from_slice(Device::Cpu, &[1.0f32, 2.0, 3.0, 4.0], [1, 2, 1, 2])?;
//! // Now the exported structure owns the tensor; whoever imports it frees it.
//! let managed = dlpack::export(&Layout::from(&ours), ours);
//! // SAFETY: made above, taken once, and dropped after its last use.
//! let imported = unsafe { Imported::from_raw(managed) }?;
//! assert_eq!(imported.view::<f32>()?.shape(), [1, 2, 1, 2]);
//! # Ok::<(), flash_attention::Error>(())
//! ```

mod raw;

use std::ffi::c_void;
use std::ptr::NonNull;

use crate::device::Device;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::problem::{DType, Strides};
use crate::tensor::{self, Memory, MemoryMut, TensorView, TensorViewMut};
pub use raw::{ManagedTensor, ManagedTensorVersioned, RawDType, RawDevice, RawTensor, Version};

/// The version that [`export_versioned`] writes.
pub const VERSION: Version = Version { major: 1, minor: 0 };
/// Set in [`ManagedTensorVersioned::flags`] where the memory must not be written.
pub const FLAG_READ_ONLY: u64 = 1;

/// Where a tensor is and how it lies there: `(batch, sequence, head, dim)`, the last dimension contiguous.
///
/// ```
/// use flash_attention::dlpack::Layout;
/// use flash_attention::{DType, Device, Strides, Tensor};
/// let layout = Layout::from(&Tensor::<f32>::zeros(Device::Cpu, [1, 3, 2, 4])?);
/// assert_eq!((layout.dtype, layout.shape, layout.strides), (DType::F32, [1, 3, 2, 4], Strides::bshd(3, 2, 4)));
/// # Ok::<(), flash_attention::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Address of the first element.
    pub address: u64,
    /// Memory that the address belongs to; page-locked memory is the CPU's, managed memory the GPU's.
    pub device: Device,
    /// Element type.
    pub dtype: DType,
    /// Batch, sequence, heads, head dim.
    pub shape: [usize; 4],
    /// Elements between neighbours.
    pub strides: Strides,
}

impl Layout {
    /// Elements from the first to behind the last.
    fn extent(&self) -> usize {
        if self.shape.contains(&0) {
            return 0;
        }
        let Strides { batch, seq, head } = self.strides;
        let last =
            self.shape.iter().zip([batch, seq, head, 1]).map(|(n, stride)| (n - 1).saturating_mul(stride));
        last.fold(1, usize::saturating_add)
    }

    fn check_dtype<T: Element>(&self) -> Result<()> {
        if self.dtype == T::DTYPE {
            return Ok(());
        }
        let limit = format!("the view is of {}", T::DTYPE.name());
        Err(Error::invalid("dtype", self.dtype.name(), limit, "ask for the tensor's own type"))
    }
}

impl<T: Element> From<&tensor::Tensor<T>> for Layout {
    fn from(tensor: &tensor::Tensor<T>) -> Self {
        let view = tensor.view();
        Layout {
            address: view.address(),
            device: tensor.device(),
            dtype: T::DTYPE,
            shape: view.shape,
            strides: view.strides,
        }
    }
}

/// A tensor that another library exported; its deleter runs when this is dropped.
#[derive(Debug)]
pub struct Imported {
    layout: Layout,
    read_only: bool,
    managed: Managed,
}

#[derive(Debug)]
enum Managed {
    Plain(NonNull<ManagedTensor>),
    Versioned(NonNull<ManagedTensorVersioned>),
}

// SAFETY: the structure is only read; DLPack asks exporters for deleters that any thread may call.
unsafe impl Send for Imported {}
// SAFETY: shared access reads our own copy of the layout.
unsafe impl Sync for Imported {}

impl Imported {
    /// Takes over an unversioned tensor of 4 dimensions `(batch, sequence, head, dim)`, or of 3 as one sequence.
    ///
    /// # Errors
    /// [`Error::Invalid`] where attention cannot use it: another element type, device or number of dimensions, a
    /// negative stride, a last dimension with gaps. The tensor then still is the caller's, who calls the deleter.
    ///
    /// # Safety
    /// `managed` is a valid tensor that nobody else has taken. Its memory stays as it is described until the deleter
    /// has run, and nobody else writes it meanwhile (or reads it, where it is an output). The exporter's work on it is
    /// done or lies in the stream before ours; it is dropped only when every stream that it was given to has run the
    /// work.
    pub unsafe fn from_raw(managed: NonNull<ManagedTensor>) -> Result<Self> {
        // SAFETY: the caller's promise.
        let layout = unsafe { read(&managed.as_ref().tensor)? };
        Ok(Imported { layout, read_only: false, managed: Managed::Plain(managed) })
    }

    /// Takes over a versioned tensor; as [`Imported::from_raw`].
    ///
    /// # Errors
    /// As for [`Imported::from_raw`], and where the major version is not 1.
    ///
    /// # Safety
    /// As for [`Imported::from_raw`].
    pub unsafe fn from_raw_versioned(managed: NonNull<ManagedTensorVersioned>) -> Result<Self> {
        // SAFETY: the caller's promise; the version is the first field in every version.
        let version = unsafe { (&raw const (*managed.as_ptr()).version).read() };
        if version.major != VERSION.major {
            let value = format!("{}.{}", version.major, version.minor);
            return Err(Error::invalid(
                "dlpack version",
                value,
                "must be 1.x",
                "export with max_version=(1, 0)",
            ));
        }
        // SAFETY: the caller's promise, and the layout is the one that we know.
        let (layout, flags) = unsafe { (read(&managed.as_ref().tensor)?, managed.as_ref().flags) };
        Ok(Imported { layout, read_only: flags & FLAG_READ_ONLY != 0, managed: Managed::Versioned(managed) })
    }

    /// Where the tensor is and how it lies there.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The tensor, to be read.
    ///
    /// # Errors
    /// [`Error::Invalid`] where its elements are not of the type `T`.
    pub fn view<T: Element>(&self) -> Result<TensorView<'_, T>> {
        self.layout.check_dtype::<T>()?;
        let Layout { address, device, shape, strides, .. } = self.layout;
        let memory = match (device, self.layout.extent()) {
            (Device::Cpu, 0) => Memory::Host(&[]),
            (Device::Cpu, len) => {
                // SAFETY: what `from_raw` was promised: that many elements are there for as long as `self` is.
                Memory::Host(unsafe { std::slice::from_raw_parts(address as *const T, len) })
            }
            (device, len) => Memory::Gpu { address, len: Some(len), device: Some(device) },
        };
        Ok(TensorView { memory, shape, strides })
    }

    /// The tensor, to be written.
    ///
    /// # Errors
    /// As [`Imported::view`], and where the exporter forbids writing.
    pub fn view_mut<T: Element>(&mut self) -> Result<TensorViewMut<'_, T>> {
        self.layout.check_dtype::<T>()?;
        if self.read_only {
            return Err(Error::invalid(
                "output",
                "read-only",
                "must be writable",
                "export a copy of the tensor",
            ));
        }
        let Layout { address, device, shape, strides, .. } = self.layout;
        let memory = match (device, self.layout.extent()) {
            (Device::Cpu, 0) => MemoryMut::Host(&mut []),
            (Device::Cpu, len) => {
                // SAFETY: what `from_raw` was promised, nobody else uses it, and `self` is borrowed as long.
                MemoryMut::Host(unsafe { std::slice::from_raw_parts_mut(address as *mut T, len) })
            }
            (device, len) => MemoryMut::Gpu { address, len: Some(len), device: Some(device) },
        };
        Ok(TensorViewMut { memory, shape, strides })
    }

    /// Whether the exporter forbids writing: such a tensor cannot be an output.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }
}

impl Drop for Imported {
    fn drop(&mut self) {
        // SAFETY: we own the tensor, and this is the only place that frees it.
        unsafe {
            match self.managed {
                Managed::Plain(managed) => {
                    if let Some(deleter) = managed.as_ref().deleter {
                        deleter(managed.as_ptr());
                    }
                }
                Managed::Versioned(managed) => {
                    if let Some(deleter) = managed.as_ref().deleter {
                        deleter(managed.as_ptr());
                    }
                }
            }
        }
    }
}

/// Hands a tensor to another library, which calls the deleter once; that drops `owner`, on whatever thread it is.
pub fn export<T: Send + 'static>(layout: &Layout, owner: T) -> NonNull<ManagedTensor> {
    let exported = Box::new(Exported {
        managed: ManagedTensor {
            tensor: unfilled(),
            manager: std::ptr::null_mut(),
            deleter: Some(delete::<T>),
        },
        dims: Dims::of(layout),
        owner,
    });
    let exported = Box::leak(exported);
    exported.managed.tensor = exported.dims.tensor(layout);
    // The first field of a `repr(C)` structure has the structure's address.
    NonNull::from(exported).cast()
}

/// As [`export`], for importers that ask for the versioned structure.
///
/// ```
/// use flash_attention::dlpack::{self, Imported, Layout};
/// use flash_attention::{Device, Tensor};
/// let ours = Tensor::from_slice(Device::Cpu, &[1.0f32, 2.0], [1, 2, 1, 1])?;
/// let managed = dlpack::export_versioned(&Layout::from(&ours), true, ours);
/// // SAFETY: made above, taken once, and dropped after its last use.
/// let mut imported = unsafe { Imported::from_raw_versioned(managed) }?;
/// assert!(imported.is_read_only() && imported.view::<f32>().is_ok() && imported.view_mut::<f32>().is_err());
/// # Ok::<(), flash_attention::Error>(())
/// ```
pub fn export_versioned<T: Send + 'static>(
    layout: &Layout,
    read_only: bool,
    owner: T,
) -> NonNull<ManagedTensorVersioned> {
    let exported = Box::new(Exported {
        managed: ManagedTensorVersioned {
            version: VERSION,
            manager: std::ptr::null_mut(),
            deleter: Some(delete_versioned::<T>),
            flags: if read_only { FLAG_READ_ONLY } else { 0 },
            tensor: unfilled(),
        },
        dims: Dims::of(layout),
        owner,
    });
    let exported = Box::leak(exported);
    exported.managed.tensor = exported.dims.tensor(layout);
    NonNull::from(exported).cast()
}

/// What an exported structure stands in: the arrays that it points to, and what keeps the memory alive.
#[repr(C)]
struct Exported<M, T> {
    managed: M,
    dims: Dims,
    owner: T,
}

struct Dims {
    shape: [i64; 4],
    strides: [i64; 4],
}

impl Dims {
    fn of(layout: &Layout) -> Self {
        let Strides { batch, seq, head } = layout.strides;
        Dims { shape: layout.shape.map(|n| n as i64), strides: [batch, seq, head, 1].map(|n| n as i64) }
    }

    /// The tensor whose arrays are these; `self` must not move any more.
    fn tensor(&mut self, layout: &Layout) -> RawTensor {
        let (code, bits) = match layout.dtype {
            DType::F16 => (FLOAT, 16),
            DType::Bf16 => (BFLOAT, 16),
            DType::F32 => (FLOAT, 32),
        };
        let (device_type, device_id) = match layout.device {
            Device::Cpu => (CPU, 0),
            Device::Cuda(ordinal) => (CUDA, ordinal as i32),
        };
        RawTensor {
            data: layout.address as *mut c_void,
            device: RawDevice { device_type, device_id },
            ndim: 4,
            dtype: RawDType { code, bits, lanes: 1 },
            shape: self.shape.as_mut_ptr(),
            strides: self.strides.as_mut_ptr(),
            byte_offset: 0,
        }
    }
}

fn unfilled() -> RawTensor {
    RawTensor {
        data: std::ptr::null_mut(),
        device: RawDevice { device_type: CPU, device_id: 0 },
        ndim: 0,
        dtype: RawDType { code: FLOAT, bits: 32, lanes: 1 },
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    }
}

unsafe extern "C" fn delete<T>(managed: *mut ManagedTensor) {
    // SAFETY: `export` leaked this box, and the importer calls the deleter once.
    drop(unsafe { Box::from_raw(managed.cast::<Exported<ManagedTensor, T>>()) });
}

unsafe extern "C" fn delete_versioned<T>(managed: *mut ManagedTensorVersioned) {
    // SAFETY: `export_versioned` leaked this box, and the importer calls the deleter once.
    drop(unsafe { Box::from_raw(managed.cast::<Exported<ManagedTensorVersioned, T>>()) });
}

const CPU: i32 = 1;
const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;
const CUDA_MANAGED: i32 = 13;
const FLOAT: u8 = 2;
const BFLOAT: u8 = 4;

/// # Safety
/// The tensor's arrays are as long as it says.
unsafe fn read(tensor: &RawTensor) -> Result<Layout> {
    let dtype = match (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes) {
        (FLOAT, 16, 1) => DType::F16,
        (BFLOAT, 16, 1) => DType::Bf16,
        (FLOAT, 32, 1) => DType::F32,
        (code, bits, lanes) => {
            let value = format!("(code {code}, {bits} bits, {lanes} lanes)");
            return Err(Error::invalid(
                "dtype",
                value,
                "must be float16, bfloat16 or float32",
                "convert the tensor",
            ));
        }
    };
    let device = match (tensor.device.device_type, usize::try_from(tensor.device.device_id)) {
        (CPU | CUDA_HOST, _) => Device::Cpu,
        (CUDA | CUDA_MANAGED, Ok(ordinal)) => Device::Cuda(ordinal),
        (kind, _) => {
            let value = format!("(type {kind}, id {})", tensor.device.device_id);
            return Err(Error::invalid(
                "device",
                value,
                "must be the CPU or a CUDA device",
                "copy the tensor there",
            ));
        }
    };
    let ndim = match tensor.ndim {
        3 | 4 => tensor.ndim as usize,
        other => {
            let limit = "must be 4 (batch, sequence, head, dim) or 3 (sequence, head, dim)";
            return Err(Error::invalid("ndim", other, limit, "reshape the tensor"));
        }
    };
    if tensor.shape.is_null() {
        return Err(Error::invalid("shape", "NULL", "must point to the sizes", "check the exporter"));
    }
    // SAFETY: the arrays hold `ndim` numbers by the caller's promise.
    let sizes = unsafe { std::slice::from_raw_parts(tensor.shape, ndim) };
    let mut shape = [1; 4];
    for (own, &given) in shape[4 - ndim..].iter_mut().zip(sizes) {
        *own = usize::try_from(given)
            .map_err(|_| Error::invalid("shape", given, "must not be negative", "check the exporter"))?;
    }
    let mut strides = compact(shape);
    if !tensor.strides.is_null() {
        // SAFETY: as above.
        let given = unsafe { std::slice::from_raw_parts(tensor.strides, ndim) };
        for (axis, &stride) in (4 - ndim..).zip(given) {
            // With one index or none there is no neighbour, and exporters write what they like.
            if shape[axis] > 1 {
                strides[axis] = usize::try_from(stride).map_err(|_| {
                    Error::invalid(
                        "stride",
                        stride,
                        "must not be negative",
                        "copy the tensor in forward order",
                    )
                })?;
            }
        }
    }
    if strides[3] != 1 {
        let remedy = "make the tensor contiguous in its last dimension";
        return Err(Error::invalid("stride of the last dimension", strides[3], "must be 1", remedy));
    }
    if tensor.data.is_null() && !shape.contains(&0) {
        return Err(Error::invalid("data", "NULL", "must point to the elements", "check the exporter"));
    }
    let address = (tensor.data as u64).checked_add(tensor.byte_offset).ok_or_else(|| {
        Error::invalid("byte_offset", tensor.byte_offset, "must stay in memory", "check the exporter")
    })?;
    if !address.is_multiple_of(dtype.size() as u64) {
        let limit = format!("must be a multiple of {}, the size of {}", dtype.size(), dtype.name());
        return Err(Error::invalid("data", format!("{address:#x}"), limit, "copy the tensor"));
    }
    let strides = Strides { batch: strides[0], seq: strides[1], head: strides[2] };
    let layout = Layout { address, device, dtype, shape, strides };
    // No slice of Rust is larger than this.
    let bytes = layout.extent().saturating_mul(dtype.size());
    if bytes > isize::MAX as usize || address.checked_add(bytes as u64).is_none() {
        let value = format!("{shape:?} with {strides:?}");
        return Err(Error::invalid("shape", value, "must fit in memory", "check the exporter"));
    }
    Ok(layout)
}

/// Row-major strides without gaps.
fn compact(shape: [usize; 4]) -> [usize; 4] {
    let [_, s, h, d] = shape;
    [s.saturating_mul(h).saturating_mul(d), h.saturating_mul(d), d, 1]
}

#[cfg(test)]
mod tests;
