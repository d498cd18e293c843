//! The driver's symbols that the crate `cust` links against, as jumps into the driver.
//!
//! cust declares the functions of CUDA 11.4 as externs and links `-lcuda`, which asks for a toolkit at build time and
//! for a driver when the program starts. Here each of them is one indirect jump through a private table. [`cuInit`],
//! which has to be the first call anyway, opens the driver and fills the table. Until then, or without a driver, every
//! entry answers `CUDA_ERROR_NOT_INITIALIZED`.
//!
//! Only the functions in the list exist. A program that calls others gets an error from its linker; add them here.

use crate::{Code, ERROR_NOT_INITIALIZED, NoDriver, SUCCESS, Text};
use std::ffi::c_void;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, Ordering};

/// `CUDA_ERROR_NOT_SUPPORTED`.
const ERROR_NOT_SUPPORTED: Code = 801;

/// What an entry holds before the driver is open.
extern "C" fn not_initialized() -> Code {
    ERROR_NOT_INITIALIZED
}

/// What an entry holds if the driver lacks the function.
extern "C" fn not_supported() -> Code {
    ERROR_NOT_SUPPORTED
}

macro_rules! forward {
    ($($name:ident,)*) => {
        const NAMES: &[&str] = &[$(concat!(stringify!($name), "\0")),*];

        static TABLE: [AtomicPtr<c_void>; NAMES.len()] =
            [const { AtomicPtr::new(not_initialized as extern "C" fn() -> Code as *mut c_void) }; NAMES.len()];

        forward!(@jumps 0usize; $($name)*);
    };
    (@jumps $index:expr; $name:ident $($rest:ident)*) => {
        jump!($name, $index);
        forward!(@jumps $index + 1; $($rest)*);
    };
    (@jumps $index:expr;) => {};
}

/// Defines the symbol `$name` as a jump to entry `$index` of the table. Hidden, so that no shared library exports it.
#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    ($name:ident, $index:expr) => {
        std::arch::global_asm!(
            concat!(".globl ", stringify!($name)),
            concat!(".hidden ", stringify!($name)),
            concat!(".type ", stringify!($name), ", @function"),
            concat!(stringify!($name), ":"),
            "jmpq *{table} + 8 * {index}(%rip)",
            table = sym TABLE,
            index = const $index,
            options(att_syntax)
        );
    };
}

/// Defines the symbol `$name` as a jump to entry `$index` of the table; x16 is the scratch register for such jumps.
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    ($name:ident, $index:expr) => {
        std::arch::global_asm!(
            concat!(".globl ", stringify!($name)),
            concat!(".hidden ", stringify!($name)),
            concat!(".type ", stringify!($name), ", @function"),
            concat!(stringify!($name), ":"),
            "adrp x16, {table} + 8 * {index}",
            "ldr x16, [x16, :lo12:{table} + 8 * {index}]",
            "br x16",
            table = sym TABLE,
            index = const $index,
        );
    };
}

forward! {
    cuArray3DCreate_v2,
    cuArray3DGetDescriptor_v2,
    cuArrayDestroy,
    cuCtxCreate_v2,
    cuCtxDestroy_v2,
    cuCtxGetApiVersion,
    cuCtxGetCacheConfig,
    cuCtxGetCurrent,
    cuCtxGetDevice,
    cuCtxGetFlags,
    cuCtxGetLimit,
    cuCtxGetSharedMemConfig,
    cuCtxGetStreamPriorityRange,
    cuCtxPopCurrent_v2,
    cuCtxPushCurrent_v2,
    cuCtxSetCacheConfig,
    cuCtxSetCurrent,
    cuCtxSetLimit,
    cuCtxSetSharedMemConfig,
    cuCtxSynchronize,
    cuDestroyExternalMemory,
    cuDeviceGet,
    cuDeviceGetAttribute,
    cuDeviceGetCount,
    cuDeviceGetName,
    cuDevicePrimaryCtxRelease_v2,
    cuDevicePrimaryCtxReset_v2,
    cuDevicePrimaryCtxRetain,
    cuDevicePrimaryCtxSetFlags_v2,
    cuDeviceTotalMem_v2,
    cuDriverGetVersion,
    cuEventCreate,
    cuEventDestroy_v2,
    cuEventElapsedTime,
    cuEventQuery,
    cuEventRecord,
    cuEventSynchronize,
    cuExternalMemoryGetMappedBuffer,
    cuFuncGetAttribute,
    cuFuncSetCacheConfig,
    cuFuncSetSharedMemConfig,
    cuGraphAddKernelNode,
    cuGraphCreate,
    cuGraphDebugDotPrint,
    cuGraphDestroy,
    cuGraphGetEdges,
    cuGraphGetNodes,
    cuGraphKernelNodeGetParams,
    cuGraphNodeGetType,
    cuImportExternalMemory,
    cuLaunchHostFunc,
    cuLaunchKernel,
    cuLinkAddData_v2,
    cuLinkComplete,
    cuLinkCreate_v2,
    cuLinkDestroy,
    cuMemAdvise,
    cuMemAllocAsync,
    cuMemAllocHost_v2,
    cuMemAllocManaged,
    cuMemAlloc_v2,
    cuMemFreeAsync,
    cuMemFreeHost,
    cuMemFree_v2,
    cuMemGetInfo_v2,
    cuMemPrefetchAsync,
    cuMemcpy2D_v2,
    cuMemcpyAtoH_v2,
    cuMemcpyDtoDAsync_v2,
    cuMemcpyDtoD_v2,
    cuMemcpyDtoHAsync_v2,
    cuMemcpyDtoH_v2,
    cuMemcpyHtoA_v2,
    cuMemcpyHtoDAsync_v2,
    cuMemcpyHtoD_v2,
    cuMemsetD16Async,
    cuMemsetD16_v2,
    cuMemsetD32Async,
    cuMemsetD32_v2,
    cuMemsetD8Async,
    cuMemsetD8_v2,
    cuModuleGetFunction,
    cuModuleGetGlobal_v2,
    cuModuleLoad,
    cuModuleLoadData,
    cuModuleLoadDataEx,
    cuModuleUnload,
    cuOccupancyAvailableDynamicSMemPerBlock,
    cuOccupancyMaxActiveBlocksPerMultiprocessor,
    cuOccupancyMaxPotentialBlockSize,
    cuStreamCreateWithPriority,
    cuStreamDestroy_v2,
    cuStreamGetFlags,
    cuStreamGetPriority,
    cuStreamSynchronize,
    cuStreamWaitEvent,
    cuSurfObjectCreate,
    cuSurfObjectDestroy,
    cuSurfObjectGetResourceDesc,
    cuTexObjectCreate,
    cuTexObjectDestroy,
    cuTexObjectGetResourceDesc,
    cuTexObjectGetResourceViewDesc,
}

/// The driver's `cuInit`, behind the opening of the driver; `CUDA_ERROR_NO_DEVICE` where there is none.
///
/// # Safety
/// None is asked for; the driver's signature is unsafe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuInit(flags: u32) -> Code {
    static FILL: Once = Once::new();
    match crate::driver() {
        Ok(functions) => {
            FILL.call_once(fill);
            // SAFETY: cuInit may be called at any time.
            unsafe { (functions.cuInit)(flags) }
        }
        Err(NoDriver::NotStarted { code, .. }) => code,
        Err(_) => crate::ERROR_NO_DEVICE,
    }
}

/// The driver's `cuGetErrorString`. cust prints errors with it, so without a driver it has texts of its own.
///
/// # Safety
/// `text` is a place for the answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(code: Code, text: *mut Text) -> Code {
    match crate::driver() {
        // SAFETY: the caller's promise.
        Ok(functions) => unsafe { (functions.cuGetErrorString)(code, text) },
        Err(_) => {
            let own = match code {
                crate::ERROR_NO_DEVICE => c"no NVIDIA driver or no device found",
                _ => c"the NVIDIA driver is not initialised",
            };
            // SAFETY: the caller's promise.
            unsafe { *text = own.as_ptr() };
            SUCCESS
        }
    }
}

/// Puts the driver's functions into the table.
fn fill() {
    for (name, entry) in NAMES.iter().zip(&TABLE) {
        let found = crate::functions::find(name);
        let missing = not_supported as extern "C" fn() -> Code as *mut c_void;
        entry.store(found.unwrap_or(missing), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" {
        fn cuDeviceGetCount(count: *mut i32) -> Code;
        fn cuTexObjectGetResourceViewDesc(description: *mut c_void, object: u64) -> Code;
    }

    #[test]
    fn without_a_driver_every_function_says_so() {
        if crate::driver().is_ok() {
            eprintln!("SKIPPED: this machine has a driver");
            return;
        }
        let (mut count, mut text) = (-1, std::ptr::null());
        // SAFETY: nothing is read or written where there is no driver, but the text.
        unsafe {
            assert_eq!(cuDeviceGetCount(&mut count), ERROR_NOT_INITIALIZED);
            assert_eq!(cuInit(0), crate::ERROR_NO_DEVICE);
            assert_eq!(cuDeviceGetCount(&mut count), ERROR_NOT_INITIALIZED);
            assert_eq!(cuTexObjectGetResourceViewDesc(std::ptr::null_mut(), 0), ERROR_NOT_INITIALIZED);
            assert_eq!(cuGetErrorString(crate::ERROR_NO_DEVICE, &mut text), SUCCESS);
            assert_eq!(std::ffi::CStr::from_ptr(text), c"no NVIDIA driver or no device found");
        }
        assert_eq!(count, -1);
    }

    #[test]
    fn with_a_driver_the_calls_arrive() {
        let Ok(functions) = crate::driver() else {
            eprintln!("SKIPPED: this machine has no driver");
            return;
        };
        let (mut direct, mut forwarded) = (-1, -2);
        // SAFETY: places for the answers.
        unsafe {
            assert_eq!(cuInit(0), SUCCESS);
            assert_eq!((functions.cuDeviceGetCount)(&mut direct), SUCCESS);
            assert_eq!(cuDeviceGetCount(&mut forwarded), SUCCESS);
        }
        assert_eq!(direct, forwarded);
    }
}
