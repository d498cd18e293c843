//! A driver for tests: a table of functions that note what they are asked, on a thread's own books.

use flash_attention_driver::{self as driver, Code, Functions, LaunchConfig, SUCCESS};
use flash_attention_kernels::params::{ForwardParams, Sm90Params};
use functions::*;
use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_void};

/// What the driver was asked on this thread, and how it answers.
#[derive(Default)]
pub(crate) struct Books {
    /// Calls by name, in order.
    pub calls: Vec<&'static str>,
    /// Tensor maps that were encoded.
    pub maps: Vec<Map>,
    /// Launches.
    pub launches: Vec<LaunchConfig>,
    /// Parameters of the launches of Hopper kernels.
    pub sm90: Vec<Sm90Params>,
    /// Parameters of the others.
    pub plain: Vec<ForwardParams>,
    /// Names of functions that were looked up.
    pub functions: Vec<String>,
    /// Whether images that begin with these bytes are refused.
    pub refuse: Option<&'static [u8]>,
    /// How many of the next functions that are looked up are not found.
    pub not_found: usize,
    /// Whether streams are being captured.
    pub capturing: bool,
    /// Bytes of each allocation.
    pub allocated: Vec<usize>,
    /// Bytes that are free; plenty where nobody says.
    pub free: Option<usize>,
}

/// What a tensor map was made from; 0 in the dimensions that it has not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Map {
    pub address: u64,
    dims: [u64; 5],
    strides: [u64; 4],
    boxes: [u32; 5],
}

impl Map {
    /// Notes are taken without allocating.
    pub fn new(address: u64, dims: &[u64], strides: &[u64], boxes: &[u32]) -> Self {
        let mut map = Map { address, ..Map::default() };
        map.dims[..dims.len()].copy_from_slice(dims);
        map.strides[..strides.len()].copy_from_slice(strides);
        map.boxes[..boxes.len()].copy_from_slice(boxes);
        map
    }
}

/// Threads of the Hopper kernels in the tests' table; no other kernel there has as many.
const SM90_THREADS: u32 = 384;

thread_local! {
    static BOOKS: RefCell<Books> = RefCell::default();
}

/// Opens this thread's books. Room is made first, so that taking notes allocates nothing.
pub(crate) fn books<R>(read: impl FnOnce(&mut Books) -> R) -> R {
    BOOKS.with_borrow_mut(|books| {
        books.calls.reserve(256);
        books.maps.reserve(64);
        books.launches.reserve(64);
        books.sm90.reserve(64);
        books.plain.reserve(64);
        read(books)
    })
}

/// A GPU with the figures of an H200.
pub(crate) static DRIVER: Functions = Functions {
    cuGetErrorName,
    cuGetErrorString,
    cuCtxGetDevice,
    cuDeviceGetAttribute,
    cuThreadExchangeStreamCaptureMode,
    cuMemAlloc,
    cuMemFree,
    cuMemGetInfo,
    cuEventCreate,
    cuEventRecord,
    cuEventSynchronize,
    cuStreamCreate,
    cuStreamWaitEvent,
    cuMemsetD32Async,
    cuStreamSynchronize,
    cuStreamDestroy,
    cuStreamIsCapturing,
    cuModuleLoadDataEx,
    cuModuleGetFunction,
    cuFuncSetAttribute,
    cuTensorMapEncodeTiled,
    cuLaunchKernelEx,
    ..Functions::absent()
};

#[allow(non_snake_case, reason = "the names are the driver's")]
mod functions {
    use super::*;

    fn note(call: &'static str) -> Code {
        books(|books| books.calls.push(call));
        SUCCESS
    }

    /// Notes the call and puts the answer in its place.
    unsafe fn answer<T>(call: &'static str, place: *mut T, value: T) -> Code {
        // SAFETY: the library hands over a place for the answer.
        unsafe { place.write(value) };
        note(call)
    }

    pub unsafe extern "C" fn cuGetErrorName(_: Code, place: *mut driver::Text) -> Code {
        // SAFETY: as the driver's.
        unsafe { answer("cuGetErrorName", place, c"CUDA_ERROR_INVALID_IMAGE".as_ptr()) }
    }

    pub unsafe extern "C" fn cuGetErrorString(_: Code, place: *mut driver::Text) -> Code {
        // SAFETY: as the driver's.
        unsafe { answer("cuGetErrorString", place, c"device kernel image is invalid".as_ptr()) }
    }

    pub unsafe extern "C" fn cuCtxGetDevice(place: *mut driver::Device) -> Code {
        // SAFETY: as the driver's.
        unsafe { answer("cuCtxGetDevice", place, 0) }
    }

    pub unsafe extern "C" fn cuDeviceGetAttribute(place: *mut i32, which: i32, _: driver::Device) -> Code {
        let gpu = crate::plan::tests::H200;
        let value = match which {
            driver::ATTRIBUTE_CAPABILITY_MAJOR => gpu.capability.0,
            driver::ATTRIBUTE_CAPABILITY_MINOR => gpu.capability.1,
            driver::ATTRIBUTE_MULTIPROCESSORS => gpu.multiprocessors,
            driver::ATTRIBUTE_MAX_SHARED_OPTIN => gpu.max_shared,
            _ => panic!("nobody needs attribute {which}"),
        };
        // SAFETY: as the driver's.
        unsafe { answer("cuDeviceGetAttribute", place, value as i32) }
    }

    pub unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(_: *mut i32) -> Code {
        note("cuThreadExchangeStreamCaptureMode")
    }

    pub unsafe extern "C" fn cuMemFree(_: u64) -> Code {
        note("cuMemFree")
    }

    pub unsafe extern "C" fn cuMemGetInfo(free: *mut usize, total: *mut usize) -> Code {
        // SAFETY: as the driver's.
        unsafe {
            free.write(books(|books| books.free).unwrap_or(1 << 40));
            answer("cuMemGetInfo", total, 1 << 40)
        }
    }

    pub unsafe extern "C" fn cuEventCreate(place: *mut driver::Event, _: u32) -> Code {
        // SAFETY: as the driver's.
        unsafe { answer("cuEventCreate", place, 0x33 as driver::Event) }
    }

    pub unsafe extern "C" fn cuEventRecord(_: driver::Event, _: driver::Stream) -> Code {
        note("cuEventRecord")
    }

    pub unsafe extern "C" fn cuEventSynchronize(_: driver::Event) -> Code {
        note("cuEventSynchronize")
    }

    pub unsafe extern "C" fn cuStreamWaitEvent(_: driver::Stream, _: driver::Event, _: u32) -> Code {
        note("cuStreamWaitEvent")
    }

    pub unsafe extern "C" fn cuMemAlloc(place: *mut u64, bytes: usize) -> Code {
        books(|books| books.allocated.push(bytes));
        // SAFETY: as the driver's.
        unsafe { answer("cuMemAlloc", place, 0x7000_0000) }
    }

    pub unsafe extern "C" fn cuStreamCreate(place: *mut driver::Stream, _: u32) -> Code {
        // SAFETY: as the driver's.
        unsafe { answer("cuStreamCreate", place, 0x77 as driver::Stream) }
    }

    pub unsafe extern "C" fn cuMemsetD32Async(_: u64, value: u32, _: usize, _: driver::Stream) -> Code {
        assert_eq!(value, 0);
        note("cuMemsetD32Async")
    }

    pub unsafe extern "C" fn cuStreamSynchronize(_: driver::Stream) -> Code {
        note("cuStreamSynchronize")
    }

    pub unsafe extern "C" fn cuStreamDestroy(_: driver::Stream) -> Code {
        note("cuStreamDestroy")
    }

    pub unsafe extern "C" fn cuStreamIsCapturing(_: driver::Stream, place: *mut i32) -> Code {
        let capturing = books(|books| books.capturing);
        // SAFETY: as the driver's.
        unsafe { answer("cuStreamIsCapturing", place, i32::from(capturing)) }
    }

    pub unsafe extern "C" fn cuModuleLoadDataEx(
        place: *mut driver::Module,
        image: *const c_void,
        count: u32,
        options: *mut i32,
        values: *mut *mut c_void,
    ) -> Code {
        // SAFETY: every image here is a NUL-terminated text, and the first option is the log.
        unsafe {
            let text = CStr::from_ptr(image.cast()).to_bytes();
            if books(|books| books.refuse.is_some_and(|start| text.starts_with(start))) {
                assert!(count >= 1 && *options == driver::JIT_ERROR_LOG_BUFFER);
                let log = c"ptxas fatal: line 3";
                (*values).cast::<c_char>().copy_from_nonoverlapping(log.as_ptr(), log.count_bytes() + 1);
                note("cuModuleLoadDataEx");
                return 200;
            }
            answer("cuModuleLoadDataEx", place, 0x11 as driver::Module)
        }
    }

    pub unsafe extern "C" fn cuModuleGetFunction(
        place: *mut driver::Function,
        _: driver::Module,
        name: *const c_char,
    ) -> Code {
        let found = books(|books| {
            let found = books.not_found == 0;
            books.not_found = books.not_found.saturating_sub(1);
            found
        });
        if !found {
            note("cuModuleGetFunction");
            return 500;
        }
        // SAFETY: a NUL-terminated name, and as the driver's.
        unsafe {
            let name = CStr::from_ptr(name).to_str().unwrap().to_owned();
            books(|books| books.functions.push(name));
            answer("cuModuleGetFunction", place, 0x22 as driver::Function)
        }
    }

    pub unsafe extern "C" fn cuFuncSetAttribute(_: driver::Function, which: i32, _: i32) -> Code {
        assert_eq!(which, driver::FUNCTION_MAX_DYNAMIC_SHARED);
        note("cuFuncSetAttribute")
    }

    pub unsafe extern "C" fn cuTensorMapEncodeTiled(
        map: *mut [u64; 16],
        element: i32,
        rank: u32,
        address: u64,
        dims: *const u64,
        strides: *const u64,
        boxes: *const u32,
        _steps: *const u32,
        _interleave: i32,
        swizzle: i32,
        _promotion: i32,
        _fill: i32,
    ) -> Code {
        assert_eq!((element, swizzle), (driver::TENSOR_MAP_UINT16, driver::TENSOR_MAP_SWIZZLE_128B));
        assert_eq!(map as usize % 64, 0);
        let rank = rank as usize;
        // SAFETY: a place for the map; as many dimensions and boxes as it says, one stride less.
        unsafe {
            map.write([address; 16]);
            let dims = std::slice::from_raw_parts(dims, rank);
            let strides = std::slice::from_raw_parts(strides, rank - 1);
            let map = Map::new(address, dims, strides, std::slice::from_raw_parts(boxes, rank));
            books(|books| books.maps.push(map));
        }
        note("cuTensorMapEncodeTiled")
    }

    pub unsafe extern "C" fn cuLaunchKernelEx(
        config: *const LaunchConfig,
        function: driver::Function,
        arguments: *mut *mut c_void,
        _: *mut *mut c_void,
    ) -> Code {
        assert_eq!(function, 0x22 as driver::Function);
        // SAFETY: a configuration and one argument, which is what kernels with so many threads take.
        books(|books| unsafe {
            books.launches.push(*config);
            match (*config).block[0] {
                SM90_THREADS => books.sm90.push(*(*arguments).cast()),
                _ => books.plain.push(*(*arguments).cast()),
            }
        });
        note("cuLaunchKernelEx")
    }
}
