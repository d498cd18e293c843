//! The driver's types, as plain integers and pointers: no enum of a certain CUDA version.

use std::ffi::{c_char, c_void};

/// `CUresult`; 0 is success.
pub type Code = i32;
/// `CUdevice`: an ordinal.
pub type Device = i32;
/// `CUcontext`.
pub type Context = *mut c_void;
/// `CUmodule`.
pub type Module = *mut c_void;
/// `CUfunction`.
pub type Function = *mut c_void;
/// `CUstream`; null is the default stream.
pub type Stream = *mut c_void;
/// `CUevent`.
pub type Event = *mut c_void;
/// `CUdeviceptr`.
pub type DevicePtr = u64;

/// `CUDA_SUCCESS`.
pub const SUCCESS: Code = 0;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub const ERROR_OUT_OF_MEMORY: Code = 2;
/// `CUDA_ERROR_NOT_INITIALIZED`.
pub const ERROR_NOT_INITIALIZED: Code = 3;
/// `CUDA_ERROR_NO_DEVICE`.
pub const ERROR_NO_DEVICE: Code = 100;
/// `CUDA_ERROR_INVALID_CONTEXT`.
pub const ERROR_INVALID_CONTEXT: Code = 201;
/// `CUDA_ERROR_NO_BINARY_FOR_GPU`.
pub const ERROR_NO_BINARY_FOR_GPU: Code = 209;
/// `CUDA_ERROR_ILLEGAL_ADDRESS`.
pub const ERROR_ILLEGAL_ADDRESS: Code = 700;
/// `CUDA_ERROR_NOT_FOUND`.
pub const ERROR_NOT_FOUND: Code = 500;

/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
pub const ATTRIBUTE_MULTIPROCESSORS: i32 = 16;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR`.
pub const ATTRIBUTE_CAPABILITY_MAJOR: i32 = 75;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR`.
pub const ATTRIBUTE_CAPABILITY_MINOR: i32 = 76;
/// `CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN`.
pub const ATTRIBUTE_MAX_SHARED_OPTIN: i32 = 97;

/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
pub const FUNCTION_MAX_DYNAMIC_SHARED: i32 = 8;

/// `CU_POINTER_ATTRIBUTE_CONTEXT`.
pub const POINTER_ATTRIBUTE_CONTEXT: i32 = 1;
/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`.
pub const POINTER_ATTRIBUTE_MEMORY_TYPE: i32 = 2;
/// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`.
pub const POINTER_ATTRIBUTE_DEVICE_ORDINAL: i32 = 9;

/// `CU_JIT_INFO_LOG_BUFFER`.
pub const JIT_INFO_LOG_BUFFER: i32 = 3;
/// `CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES`.
pub const JIT_INFO_LOG_BUFFER_SIZE: i32 = 4;
/// `CU_JIT_ERROR_LOG_BUFFER`.
pub const JIT_ERROR_LOG_BUFFER: i32 = 5;
/// `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`.
pub const JIT_ERROR_LOG_BUFFER_SIZE: i32 = 6;

/// `CU_STREAM_CAPTURE_STATUS_NONE`.
pub const CAPTURE_STATUS_NONE: i32 = 0;

/// `CU_TENSOR_MAP_DATA_TYPE_UINT16`: bits are copied, never read as numbers, so it serves f16 and bf16.
pub const TENSOR_MAP_UINT16: i32 = 1;
/// `CU_TENSOR_MAP_INTERLEAVE_NONE`.
pub const TENSOR_MAP_INTERLEAVE_NONE: i32 = 0;
/// `CU_TENSOR_MAP_SWIZZLE_128B`.
pub const TENSOR_MAP_SWIZZLE_128B: i32 = 3;
/// `CU_TENSOR_MAP_L2_PROMOTION_L2_256B`.
pub const TENSOR_MAP_L2_PROMOTION_256B: i32 = 3;
/// `CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE`: what lies outside arrives as zeros.
pub const TENSOR_MAP_FILL_ZEROS: i32 = 0;

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchConfig {
    /// Blocks of the grid.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// The stream.
    pub stream: Stream,
    /// Further attributes (`CUlaunchAttribute`), or null.
    pub attributes: *const c_void,
    /// How many of them there are.
    pub attribute_count: u32,
}

/// A C string that the driver owns.
pub type Text = *const c_char;

/// `CU_STREAM_NON_BLOCKING`.
pub const STREAM_NON_BLOCKING: u32 = 1;
/// `CU_STREAM_LEGACY`: the default stream by another name.
pub const STREAM_LEGACY: Stream = 1 as Stream;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
pub const CAPTURE_MODE_RELAXED: i32 = 2;
/// `CU_EVENT_DISABLE_TIMING`.
pub const EVENT_DISABLE_TIMING: u32 = 2;
