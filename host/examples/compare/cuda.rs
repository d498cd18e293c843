//! The GPU: memory, a stream and events straight from the driver's table.

use crate::device::{Run, Timing};
use crate::measure::Failure;
use crate::tensors::{Inputs, dims, len, zeros};
use flash_attention::launch::{Addresses, forward};
use flash_attention::plan::{Alignment, Family, Plan, PlanOptions};
use flash_attention::{Element, GpuProperties, Problem};
use flash_attention_driver as driver;
use flash_attention_driver::{Code, Functions, SUCCESS};
use std::ffi::{CStr, c_void};
use std::time::Duration;

/// The first GPU, its primary context current on this thread.
pub struct Gpu {
    driver: &'static Functions,
    name: String,
    properties: GpuProperties,
}

/// `call` as a result.
macro_rules! ask {
    ($driver:expr, $call:ident($($argument:expr),*)) => {
        // SAFETY: the arguments are as the driver asks: places for answers, memory of the sizes given, live handles.
        checked($driver, stringify!($call), unsafe { ($driver.$call)($($argument),*) })
    };
}

fn checked(driver: &Functions, call: &str, code: Code) -> Result<(), Failure> {
    match code {
        SUCCESS => Ok(()),
        code => Err(Failure::new(format!(
            "{call} failed: {}: {}",
            driver.error_name(code),
            driver.error_text(code)
        ))),
    }
}

impl Gpu {
    /// Opens the driver and the first GPU.
    pub fn open() -> Result<Self, Failure> {
        let none = |why: String| Failure::unavailable(format!("{why}; use --device cpu"));
        let driver = driver::driver().map_err(|error| none(error.to_string()))?;
        let mut count = 0;
        ask!(driver, cuDeviceGetCount(&mut count))?;
        if count == 0 {
            return Err(none("the NVIDIA driver finds no GPU".into()));
        }
        let (mut device, mut context) = (0, std::ptr::null_mut());
        ask!(driver, cuDeviceGet(&mut device, 0))?;
        let mut name = [0; 128];
        ask!(driver, cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, device))?;
        // The context stays for the life of the process: the loaded kernels live in it.
        ask!(driver, cuDevicePrimaryCtxRetain(&mut context, device))?;
        ask!(driver, cuCtxSetCurrent(context))?;
        let attribute = |which| {
            let mut value = 0;
            ask!(driver, cuDeviceGetAttribute(&mut value, which, device)).map(|()| value as u32)
        };
        let properties = GpuProperties {
            capability: (
                attribute(driver::ATTRIBUTE_CAPABILITY_MAJOR)?,
                attribute(driver::ATTRIBUTE_CAPABILITY_MINOR)?,
            ),
            multiprocessors: attribute(driver::ATTRIBUTE_MULTIPROCESSORS)?,
            max_shared: attribute(driver::ATTRIBUTE_MAX_SHARED_OPTIN)?,
        };
        // SAFETY: the driver ends the name with a NUL.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        Ok(Gpu { driver, name, properties })
    }

    /// Runs a problem, and the kernel that materialises the scores beside it.
    pub fn run<T: Element>(
        &self,
        family: Option<Family>,
        problem: &Problem,
        inputs: &Inputs<T>,
    ) -> Result<Run<T>, Failure> {
        let driver = self.driver;
        let o_len = len(dims(problem)[3]);
        let lse_len = problem.batch * problem.heads * problem.seqlen_q;
        let stream = Stream::new(driver)?;
        let before = free_memory(driver)?;
        let (q, k, v) = (
            Memory::copy_of(driver, &inputs.q)?,
            Memory::copy_of(driver, &inputs.k)?,
            Memory::copy_of(driver, &inputs.v)?,
        );
        let (o, lse) = (Memory::new(driver, o_len * size_of::<T>())?, Memory::new(driver, lse_len * 4)?);
        let tensors = [&q, &k, &v, &o, &lse].iter().map(|memory| memory.bytes as u64).sum::<u64>();
        let addresses =
            Addresses { q: q.address, k: k.address, v: v.address, o: o.address, lse: lse.address };
        let Addresses { q, k, v, o: o_address, .. } = addresses;
        let options = PlanOptions { kernel: family, alignment: Alignment::of(q, k, v, o_address) };
        let plan = Plan::new(problem, &self.properties, &options)?;
        let call = |family| -> Result<(), Failure> {
            // SAFETY: the tensors are memory of the current context with the problem's shape and strides, and live
            // until the stream is synchronised.
            Ok(unsafe { forward(problem, &addresses, family, stream.0) }?)
        };

        call(family)?;
        stream.wait()?;
        let mut result = (zeros(o_len)?, zeros(lse_len)?);
        o.copy_to::<T>(&mut result.0)?;
        lse.copy_to::<f32>(&mut result.1)?;
        let timing = self.time(&stream, || call(family))?;

        let after = free_memory(driver)?;
        let mut standard = None;
        if plan.entry.family != Family::Standard && call(Some(Family::Standard)).is_ok() {
            stream.wait()?;
            let workspace = after.saturating_sub(free_memory(driver)?) as u64;
            let timing = self.time(&stream, || call(Some(Family::Standard)))?;
            standard = Some(Timing { time: timing, peak_bytes: Some(tensors + workspace) });
        }
        let (major, minor) = self.properties.capability;
        Ok(Run {
            device: format!("{} (compute capability {major}.{minor})", self.name),
            kernel: plan.entry.family.name().into(),
            plan: plan.to_string(),
            o: result.0,
            lse: result.1,
            timing: Timing {
                time: timing,
                peak_bytes: Some((before.saturating_sub(after) as u64).max(tensors)),
            },
            standard,
        })
    }

    /// The median device time of a call, between events. All calls are put into the stream at once, so that the host's
    /// own time hides behind the device's.
    fn time(&self, stream: &Stream, call: impl Fn() -> Result<(), Failure>) -> Result<Duration, Failure> {
        let round = |calls: usize| -> Result<Vec<f32>, Failure> {
            let events: Vec<[Event; 2]> = (0..calls)
                .map(|_| Ok([Event::new(self.driver)?, Event::new(self.driver)?]))
                .collect::<Result<_, Failure>>()?;
            for [begin, end] in &events {
                begin.record(stream)?;
                call()?;
                end.record(stream)?;
            }
            stream.wait()?;
            let mut times: Vec<f32> =
                events.iter().map(|[begin, end]| begin.milliseconds_until(end)).collect::<Result<_, _>>()?;
            times.sort_by(f32::total_cmp);
            Ok(times)
        };
        const BUDGET_MS: f32 = 200.0;
        let first = round(3)?[1];
        let calls = (BUDGET_MS / first.max(1e-3)).clamp(5.0, 100.0) as usize;
        let times = round(calls)?;
        Ok(Duration::from_secs_f32(times[times.len() / 2] / 1e3))
    }
}

fn free_memory(driver: &Functions) -> Result<usize, Failure> {
    let (mut free, mut total) = (0, 0);
    ask!(driver, cuMemGetInfo(&mut free, &mut total))?;
    Ok(free)
}

/// Device memory, given back when dropped.
struct Memory {
    driver: &'static Functions,
    address: u64,
    bytes: usize,
}

impl Memory {
    /// Filled with ones: NaN in every type, so that what a kernel leaves out cannot pass for a result.
    fn new(driver: &'static Functions, bytes: usize) -> Result<Self, Failure> {
        let mut address = 0;
        // Empty tensors have an address too.
        ask!(driver, cuMemAlloc(&mut address, bytes.max(16)))?;
        let memory = Memory { driver, address, bytes };
        ask!(driver, cuMemsetD8(address, 0xff, bytes.max(16)))?;
        Ok(memory)
    }

    fn copy_of<T>(driver: &'static Functions, data: &[T]) -> Result<Self, Failure> {
        let bytes = size_of_val(data);
        let memory = Memory::new(driver, bytes)?;
        if bytes > 0 {
            ask!(driver, cuMemcpyHtoD(memory.address, data.as_ptr().cast::<c_void>(), bytes))?;
        }
        Ok(memory)
    }

    fn copy_to<T: Element>(&self, data: &mut [T]) -> Result<(), Failure> {
        assert_eq!(size_of_val(data), self.bytes);
        match self.bytes {
            0 => Ok(()),
            bytes => ask!(self.driver, cuMemcpyDtoH(data.as_mut_ptr().cast::<c_void>(), self.address, bytes)),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // A context that a kernel has broken refuses this as it refuses all; the process ends soon.
        let _ = ask!(self.driver, cuMemFree(self.address));
    }
}

struct Stream(driver::Stream, &'static Functions);

impl Stream {
    fn new(driver: &'static Functions) -> Result<Self, Failure> {
        let mut stream = std::ptr::null_mut();
        ask!(driver, cuStreamCreate(&mut stream, 0))?;
        Ok(Stream(stream, driver))
    }

    fn wait(&self) -> Result<(), Failure> {
        ask!(self.1, cuStreamSynchronize(self.0))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = ask!(self.1, cuStreamDestroy(self.0));
    }
}

struct Event(driver::Event, &'static Functions);

impl Event {
    fn new(driver: &'static Functions) -> Result<Self, Failure> {
        let mut event = std::ptr::null_mut();
        ask!(driver, cuEventCreate(&mut event, 0))?;
        Ok(Event(event, driver))
    }

    fn record(&self, stream: &Stream) -> Result<(), Failure> {
        ask!(self.1, cuEventRecord(self.0, stream.0))
    }

    fn milliseconds_until(&self, end: &Event) -> Result<f32, Failure> {
        let mut milliseconds = 0.0;
        ask!(self.1, cuEventElapsedTime(&mut milliseconds, self.0, end.0))?;
        Ok(milliseconds)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = ask!(self.1, cuEventDestroy(self.0));
    }
}
