//! The one error of the library.

use flash_attention_driver::{Code, Functions, NoDriver};

/// Result of this library's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call did not start, or what the driver said.
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
        Error::unavailable(why.to_string(), "use the CPU device")
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
