//! Devices and streams: where attention runs, and in what order.

use crate::error::{Error, Result};
use crate::launch::RawStream;
use crate::module::{Context, check, driver_functions, gpu_properties};
use crate::plan::{self, Family, GpuProperties};
use flash_attention_driver as driver;
use flash_attention_driver::Functions;
use std::collections::HashMap;
use std::ffi::CStr;
use std::fmt;
use std::str::FromStr;
use std::sync::{OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Where attention runs.
///
/// ```
/// use flash_attention::Device;
/// assert_eq!("cuda:1".parse::<Device>()?, Device::Cuda(1));
/// assert_eq!(Device::Cpu.to_string(), "cpu");
/// # Ok::<(), flash_attention::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Device {
    /// This machine's CPU.
    Cpu,
    /// The GPU of that ordinal, in its primary context (the one that the CUDA runtime and PyTorch use).
    Cuda(usize),
}

impl Device {
    /// The first GPU that has kernels here, or else the CPU.
    ///
    /// The variable `FLASH_ATTENTION_DEVICE` (`cpu`, `cuda`, `cuda:1`, …) overrides the choice.
    ///
    /// ```
    /// use flash_attention::Device;
    /// let device = Device::auto()?;
    /// println!("attention runs on {device}, {}", device.describe()?.0);
    /// # Ok::<(), flash_attention::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] where the variable names no device.
    pub fn auto() -> Result<Self> {
        match std::env::var("FLASH_ATTENTION_DEVICE") {
            Ok(name) if !name.is_empty() && name != "auto" => name.parse(),
            _ => Ok(match Gpu::get(0) {
                Ok(gpu) if gpu.properties().capability >= (8, 0) => Device::Cuda(0),
                Ok(gpu) => {
                    tracing::info!(gpu = gpu.name, "the GPU is older than the kernels; using the CPU device");
                    Device::Cpu
                }
                Err(why) => {
                    tracing::info!(%why, "no GPU; using the CPU device");
                    Device::Cpu
                }
            }),
        }
    }

    /// The device's name as its maker gives it, and what a plan has to know about a GPU.
    ///
    /// ```
    /// use flash_attention::Device;
    /// let (name, gpu) = Device::Cpu.describe()?;
    /// assert!(name.starts_with("CPU (") && gpu.is_none());
    /// # Ok::<(), flash_attention::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unavailable`] where there is no such GPU, or no driver.
    pub fn describe(self) -> Result<(String, Option<GpuProperties>)> {
        Ok(match self {
            Device::Cpu => (format!("CPU ({} threads)", rayon::current_num_threads()), None),
            Device::Cuda(ordinal) => {
                let gpu = Gpu::get(ordinal)?;
                (gpu.name.clone(), Some(*gpu.properties()))
            }
        })
    }
}

impl Device {
    /// Bytes of a GPU's memory that nobody uses at the moment; none for the CPU.
    ///
    /// ```
    /// use flash_attention::Device;
    /// assert_eq!(Device::Cpu.free_bytes()?, None);
    /// # Ok::<(), flash_attention::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unavailable`] where there is no such GPU, or no driver.
    pub fn free_bytes(self) -> Result<Option<u64>> {
        let Device::Cuda(ordinal) = self else { return Ok(None) };
        let gpu = Gpu::get(ordinal)?;
        let _entered = gpu.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: places for the answers.
        let code = unsafe { (gpu.driver.cuMemGetInfo)(&mut free, &mut total) };
        check(gpu.driver, "cuMemGetInfo", code)?;
        Ok(Some(free as u64))
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

impl FromStr for Device {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let ordinal = match name.strip_prefix("cuda") {
            Some("") => Some(0),
            Some(rest) => rest.strip_prefix(':').and_then(|n| n.parse().ok()),
            None => None,
        };
        match (name, ordinal) {
            ("cpu", _) => Ok(Device::Cpu),
            (_, Some(ordinal)) => Ok(Device::Cuda(ordinal)),
            _ => Err(Error::invalid("device", name, "must be cpu, cuda or cuda:N", "leave it out for auto")),
        }
    }
}

/// The kernel family that `FLASH_ATTENTION_KERNEL` asks for; read once in the life of the process.
pub(crate) fn kernel_override() -> Result<Option<Family>> {
    static KERNEL: OnceLock<Result<Option<Family>>> = OnceLock::new();
    let read = || match std::env::var("FLASH_ATTENTION_KERNEL") {
        Ok(name) if !name.is_empty() && name != "auto" => plan::family(&name).map(Some),
        _ => Ok(None),
    };
    KERNEL.get_or_init(read).clone()
}

/// A GPU with its primary context, kept for the life of the process so that no handle outlives it.
pub(crate) struct Gpu {
    driver: &'static Functions,
    ordinal: usize,
    name: String,
    context: driver::Context,
    state: &'static Context,
}

// SAFETY: a context handle may be used from any thread; everything else is plain data.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// The GPU of that ordinal; opens it at the first call.
    pub(crate) fn get(ordinal: usize) -> Result<&'static Gpu> {
        static GPUS: RwLock<Option<HashMap<usize, &'static Gpu>>> = RwLock::new(None);
        let known = GPUS.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(gpu) = known.as_ref().and_then(|gpus| gpus.get(&ordinal)) {
            return Ok(gpu);
        }
        drop(known);
        let mut gpus = GPUS.write().unwrap_or_else(PoisonError::into_inner);
        let gpus = gpus.get_or_insert_default();
        if let Some(gpu) = gpus.get(&ordinal) {
            return Ok(gpu);
        }
        let gpu: &'static Gpu = Box::leak(Box::new(Gpu::open(ordinal)?));
        gpus.insert(ordinal, gpu);
        Ok(gpu)
    }

    fn open(ordinal: usize) -> Result<Self> {
        let driver = driver_functions()?;
        let mut count = 0;
        // SAFETY: a place for the answer.
        check(driver, "cuDeviceGetCount", unsafe { (driver.cuDeviceGetCount)(&mut count) })?;
        if ordinal >= count as usize {
            return Err(Error::unavailable_on_gpu(
                format!("there is no GPU number {ordinal}, the driver shows {count}"),
                "use another ordinal",
            ));
        }
        let (mut device, mut name, mut context) = (0, [0; 128], std::ptr::null_mut());
        // SAFETY: places for the answers, and the size of the text's is given.
        unsafe {
            check(driver, "cuDeviceGet", (driver.cuDeviceGet)(&mut device, ordinal as i32))?;
            let code = (driver.cuDeviceGetName)(name.as_mut_ptr(), name.len() as i32, device);
            check(driver, "cuDeviceGetName", code)?;
        }
        // SAFETY: the driver ends the name with a NUL.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        // SAFETY: a place for the answer.
        let code = unsafe { (driver.cuDevicePrimaryCtxRetain)(&mut context, device) };
        check(driver, "cuDevicePrimaryCtxRetain", code)?;
        let entered = Entered::new(driver, context)?;
        let state = Context::current(driver)?;
        drop(entered);
        tracing::info!(ordinal, name, gpu = ?gpu_properties(driver, device)?, "opened a GPU");
        Ok(Gpu { driver, ordinal, name, context, state })
    }

    /// What a plan has to know.
    pub(crate) fn properties(&self) -> &GpuProperties {
        self.state.gpu()
    }

    /// The driver.
    pub(crate) fn driver(&self) -> &'static Functions {
        self.driver
    }

    /// The loaded kernels.
    pub(crate) fn state(&self) -> &'static Context {
        self.state
    }

    /// The device.
    pub(crate) fn device(&self) -> Device {
        Device::Cuda(self.ordinal)
    }

    /// Makes the GPU's context current on this thread until the guard is dropped.
    pub(crate) fn enter(&self) -> Result<Entered> {
        Entered::new(self.driver, self.context)
    }

    /// Waits for everything that any stream of the context has to do.
    pub(crate) fn synchronize(&self) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: no arguments.
        check(self.driver, "cuCtxSynchronize", unsafe { (self.driver.cuCtxSynchronize)() })
    }
}

/// A context that is current until this is dropped; then the one before is current again.
pub(crate) struct Entered(&'static Functions);

impl Entered {
    fn new(driver: &'static Functions, context: driver::Context) -> Result<Self> {
        // SAFETY: the context lives as long as the process.
        check(driver, "cuCtxPushCurrent", unsafe { (driver.cuCtxPushCurrent)(context) })?;
        Ok(Entered(driver))
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut popped = std::ptr::null_mut();
        // SAFETY: this thread pushed one context, and everything after it is popped already.
        unsafe { (self.0.cuCtxPopCurrent)(&mut popped) };
    }
}

/// A queue of work on one device. Work in one stream runs in order; streams run beside each other.
///
/// On the CPU device there is nothing to wait for: every call is done when it returns.
///
/// ```
/// use flash_attention::{Device, Stream};
/// let stream = Stream::new(Device::Cpu)?;
/// stream.synchronize()?;
/// # Ok::<(), flash_attention::Error>(())
/// ```
pub struct Stream(Option<GpuStream>);

struct GpuStream {
    gpu: &'static Gpu,
    raw: RawStream,
}

// SAFETY: a stream handle may be used from any thread, also by several at once.
unsafe impl Send for GpuStream {}
// SAFETY: as above.
unsafe impl Sync for GpuStream {}

impl Stream {
    /// A new stream of `device`.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where there is no such GPU, or no driver.
    pub fn new(device: Device) -> Result<Self> {
        let Device::Cuda(ordinal) = device else { return Ok(Stream(None)) };
        let gpu = Gpu::get(ordinal)?;
        let _entered = gpu.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: a place for the stream.
        let code = unsafe { (gpu.driver.cuStreamCreate)(&mut raw, driver::STREAM_NON_BLOCKING) };
        check(gpu.driver, "cuStreamCreate", code)?;
        Ok(Stream(Some(GpuStream { gpu, raw })))
    }

    /// The stream's device.
    pub fn device(&self) -> Device {
        self.0.as_ref().map_or(Device::Cpu, |stream| stream.gpu.device())
    }

    /// The GPU and its stream; none on the CPU device.
    pub(crate) fn gpu(&self) -> Option<(&'static Gpu, RawStream)> {
        self.0.as_ref().map(|stream| (stream.gpu, stream.raw))
    }

    /// The `CUstream`, for calls of the driver or of other libraries; null on the CPU device. It lives as long as the
    /// stream.
    ///
    /// ```
    /// use flash_attention::{Device, Stream};
    /// let stream = Stream::new(Device::Cpu)?;
    /// assert!(stream.raw().is_null() && stream.device() == Device::Cpu);
    /// # Ok::<(), flash_attention::Error>(())
    /// ```
    pub fn raw(&self) -> RawStream {
        self.0.as_ref().map_or(std::ptr::null_mut(), |stream| stream.raw)
    }

    /// Waits until all work in the stream is done.
    ///
    /// # Errors
    /// [`Error::Driver`] also where earlier work failed.
    pub fn synchronize(&self) -> Result<()> {
        let Some(GpuStream { gpu, raw }) = self.0 else { return Ok(()) };
        let _entered = gpu.enter()?;
        // SAFETY: the stream lives as long as self.
        check(gpu.driver, "cuStreamSynchronize", unsafe { (gpu.driver.cuStreamSynchronize)(raw) })
    }
}

impl Stream {
    /// Runs `work`, which puts its calls into this stream, and measures how long the device takes for them: between
    /// two events on a GPU, on the clock on the CPU. It waits for the work.
    ///
    /// ```
    /// use flash_attention::{Attention, Device, Stream, Tensor};
    /// let stream = Stream::new(Device::Cpu)?;
    /// let q = Tensor::<f32>::zeros(Device::Cpu, [1, 64, 2, 16])?;
    /// let attention = Attention::forward(&q, &q, &q);
    /// let (output, time) = stream.time(|| attention.run(&stream))?;
    /// println!("{:?} took {time:?}", output.o);
    /// # Ok::<(), flash_attention::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of `work`, and [`Error::Driver`] also where earlier work failed.
    pub fn time<R>(&self, work: impl FnOnce() -> Result<R>) -> Result<(R, Duration)> {
        let Some(GpuStream { gpu, raw }) = self.0 else {
            let begin = Instant::now();
            let result = work()?;
            return Ok((result, begin.elapsed()));
        };
        let _entered = gpu.enter()?;
        let (begin, end) = (Event::new(gpu.driver)?, Event::new(gpu.driver)?);
        begin.record(raw)?;
        let result = work()?;
        end.record(raw)?;
        // SAFETY: the event lives, and was recorded.
        check(gpu.driver, "cuEventSynchronize", unsafe { (gpu.driver.cuEventSynchronize)(end.raw) })?;
        let mut milliseconds = 0.0;
        // SAFETY: a place for the answer; both events are recorded and done.
        let code = unsafe { (gpu.driver.cuEventElapsedTime)(&mut milliseconds, begin.raw, end.raw) };
        check(gpu.driver, "cuEventElapsedTime", code)?;
        Ok((result, Duration::from_secs_f64(f64::from(milliseconds) / 1e3)))
    }
}

/// A mark in a stream, of the current context.
struct Event {
    driver: &'static Functions,
    raw: driver::Event,
}

impl Event {
    fn new(driver: &'static Functions) -> Result<Self> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: a place for the event; no flags.
        check(driver, "cuEventCreate", unsafe { (driver.cuEventCreate)(&mut raw, 0) })?;
        Ok(Event { driver, raw })
    }

    fn record(&self, stream: RawStream) -> Result<()> {
        // SAFETY: event and stream are of the current context.
        check(self.driver, "cuEventRecord", unsafe { (self.driver.cuEventRecord)(self.raw, stream) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event is destroyed once.
        unsafe { (self.driver.cuEventDestroy)(self.raw) };
    }
}

impl Drop for GpuStream {
    fn drop(&mut self) {
        if let Ok(_entered) = self.gpu.enter() {
            // SAFETY: the stream is destroyed once; the driver lets its work finish.
            unsafe { (self.gpu.driver.cuStreamDestroy)(self.raw) };
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({}, {:?})", self.device(), self.raw())
    }
}

#[cfg(test)]
mod tests;
