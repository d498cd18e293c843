//! Loaded kernels: what this process keeps for each CUDA context.
//!
//! A kernel is loaded when it is first needed in a context, and stays. A context is known by the driver's own number
//! for it, which is never given twice, so that a context at a dead one's address starts afresh.

use crate::counters::Counters;
use crate::embedded;
use crate::error::{Error, Result};
use crate::launch::RawStream;
use crate::plan::{Entry, GpuProperties};
use crate::workspace::Workspace;
use flash_attention_driver as driver;
use flash_attention_driver::{Code, Functions, SUCCESS};
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock};

/// The driver's functions.
pub(crate) fn driver_functions() -> Result<&'static Functions> {
    driver::driver().map_err(Error::no_driver)
}

/// Turns a driver's code into a result.
pub(crate) fn check(driver: &Functions, call: &'static str, code: Code) -> Result<()> {
    if code == SUCCESS { Ok(()) } else { Err(Error::driver(driver, call, code)) }
}

/// Whether what is put into `stream` becomes part of a graph.
pub(crate) fn is_capturing(driver: &Functions, stream: RawStream) -> Result<bool> {
    // The default stream cannot be captured, and asking about it while another one is would end that capture.
    let mut status = driver::CAPTURE_STATUS_NONE;
    if !stream.is_null() && stream != driver::STREAM_LEGACY {
        // SAFETY: a place for the answer; the caller vouches for the stream.
        let code = unsafe { (driver.cuStreamIsCapturing)(stream, &mut status) };
        check(driver, "cuStreamIsCapturing", code)?;
    }
    Ok(status != driver::CAPTURE_STATUS_NONE)
}

/// A kernel that is loaded and ready to be launched in its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kernel(driver::Function);

// SAFETY: a function handle may be used from any thread.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// The driver's handle.
    pub(crate) fn function(self) -> driver::Function {
        self.0
    }
}

/// Where the code of a kernel comes from: the build's own kernels, or a test's.
pub(crate) struct Source {
    /// Machine code for the entry's own architecture, if there is any.
    pub(crate) cubin: fn(&str) -> Option<Vec<u8>>,
    /// The PTX text.
    pub(crate) ptx: fn(&str) -> Result<Vec<u8>>,
}

/// What the build embedded.
pub(crate) const EMBEDDED: Source = Source { cubin: embedded::cubin, ptx: embedded::ptx };

/// What this process keeps for one context.
pub(crate) struct Context {
    driver: &'static Functions,
    gpu: GpuProperties,
    source: Source,
    kernels: RwLock<HashMap<&'static str, Kernel>>,
    /// Held while a kernel is loaded, so that two threads do not load the same one.
    loading: Mutex<()>,
    counters: OnceLock<Counters>,
    workspace: Workspace,
}

impl Context {
    /// The state of the context that is current on this thread.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where none is.
    pub(crate) fn current(driver: &'static Functions) -> Result<&'static Context> {
        static CONTEXTS: RwLock<Option<HashMap<u64, &'static Context>>> = RwLock::new(None);
        let mut handle: driver::Context = std::ptr::null_mut();
        // SAFETY: a place for the answer.
        check(driver, "cuCtxGetCurrent", unsafe { (driver.cuCtxGetCurrent)(&mut handle) })?;
        if handle.is_null() {
            return Err(Error::unavailable(
                "no CUDA context is current on this thread",
                "make the context of the tensors current before the call",
            ));
        }
        let mut id = 0;
        // SAFETY: the handle is the current context's.
        check(driver, "cuCtxGetId", unsafe { (driver.cuCtxGetId)(handle, &mut id) })?;
        let known = CONTEXTS.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = known.as_ref().and_then(|contexts| contexts.get(&id)) {
            return Ok(context);
        }
        drop(known);
        let mut contexts = CONTEXTS.write().unwrap_or_else(PoisonError::into_inner);
        let contexts = contexts.get_or_insert_default();
        if let Some(context) = contexts.get(&id) {
            return Ok(context);
        }
        // Kept for the life of the process: a few hundred bytes a context.
        let context: &'static Context = Box::leak(Box::new(Context::new(driver, EMBEDDED)?));
        contexts.insert(id, context);
        Ok(context)
    }

    /// The state of the current context, with nothing loaded.
    pub(crate) fn new(driver: &'static Functions, source: Source) -> Result<Self> {
        let mut device = 0;
        // SAFETY: a place for the answer.
        check(driver, "cuCtxGetDevice", unsafe { (driver.cuCtxGetDevice)(&mut device) })?;
        Ok(Context {
            driver,
            gpu: gpu_properties(driver, device)?,
            source,
            kernels: RwLock::default(),
            loading: Mutex::new(()),
            counters: OnceLock::new(),
            workspace: Workspace::default(),
        })
    }

    /// The driver.
    pub(crate) fn driver(&self) -> &'static Functions {
        self.driver
    }

    /// The context's GPU.
    pub(crate) fn gpu(&self) -> &GpuProperties {
        &self.gpu
    }

    /// The context's work counters, made at the first use.
    pub(crate) fn counters(&self) -> Result<&Counters> {
        if let Some(counters) = self.counters.get() {
            return Ok(counters);
        }
        let _one_at_a_time = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        let _relaxed = CaptureRelaxed::enter(self.driver)?;
        if self.counters.get().is_none() {
            let made = Counters::new(self.driver)?;
            return Ok(self.counters.get_or_init(|| made));
        }
        Ok(self.counters.get().expect("set above or by the thread before"))
    }

    /// The context's workspace for scores.
    pub(crate) fn workspace(&self) -> &Workspace {
        &self.workspace
    }

    /// The kernel of `entry`, loaded into the current context if it is not yet.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where the build lacks it, [`Error::Driver`] where the driver refuses its code.
    pub(crate) fn kernel(&self, entry: &Entry) -> Result<Kernel> {
        let loaded = || self.kernels.read().unwrap_or_else(PoisonError::into_inner).get(entry.name).copied();
        if let Some(kernel) = loaded() {
            return Ok(kernel);
        }
        let _one_at_a_time = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = loaded() {
            return Ok(kernel);
        }
        let _relaxed = CaptureRelaxed::enter(self.driver)?;
        let kernel = self.load(entry)?;
        self.kernels.write().unwrap_or_else(PoisonError::into_inner).insert(entry.name, kernel);
        Ok(kernel)
    }

    fn load(&self, entry: &Entry) -> Result<Kernel> {
        let started = std::time::Instant::now();
        let from_ptx = || Ok((self.load_ptx(entry)?, "PTX"));
        let (kernel, from) = match self.own_cubin(entry) {
            Some(cubin) => match self.load_image(entry, &cubin) {
                Ok(kernel) => (kernel, "cubin"),
                Err(error) => {
                    tracing::warn!(kernel = entry.name, %error, "the driver refuses the cubin; using the PTX");
                    from_ptx()?
                }
            },
            None => from_ptx()?,
        };
        tracing::info!(kernel = entry.name, from, elapsed = ?started.elapsed(), "loaded a kernel");
        Ok(kernel)
    }

    /// The entry's machine code, if there is any and this GPU is of exactly its architecture.
    fn own_cubin(&self, entry: &Entry) -> Option<Vec<u8>> {
        let (major, minor) = self.gpu.capability;
        let digits = entry.arch().trim_start_matches("sm_").trim_end_matches('a');
        (digits == format!("{major}{minor}")).then(|| (self.source.cubin)(entry.name)).flatten()
    }

    fn load_ptx(&self, entry: &Entry) -> Result<Kernel> {
        let mut ptx = (self.source.ptx)(entry.name)?;
        ptx.push(0);
        self.load_image(entry, &ptx)
    }

    /// Loads an image as [`load_module`](Self::load_module) and finds the entry in it.
    fn load_image(&self, entry: &Entry, image: &[u8]) -> Result<Kernel> {
        let module = self.load_module(image)?;
        let name = CString::new(entry.name).expect("entry names are plain identifiers");
        let mut function: driver::Function = std::ptr::null_mut();
        // SAFETY: the module was just loaded; the name is NUL-terminated.
        let code = unsafe { (self.driver.cuModuleGetFunction)(&mut function, module, name.as_ptr()) };
        check(self.driver, "cuModuleGetFunction", code)?;
        // SAFETY: the function was just found.
        let code = unsafe {
            (self.driver.cuFuncSetAttribute)(
                function,
                driver::FUNCTION_MAX_DYNAMIC_SHARED,
                entry.shared_bytes as i32,
            )
        };
        check(self.driver, "cuFuncSetAttribute", code)?;
        Ok(Kernel(function))
    }

    /// Loads a cubin, or PTX that ends with a NUL; the driver's compiler log becomes part of an error.
    fn load_module(&self, image: &[u8]) -> Result<driver::Module> {
        const LOG_BYTES: usize = 4096;
        let mut log = [0u8; LOG_BYTES];
        let mut options = [driver::JIT_ERROR_LOG_BUFFER, driver::JIT_ERROR_LOG_BUFFER_SIZE];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), LOG_BYTES as *mut c_void];
        let mut module: driver::Module = std::ptr::null_mut();
        // SAFETY: the image is a whole cubin or a NUL-terminated text; options and values are pairs, and the log's
        // size is the buffer's.
        let code = unsafe {
            (self.driver.cuModuleLoadDataEx)(
                &mut module,
                image.as_ptr().cast(),
                options.len() as u32,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        check(self.driver, "cuModuleLoadDataEx", code).map(|()| module).map_err(|error| {
            let end = log.iter().position(|&byte| byte == 0).unwrap_or(LOG_BYTES);
            error.with_log(&String::from_utf8_lossy(&log[..end]))
        })
    }
}

/// While it lives, this thread may load code and allocate memory though one of its streams is being captured.
pub(crate) struct CaptureRelaxed {
    driver: &'static Functions,
    before: i32,
}

impl CaptureRelaxed {
    pub(crate) fn enter(driver: &'static Functions) -> Result<Self> {
        let mut mode = driver::CAPTURE_MODE_RELAXED;
        // SAFETY: the mode is swapped for the thread's own.
        let code = unsafe { (driver.cuThreadExchangeStreamCaptureMode)(&mut mode) };
        check(driver, "cuThreadExchangeStreamCaptureMode", code)?;
        Ok(CaptureRelaxed { driver, before: mode })
    }
}

impl Drop for CaptureRelaxed {
    fn drop(&mut self) {
        // SAFETY: the mode was this thread's before.
        unsafe { (self.driver.cuThreadExchangeStreamCaptureMode)(&mut self.before) };
    }
}

/// What a plan has to know about a device.
pub(crate) fn gpu_properties(driver: &Functions, device: driver::Device) -> Result<GpuProperties> {
    let attribute = |which| {
        let mut value = 0;
        // SAFETY: a place for the answer; the driver checks the device.
        check(driver, "cuDeviceGetAttribute", unsafe {
            (driver.cuDeviceGetAttribute)(&mut value, which, device)
        })?;
        Ok(value as u32)
    };
    Ok(GpuProperties {
        capability: (
            attribute(driver::ATTRIBUTE_CAPABILITY_MAJOR)?,
            attribute(driver::ATTRIBUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: attribute(driver::ATTRIBUTE_MULTIPROCESSORS)?,
        max_shared: attribute(driver::ATTRIBUTE_MAX_SHARED_OPTIN)?,
    })
}

#[cfg(test)]
mod tests;
