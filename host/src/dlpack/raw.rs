//! The structures of `dlpack.h`.

use std::ffi::c_void;

/// `DLPackVersion`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Changes with the layout of the structures.
    pub major: u32,
    /// Changes with what the fields may hold.
    pub minor: u32,
}

/// `DLDevice`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawDevice {
    /// `DLDeviceType`: 1 CPU, 2 CUDA, 3 CUDA host, 13 CUDA managed.
    pub device_type: i32,
    /// Ordinal.
    pub device_id: i32,
}

/// `DLDataType`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawDType {
    /// `DLDataTypeCode`: 2 IEEE float, 4 bfloat.
    pub code: u8,
    /// Bits of a lane.
    pub bits: u8,
    /// Lanes of an element.
    pub lanes: u16,
}

/// `DLTensor`.
#[repr(C)]
#[derive(Debug)]
pub struct RawTensor {
    /// Start of the allocation, in the device's address space.
    pub data: *mut c_void,
    /// Where it is.
    pub device: RawDevice,
    /// Dimensions.
    pub ndim: i32,
    /// Element type.
    pub dtype: RawDType,
    /// `ndim` sizes.
    pub shape: *mut i64,
    /// `ndim` strides in elements; null for a compact row-major tensor.
    pub strides: *mut i64,
    /// Bytes from `data` to the first element.
    pub byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
#[derive(Debug)]
pub struct ManagedTensor {
    /// The tensor.
    pub tensor: RawTensor,
    /// The exporter's own.
    pub manager: *mut c_void,
    /// Frees the tensor and this structure; null where there is nothing to free.
    pub deleter: Option<unsafe extern "C" fn(*mut ManagedTensor)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
#[derive(Debug)]
pub struct ManagedTensorVersioned {
    /// Version of the structure; with another major one only the deleter may be used.
    pub version: Version,
    /// The exporter's own.
    pub manager: *mut c_void,
    /// Frees the tensor and this structure; null where there is nothing to free.
    pub deleter: Option<unsafe extern "C" fn(*mut ManagedTensorVersioned)>,
    /// [`FLAG_READ_ONLY`](super::FLAG_READ_ONLY) and others.
    pub flags: u64,
    /// The tensor.
    pub tensor: RawTensor,
}
