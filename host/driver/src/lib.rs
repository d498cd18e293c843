//! The CUDA driver functions this project calls, found at run time.
//!
//! Nothing here links against CUDA: [`driver`] opens `libcuda.so.1` when it is first asked, so the same binary builds
//! without a toolkit and starts without a driver. A program that uses this crate exports no `cu*` symbol, unless the
//! feature `forward` is on: then the symbols that the crate `cust` links against are defined here as jumps into the
//! driver (see `forward`).

#[cfg(all(feature = "forward", target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod forward;
mod functions;
mod types;
mod watch;

pub use functions::Functions;
pub use types::*;
pub use watch::Watcher;

use std::sync::OnceLock;

/// Why there are no driver functions to call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoDriver {
    /// The library could not be opened; the loader's own words.
    #[error("no NVIDIA driver found: {0}")]
    NotFound(String),
    /// The library lacks a function, so it is older than CUDA 12.
    #[error("the NVIDIA driver is too old (CUDA 12 is needed): it has no {0}")]
    TooOld(&'static str),
    /// `cuInit` refused.
    #[error("the NVIDIA driver does not start: cuInit gives {name} ({code})")]
    NotStarted {
        /// The driver's numeric code.
        code: i32,
        /// Its name.
        name: String,
    },
}

/// The driver's functions, initialised. The first call opens the library; later ones cost one load.
///
/// # Errors
/// [`NoDriver`] says why there is none; the answer stays the same for the life of the process.
pub fn driver() -> Result<&'static Functions, NoDriver> {
    DRIVER.get_or_init(|| start(None)).as_ref().map_err(Clone::clone)
}

/// Starts the driver so that `watcher` is told of every call through the table: for tests that count calls. Gives whether
/// it came in time, before the first [`driver`] of the process. Calls through the symbols of the feature `forward` are
/// not seen.
pub fn watch(watcher: Watcher) -> bool {
    let mut in_time = false;
    let _ = DRIVER.get_or_init(|| {
        in_time = true;
        start(Some(watcher))
    });
    in_time
}

static DRIVER: OnceLock<Result<Functions, NoDriver>> = OnceLock::new();

fn start(watcher: Option<Watcher>) -> Result<Functions, NoDriver> {
    let mut functions = Functions::open()?;
    if let Some(watcher) = watcher {
        functions = functions.watched(watcher);
    }
    // SAFETY: cuInit may be called at any time and as often as one likes.
    let code = unsafe { (functions.cuInit)(0) };
    if code != SUCCESS {
        return Err(NoDriver::NotStarted { code, name: functions.error_name(code) });
    }
    Ok(functions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_driver_the_message_says_so() {
        match driver() {
            Ok(functions) => assert_eq!(functions.error_name(ERROR_NO_DEVICE), "CUDA_ERROR_NO_DEVICE"),
            Err(why) => assert!(why.to_string().contains("NVIDIA driver"), "{why}"),
        }
    }
}
