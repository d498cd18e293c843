//! A GPU to measure on: its memory, a graph of a call, and time by the GPU's own clock.

use std::ffi::c_void;

use anyhow::{Result, ensure};
use criterion::Throughput;
use criterion::measurement::{Measurement, ValueFormatter};
use flash_attention_driver::{self as driver, DevicePtr, Event, Functions, SUCCESS, Stream};

/// The first GPU, its primary context current on the thread that made it, and one stream.
#[derive(Clone, Copy)]
pub struct Gpu {
    driver: &'static Functions,
    stream: Stream,
}

impl Gpu {
    /// Opens the first GPU. What is made here stays until the process ends.
    ///
    /// # Errors
    /// There is no driver, or no GPU.
    pub fn open() -> Result<Self> {
        let driver = driver::driver()?;
        let (mut device, mut context, mut stream) = (0, std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: places for the answers; the context is the device's own and stays retained.
        unsafe {
            check(driver, "cuDeviceGet", (driver.cuDeviceGet)(&mut device, 0))?;
            let code = (driver.cuDevicePrimaryCtxRetain)(&mut context, device);
            check(driver, "cuDevicePrimaryCtxRetain", code)?;
            check(driver, "cuCtxSetCurrent", (driver.cuCtxSetCurrent)(context))?;
            let code = (driver.cuStreamCreate)(&mut stream, driver::STREAM_NON_BLOCKING);
            check(driver, "cuStreamCreate", code)?;
        }
        Ok(Gpu { driver, stream })
    }

    /// The stream that everything here uses.
    pub fn stream(&self) -> Stream {
        self.stream
    }

    /// Device memory of `bytes` that holds `pattern` over and over.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn memory(&self, bytes: usize, pattern: &[u8]) -> Result<Memory> {
        let mut address = 0;
        // SAFETY: a place for the address.
        let code = unsafe { (self.driver.cuMemAlloc)(&mut address, bytes.max(1)) };
        check(self.driver, "cuMemAlloc", code)?;
        let memory = Memory { driver: self.driver, address };
        for start in (0..bytes).step_by(pattern.len()) {
            let n = pattern.len().min(bytes - start);
            // SAFETY: `n` bytes lie in the pattern and from `start` in the memory.
            let code =
                unsafe { (self.driver.cuMemcpyHtoD)(address + start as u64, pattern.as_ptr().cast(), n) };
            check(self.driver, "cuMemcpyHtoD", code)?;
        }
        Ok(memory)
    }

    /// A graph of what `call` puts into the stream; `call` runs once outside of the graph before, to load its kernels.
    ///
    /// # Errors
    /// The call's own, or the driver's.
    pub fn capture(&self, call: impl Fn() -> flash_attention::Result<()>) -> Result<Graph> {
        const THREAD_LOCAL: i32 = 1;
        let driver = self.driver;
        call()?;
        let (mut graph, mut instance) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the stream is ours; the capture ends before anything else uses it; the graph outlives its
        // instantiation only to be destroyed.
        unsafe {
            let code = (driver.cuStreamSynchronize)(self.stream);
            check(driver, "cuStreamSynchronize", code)?;
            let code = (driver.cuStreamBeginCapture)(self.stream, THREAD_LOCAL);
            check(driver, "cuStreamBeginCapture", code)?;
            let called = call();
            let code = (driver.cuStreamEndCapture)(self.stream, &mut graph);
            called?;
            check(driver, "cuStreamEndCapture", code)?;
            let code = (driver.cuGraphInstantiate)(&mut instance, graph, 0);
            check(driver, "cuGraphInstantiate", code)?;
            check(driver, "cuGraphDestroy", (driver.cuGraphDestroy)(graph))?;
        }
        Ok(Graph { driver, stream: self.stream, instance })
    }
}

fn check(driver: &Functions, call: &str, code: driver::Code) -> Result<()> {
    ensure!(code == SUCCESS, "{call} failed: {}: {}", driver.error_name(code), driver.error_text(code));
    Ok(())
}

/// Device memory, freed when dropped.
pub struct Memory {
    driver: &'static Functions,
    address: DevicePtr,
}

impl Memory {
    /// Device address of the first byte.
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated once, freed once; the driver waits for work that uses it.
        unsafe { (self.driver.cuMemFree)(self.address) };
    }
}

/// Captured work that can be put into the stream again and again.
pub struct Graph {
    driver: &'static Functions,
    stream: Stream,
    instance: *mut c_void,
}

impl Graph {
    /// Puts the work into the stream once more.
    ///
    /// # Panics
    /// Where the driver refuses: a measurement has no other way out.
    pub fn launch(&self) {
        // SAFETY: the instance and the stream are alive.
        let code = unsafe { (self.driver.cuGraphLaunch)(self.instance, self.stream) };
        check(self.driver, "cuGraphLaunch", code).expect("the graph was launched before");
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: instantiated once, destroyed once.
        unsafe { (self.driver.cuGraphExecDestroy)(self.instance) };
    }
}

/// Criterion's measurement: nanoseconds between two events in the stream, so that what the host does beside the GPU's
/// work does not count, and neither do gaps before and after it.
pub struct GpuTime {
    gpu: Gpu,
}

impl GpuTime {
    /// Measures the work in the GPU's stream.
    pub fn new(gpu: Gpu) -> Self {
        GpuTime { gpu }
    }

    fn record(&self) -> Recorded {
        let driver = self.gpu.driver;
        let mut event = std::ptr::null_mut();
        // SAFETY: a place for the event; the stream is alive.
        unsafe {
            check(driver, "cuEventCreate", (driver.cuEventCreate)(&mut event, 0)).expect("an event");
            let code = (driver.cuEventRecord)(event, self.gpu.stream);
            check(driver, "cuEventRecord", code).expect("the stream is alive");
        }
        Recorded(event)
    }
}

/// An event that is in the stream already.
pub struct Recorded(Event);

impl Measurement for GpuTime {
    type Intermediate = Recorded;
    type Value = f64;

    fn start(&self) -> Recorded {
        self.record()
    }

    fn end(&self, Recorded(start): Recorded) -> f64 {
        let (driver, Recorded(end)) = (self.gpu.driver, self.record());
        let mut milliseconds = 0f32;
        // SAFETY: both events are recorded; they are destroyed once, after their last use.
        unsafe {
            let code = (driver.cuEventSynchronize)(end);
            check(driver, "cuEventSynchronize", code).expect("the measured work runs");
            let code = (driver.cuEventElapsedTime)(&mut milliseconds, start, end);
            check(driver, "cuEventElapsedTime", code).expect("both events are over");
            (driver.cuEventDestroy)(start);
            (driver.cuEventDestroy)(end);
        }
        f64::from(milliseconds) * 1e6
    }

    fn add(&self, a: &f64, b: &f64) -> f64 {
        a + b
    }

    fn zero(&self) -> f64 {
        0.0
    }

    fn to_f64(&self, value: &f64) -> f64 {
        *value
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        &Format
    }
}

/// Microseconds and TFLOP/s; a benchmark's "elements" are floating-point operations.
struct Format;

impl ValueFormatter for Format {
    fn scale_values(&self, _typical: f64, values: &mut [f64]) -> &'static str {
        values.iter_mut().for_each(|value| *value /= 1e3);
        "µs"
    }

    fn scale_throughputs(&self, _typical: f64, throughput: &Throughput, values: &mut [f64]) -> &'static str {
        let (amount, unit) = match *throughput {
            Throughput::Elements(flop) => (flop as f64 / 1e3, "TFLOP/s"),
            Throughput::Bytes(bytes) | Throughput::BytesDecimal(bytes) => (bytes as f64, "GB/s"),
            Throughput::Bits(bits) => (bits as f64, "Gbit/s"),
            Throughput::ElementsAndBytes { elements, .. } => (elements as f64 / 1e3, "TFLOP/s"),
        };
        values.iter_mut().for_each(|nanoseconds| *nanoseconds = amount / *nanoseconds);
        unit
    }

    fn scale_for_machines(&self, _values: &mut [f64]) -> &'static str {
        "ns"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_teraflop_in_a_millisecond_is_a_thousand_teraflops_a_second() {
        let mut values = [1e6];
        let unit = Format.scale_throughputs(1e6, &Throughput::Elements(1_000_000_000_000), &mut values);
        assert_eq!((values[0], unit), (1000.0, "TFLOP/s"));
        assert_eq!((Format.scale_values(1e6, &mut values), values[0]), ("µs", 1.0));
    }
}
