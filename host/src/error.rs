//! The one error of the library.

use flash_attention_driver::{Code, Functions, NoDriver};

/// Result of this library's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// How the way out of an [`Error::Unavailable`] ends where another one is the CPU device. A caller that has none, such
/// as the C library, leaves this off.
pub const OR_USE_THE_CPU: &str = ", or use the CPU device";

/// Why a call did not start, or what the driver said.
///
/// ```
/// use flash_attention::{Device, Error, Tensor};
/// match Tensor::<f32>::zeros(Device::Cuda(0), [1, 16, 1, 64]) {
///     Ok(tensor) => println!("{tensor:?}"),
///     // No GPU here: the same program can use `Device::Cpu`.
///     Err(Error::Unavailable { what, .. }) => println!("{what}"),
///     // A bug in the call, or trouble with the device.
///     Err(error) => return Err(error),
/// }
/// # Ok::<(), flash_attention::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What the call needs is not here: a driver, a GPU, a compiled kernel.
    #[error("{what}; {remedy}")]
    Unavailable {
        /// What is missing.
        what: String,
        /// The way out.
        remedy: String,
    },
    /// The call cannot be right as it is asked for; nothing was launched and the outputs are untouched.
    #[error("{argument} is {value}, but {limit}; {remedy}")]
    Invalid {
        /// Which argument.
        argument: &'static str,
        /// The value that it has.
        value: String,
        /// What it must be.
        limit: String,
        /// The way out.
        remedy: String,
    },
    /// The driver refused a call.
    #[error("{call} failed: {name} ({code}): {text}; {hint}")]
    Driver {
        /// The driver function.
        call: &'static str,
        /// The driver's numeric code (`CUresult`).
        code: i32,
        /// The code's name, `CUDA_ERROR_…`.
        name: String,
        /// The driver's description.
        text: String,
        /// What usually helps.
        hint: String,
    },
}

impl Error {
    /// Shorthand for [`Error::Invalid`].
    pub(crate) fn invalid(
        argument: &'static str,
        value: impl std::fmt::Display,
        limit: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Error::Invalid { argument, value: value.to_string(), limit: limit.into(), remedy: remedy.into() }
    }

    /// Shorthand for [`Error::Unavailable`].
    pub(crate) fn unavailable(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Error::Unavailable { what: what.into(), remedy: remedy.into() }
    }

    /// As [`Error::unavailable`], where the CPU device is a way out too.
    pub(crate) fn unavailable_on_gpu(what: impl Into<String>, remedy: &str) -> Self {
        Error::unavailable(what, format!("{remedy}{OR_USE_THE_CPU}"))
    }

    /// What the driver said about `call`, with what usually helps.
    pub(crate) fn driver(driver: &Functions, call: &'static str, code: Code) -> Self {
        let hint = match code {
            flash_attention_driver::ERROR_OUT_OF_MEMORY => "free device memory or use smaller tensors",
            flash_attention_driver::ERROR_INVALID_CONTEXT => "make a context of this process current",
            flash_attention_driver::ERROR_NO_BINARY_FOR_GPU => "update the NVIDIA driver",
            flash_attention_driver::ERROR_ILLEGAL_ADDRESS => {
                "an earlier kernel of this context read or wrote memory it does not own; check pointers, \
                 shapes and strides, or run under compute-sanitizer"
            }
            _ => "the driver's documentation of the call lists its causes",
        };
        Error::Driver {
            call,
            code,
            name: driver.error_name(code),
            text: driver.error_text(code),
            hint: hint.to_owned(),
        }
    }

    /// Why there are no driver functions to call.
    pub(crate) fn no_driver(why: NoDriver) -> Self {
        let remedy = match why {
            NoDriver::NotFound(_) => "install the NVIDIA driver",
            NoDriver::TooOld(_) => "update the driver",
            NoDriver::NotStarted { .. } => "see what nvidia-smi says",
        };
        Error::unavailable_on_gpu(why.to_string(), remedy)
    }

    /// Puts the log of the driver's compiler into the description.
    pub(crate) fn with_log(mut self, log: &str) -> Self {
        if let Error::Driver { text, .. } = &mut self
            && !log.trim().is_empty()
        {
            *text = format!("{text}: {}", log.trim());
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_driver::DRIVER;
    use flash_attention_driver as driver;

    /// The driver's words are those of the tests' driver whatever the code; the way out is the code's own.
    #[test]
    fn what_the_driver_refuses_has_call_code_name_text_and_a_way_out() {
        let message = |code| Error::driver(&DRIVER, "cuLaunchKernelEx", code).to_string();
        insta::assert_snapshot!(message(driver::ERROR_OUT_OF_MEMORY), @"cuLaunchKernelEx failed: CUDA_ERROR_INVALID_IMAGE (2): device kernel image is invalid; free device memory or use smaller tensors");
        insta::assert_snapshot!(message(driver::ERROR_INVALID_CONTEXT), @"cuLaunchKernelEx failed: CUDA_ERROR_INVALID_IMAGE (201): device kernel image is invalid; make a context of this process current");
        insta::assert_snapshot!(message(driver::ERROR_NO_BINARY_FOR_GPU), @"cuLaunchKernelEx failed: CUDA_ERROR_INVALID_IMAGE (209): device kernel image is invalid; update the NVIDIA driver");
        insta::assert_snapshot!(message(driver::ERROR_ILLEGAL_ADDRESS), @"cuLaunchKernelEx failed: CUDA_ERROR_INVALID_IMAGE (700): device kernel image is invalid; an earlier kernel of this context read or wrote memory it does not own; check pointers, shapes and strides, or run under compute-sanitizer");
        insta::assert_snapshot!(message(1), @"cuLaunchKernelEx failed: CUDA_ERROR_INVALID_IMAGE (1): device kernel image is invalid; the driver's documentation of the call lists its causes");
    }

    #[test]
    fn the_log_of_the_drivers_compiler_joins_its_text() {
        let error = Error::driver(&DRIVER, "cuModuleLoadDataEx", 200);
        assert_eq!(error.clone().with_log(" \n"), error);
        insta::assert_snapshot!(error.with_log("ptxas fatal: line 3\n"), @"cuModuleLoadDataEx failed: CUDA_ERROR_INVALID_IMAGE (200): device kernel image is invalid: ptxas fatal: line 3; the driver's documentation of the call lists its causes");
    }

    #[test]
    fn a_driver_that_is_missing_too_old_or_broken_names_the_way_out() {
        let message = |why| Error::no_driver(why).to_string();
        let library = "libcuda.so.1: cannot open shared object file: No such file or directory";
        insta::assert_snapshot!(message(NoDriver::NotFound(library.into())), @"no NVIDIA driver found: libcuda.so.1: cannot open shared object file: No such file or directory; install the NVIDIA driver, or use the CPU device");
        insta::assert_snapshot!(message(NoDriver::TooOld("cuTensorMapEncodeTiled")), @"the NVIDIA driver is too old (CUDA 12 is needed): it has no cuTensorMapEncodeTiled; update the driver, or use the CPU device");
        let broken = NoDriver::NotStarted { code: 999, name: "CUDA_ERROR_UNKNOWN".into() };
        insta::assert_snapshot!(message(broken), @"the NVIDIA driver does not start: cuInit gives CUDA_ERROR_UNKNOWN (999); see what nvidia-smi says, or use the CPU device");
    }
}
