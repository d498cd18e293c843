//! The table of driver functions.

use crate::types::{Code, Context, Device, DevicePtr, Event, Function, LaunchConfig, Module, Stream, Text};
use crate::watch::{WATCHED, Watched, Watcher, watching};
use crate::{NoDriver, SUCCESS};
use libloading::Library;
use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;

/// Declares the table once: its fields, and how each is found. The symbol differs from the field's name where the
/// driver keeps an older version of the function under the plain name.
macro_rules! functions {
    ($($field:ident = $symbol:literal ($($argument:ty),*);)*) => {
        /// The driver's functions, under the names that `cuda.h` gives them.
        ///
        /// All fields are public, so that a test can put its own functions in the table.
        #[allow(non_snake_case, reason = "the names are the driver's")]
        #[derive(Clone, Copy)]
        pub struct Functions {
            $(#[doc = concat!("`", $symbol, "`.")]
            pub $field: unsafe extern "C" fn($($argument),*) -> Code,)*
        }

        impl Functions {
            /// A table in which every function answers `CUDA_ERROR_NOT_INITIALIZED`: what a test starts from that
            /// puts functions of its own in it.
            pub const fn absent() -> Self {
                Functions { $($field: {
                    unsafe extern "C" fn absent($(_: $argument),*) -> Code {
                        crate::ERROR_NOT_INITIALIZED
                    }
                    absent
                },)* }
            }

            /// A table that tells `watcher` of each call and passes it on to this one. The first such table of the
            /// process is the one that counts.
            pub(crate) fn watched(self, watcher: Watcher) -> Self {
                WATCHED.get_or_init(|| Watched { functions: self, watcher });
                Functions { $($field: watching!($field ($($argument),*)),)* }
            }

            /// Finds every function in `library`.
            ///
            /// # Safety
            /// `library` is the CUDA driver and is never unloaded.
            unsafe fn find(library: &Library) -> Result<Self, NoDriver> {
                Ok(Functions { $($field: {
                    // SAFETY: the driver's function of that name has this signature.
                    match unsafe { library.get(concat!($symbol, "\0").as_bytes()) } {
                        Ok(symbol) => *symbol,
                        Err(_) => return Err(NoDriver::TooOld($symbol)),
                    }
                },)* })
            }
        }
    };
}

functions! {
    cuInit = "cuInit" (u32);
    cuDriverGetVersion = "cuDriverGetVersion" (*mut i32);
    cuGetErrorName = "cuGetErrorName" (Code, *mut Text);
    cuGetErrorString = "cuGetErrorString" (Code, *mut Text);

    cuDeviceGetCount = "cuDeviceGetCount" (*mut i32);
    cuDeviceGet = "cuDeviceGet" (*mut Device, i32);
    cuDeviceGetName = "cuDeviceGetName" (*mut c_char, i32, Device);
    cuDeviceGetAttribute = "cuDeviceGetAttribute" (*mut i32, i32, Device);
    cuDeviceTotalMem = "cuDeviceTotalMem_v2" (*mut usize, Device);
    cuDevicePrimaryCtxRetain = "cuDevicePrimaryCtxRetain" (*mut Context, Device);
    cuDevicePrimaryCtxRelease = "cuDevicePrimaryCtxRelease_v2" (Device);

    cuCtxGetCurrent = "cuCtxGetCurrent" (*mut Context);
    cuCtxSetCurrent = "cuCtxSetCurrent" (Context);
    cuCtxPushCurrent = "cuCtxPushCurrent_v2" (Context);
    cuCtxPopCurrent = "cuCtxPopCurrent_v2" (*mut Context);
    cuCtxGetDevice = "cuCtxGetDevice" (*mut Device);
    cuCtxGetId = "cuCtxGetId" (Context, *mut u64);
    cuCtxSynchronize = "cuCtxSynchronize" ();

    cuModuleLoadDataEx = "cuModuleLoadDataEx" (*mut Module, *const c_void, u32, *mut i32, *mut *mut c_void);
    cuModuleUnload = "cuModuleUnload" (Module);
    cuModuleGetFunction = "cuModuleGetFunction" (*mut Function, Module, *const c_char);
    cuFuncSetAttribute = "cuFuncSetAttribute" (Function, i32, i32);
    cuLaunchKernelEx = "cuLaunchKernelEx" (*const LaunchConfig, Function, *mut *mut c_void, *mut *mut c_void);
    cuTensorMapEncodeTiled = "cuTensorMapEncodeTiled" (*mut [u64; 16], i32, u32, DevicePtr, *const u64, *const u64, *const u32, *const u32, i32, i32, i32, i32);

    cuMemAlloc = "cuMemAlloc_v2" (*mut DevicePtr, usize);
    cuMemFree = "cuMemFree_v2" (DevicePtr);
    cuMemGetInfo = "cuMemGetInfo_v2" (*mut usize, *mut usize);
    cuMemcpyHtoD = "cuMemcpyHtoD_v2" (DevicePtr, *const c_void, usize);
    cuMemcpyDtoH = "cuMemcpyDtoH_v2" (*mut c_void, DevicePtr, usize);
    cuMemcpyHtoDAsync = "cuMemcpyHtoDAsync_v2" (DevicePtr, *const c_void, usize, Stream);
    cuMemcpyDtoHAsync = "cuMemcpyDtoHAsync_v2" (*mut c_void, DevicePtr, usize, Stream);
    cuMemcpyDtoDAsync = "cuMemcpyDtoDAsync_v2" (DevicePtr, DevicePtr, usize, Stream);
    cuMemsetD8 = "cuMemsetD8_v2" (DevicePtr, u8, usize);
    cuMemsetD8Async = "cuMemsetD8Async" (DevicePtr, u8, usize, Stream);
    cuMemsetD32 = "cuMemsetD32_v2" (DevicePtr, u32, usize);
    cuMemsetD32Async = "cuMemsetD32Async" (DevicePtr, u32, usize, Stream);
    cuPointerGetAttribute = "cuPointerGetAttribute" (*mut c_void, i32, DevicePtr);

    cuStreamCreate = "cuStreamCreate" (*mut Stream, u32);
    cuStreamDestroy = "cuStreamDestroy_v2" (Stream);
    cuStreamSynchronize = "cuStreamSynchronize" (Stream);
    cuStreamIsCapturing = "cuStreamIsCapturing" (Stream, *mut i32);
    cuThreadExchangeStreamCaptureMode = "cuThreadExchangeStreamCaptureMode" (*mut i32);
    cuStreamWaitEvent = "cuStreamWaitEvent" (Stream, Event, u32);
    cuStreamBeginCapture = "cuStreamBeginCapture_v2" (Stream, i32);
    cuStreamEndCapture = "cuStreamEndCapture" (Stream, *mut *mut c_void);
    cuGraphInstantiate = "cuGraphInstantiateWithFlags" (*mut *mut c_void, *mut c_void, u64);
    cuGraphLaunch = "cuGraphLaunch" (*mut c_void, Stream);
    cuGraphExecDestroy = "cuGraphExecDestroy" (*mut c_void);
    cuGraphDestroy = "cuGraphDestroy" (*mut c_void);

    cuEventCreate = "cuEventCreate" (*mut Event, u32);
    cuEventRecord = "cuEventRecord" (Event, Stream);
    cuEventSynchronize = "cuEventSynchronize" (Event);
    cuEventElapsedTime = "cuEventElapsedTime" (*mut f32, Event, Event);
    cuEventDestroy = "cuEventDestroy_v2" (Event);
}

impl Functions {
    /// Opens the driver's library and finds the functions; calls none of them.
    pub(crate) fn open() -> Result<Self, NoDriver> {
        // SAFETY: libcuda.so.1 is the driver and stays open.
        unsafe { Self::find(library()?) }
    }

    /// The name of a code, `CUDA_ERROR_…`.
    pub fn error_name(&self, code: Code) -> String {
        text(code, self.cuGetErrorName)
    }

    /// The driver's description of a code.
    pub fn error_text(&self, code: Code) -> String {
        text(code, self.cuGetErrorString)
    }
}

/// The driver's library; open as long as the process lives, because the tables are used as long.
fn library() -> Result<&'static Library, NoDriver> {
    static LIBRARY: OnceLock<Result<Library, NoDriver>> = OnceLock::new();
    // SAFETY: libcuda has no constructors that ask anything of us.
    let open = || unsafe { Library::new("libcuda.so.1") }.map_err(|error| NoDriver::NotFound(words(&error)));
    LIBRARY.get_or_init(open).as_ref().map_err(Clone::clone)
}

/// What the loader itself says: which file, and why not.
fn words(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// The address of the driver's function `name`, which ends with a NUL.
#[cfg(all(feature = "forward", target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) fn find(name: &str) -> Option<*mut c_void> {
    // SAFETY: the address is only taken here.
    let symbol = unsafe { library().ok()?.get::<*mut c_void>(name.as_bytes()) };
    symbol.ok().map(|symbol| *symbol)
}

fn text(code: Code, ask: unsafe extern "C" fn(Code, *mut Text) -> Code) -> String {
    let mut text: Text = std::ptr::null();
    // SAFETY: `text` is a place for the answer; the call needs no initialised driver.
    let answer = unsafe { ask(code, &mut text) };
    if answer != SUCCESS || text.is_null() {
        return "an unknown error".to_owned();
    }
    // SAFETY: a NUL-terminated text of the driver that lives as long as the library.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
