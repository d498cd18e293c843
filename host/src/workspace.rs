//! Where standard attention keeps its scores: a piece of device memory for each context.

use crate::error::{Error, Result};
use crate::launch::RawStream;
use crate::module::{CaptureRelaxed, check, is_capturing};
use flash_attention_driver as driver;
use flash_attention_driver::Functions;
use std::sync::{Mutex, PoisonError};

/// A context's workspace. All calls share it, one after the other: an event orders those of different streams.
///
/// It is allocated at the first call, grows when a call needs more, and lives as long as the context. A captured call
/// uses it as it is: an allocation would not be part of the graph. What a graph may use later is never freed.
#[derive(Default)]
pub(crate) struct Workspace(Mutex<Slot>);

#[derive(Default)]
struct Slot {
    address: u64,
    bytes: u64,
    /// The end of the last call that was not captured; none before the first allocation.
    last_use: Option<Event>,
    /// Whether a graph holds the address.
    captured: bool,
}

struct Event(driver::Event);

// SAFETY: an event handle may be used from any thread.
unsafe impl Send for Event {}

impl Workspace {
    /// Calls `launch` with the address of `bytes` bytes; what it puts into `stream` has them to itself, but for captured
    /// work, whose time nobody here knows.
    pub(crate) fn with(
        &self,
        driver: &'static Functions,
        stream: RawStream,
        bytes: u64,
        launch: impl FnOnce(u64) -> Result<()>,
    ) -> Result<()> {
        // Held until the call is in its stream, so that the event comes behind it.
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let capturing = is_capturing(driver, stream)?;
        if bytes > slot.bytes {
            if capturing {
                return Err(Error::invalid(
                    "stream",
                    "being captured",
                    format!(
                        "the kernel standard has a workspace of {} bytes, and this call needs {bytes}",
                        slot.bytes
                    ),
                    "make one call of this size before the capture",
                ));
            }
            slot.grow(driver, bytes)?;
        }
        let last_use = slot.last_use.as_ref().map(|event| event.0);
        let (Some(last_use), false) = (last_use, capturing) else {
            slot.captured |= capturing;
            return launch(slot.address);
        };
        // SAFETY: stream and event are of the current context.
        let waiting = unsafe { (driver.cuStreamWaitEvent)(stream, last_use, 0) };
        check(driver, "cuStreamWaitEvent", waiting)?;
        let launched = launch(slot.address);
        // Also where the second or third launch failed: the first is under way.
        // SAFETY: as above.
        let recorded = unsafe { (driver.cuEventRecord)(last_use, stream) };
        launched?;
        check(driver, "cuEventRecord", recorded)
    }
}

impl Slot {
    /// Makes room for `bytes`. Where that fails, what was there before stays, unless the driver has miscounted.
    fn grow(&mut self, driver: &'static Functions, bytes: u64) -> Result<()> {
        // Another stream of the context may be captured in the meantime.
        let _relaxed = CaptureRelaxed::enter(driver)?;
        let last_use = match &self.last_use {
            Some(event) => event.0,
            None => {
                let mut event = std::ptr::null_mut();
                // SAFETY: a place for the event.
                let code = unsafe { (driver.cuEventCreate)(&mut event, driver::EVENT_DISABLE_TIMING) };
                check(driver, "cuEventCreate", code)?;
                self.last_use.insert(Event(event)).0
            }
        };
        let (mut free, mut total) = (0, 0);
        // SAFETY: places for the answers.
        check(driver, "cuMemGetInfo", unsafe { (driver.cuMemGetInfo)(&mut free, &mut total) })?;
        let freed = if self.captured { 0 } else { self.bytes };
        let available = free as u64 + freed;
        let does_not_fit = || {
            Error::invalid(
                "kernel",
                "standard",
                format!("its scores take {bytes} bytes and the GPU has {available} free"),
                "name another kernel family or split the batch",
            )
        };
        if bytes > available {
            return Err(does_not_fit());
        }
        // SAFETY: the event was made above; one that was never recorded is over. After it nothing uses the memory,
        // which is freed once.
        unsafe {
            check(driver, "cuEventSynchronize", (driver.cuEventSynchronize)(last_use))?;
            if freed > 0 {
                check(driver, "cuMemFree", (driver.cuMemFree)(self.address))?;
            }
        }
        (self.address, self.bytes, self.captured) = (0, 0, false);
        let mut address = 0;
        // SAFETY: a place for the address.
        match unsafe { (driver.cuMemAlloc)(&mut address, bytes as usize) } {
            driver::ERROR_OUT_OF_MEMORY => return Err(does_not_fit()),
            code => check(driver, "cuMemAlloc", code)?,
        }
        (self.address, self.bytes) = (address, bytes);
        tracing::info!(bytes, "allocated the workspace of the kernel standard");
        Ok(())
    }
}

#[cfg(test)]
mod tests;
