//! Who hands out tiles: a pair of numbers in device memory for each launch of a persistent kernel.

use crate::error::Result;
use crate::launch::RawStream;
use crate::module::{check, is_capturing};
use flash_attention_driver as driver;
use flash_attention_driver::Functions;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A context's work counters: pairs of u32 that are zero between launches, because the last block of a launch sets its
/// own pair back.
///
/// Two launches that run at the same time must not share a pair. Launches into plain streams walk round a ring: a pair
/// comes again after 65536 further launches of this context, while the driver lets about a thousand wait in a stream
/// before it blocks the caller, so the launch that had it is long over unless more than 60 streams are jammed. A
/// launch that is captured in a graph may run at any later time and any number of times, so it gets a pair that is
/// never given again; the instances of one graph are not to run at the same time, which `forward` asks for. When these
/// are used up, captured launches go without a counter, in the kernel's static order.
pub(crate) struct Counters {
    address: u64,
    launches: AtomicUsize,
    captures: AtomicUsize,
}

impl Counters {
    const BYTES: usize = 8;
    const RING: usize = 1 << 16;
    const CAPTURED: usize = 1 << 20;

    /// Allocates the counters of the current context, 8.5 MB that live as long as it does.
    pub(crate) fn new(driver: &Functions) -> Result<Self> {
        let words = (Self::RING + Self::CAPTURED) * Self::BYTES / 4;
        let (mut address, mut stream) = (0, std::ptr::null_mut());
        // SAFETY: a place for the address.
        check(driver, "cuMemAlloc", unsafe { (driver.cuMemAlloc)(&mut address, words * 4) })?;
        // A stream of their own: the default one cannot be used while others are captured.
        // SAFETY: a place for the stream; the memory was just allocated; the stream is destroyed once, after its work.
        unsafe {
            let code = (driver.cuStreamCreate)(&mut stream, driver::STREAM_NON_BLOCKING);
            check(driver, "cuStreamCreate", code)?;
            let set = (driver.cuMemsetD32Async)(address, 0, words, stream);
            let waited = (driver.cuStreamSynchronize)(stream);
            let destroyed = (driver.cuStreamDestroy)(stream);
            check(driver, "cuMemsetD32Async", set)?;
            check(driver, "cuStreamSynchronize", waited)?;
            check(driver, "cuStreamDestroy", destroyed)?;
        }
        Ok(Counters { address, launches: AtomicUsize::new(0), captures: AtomicUsize::new(0) })
    }

    /// The address of the counter for the next launch into `stream`, or 0 where there is none left.
    pub(crate) fn take(&self, driver: &Functions, stream: RawStream) -> Result<u64> {
        let slot = if !is_capturing(driver, stream)? {
            self.launches.fetch_add(1, Ordering::Relaxed) % Self::RING
        } else {
            let slot = self.captures.fetch_add(1, Ordering::Relaxed);
            if slot >= Self::CAPTURED {
                return Ok(0);
            }
            Self::RING + slot
        };
        Ok(self.address + (slot * Self::BYTES) as u64)
    }
}
