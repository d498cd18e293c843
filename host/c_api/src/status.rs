//! What a call answers: a code, and a text kept for the thread that called.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use library::Error;
use library::error::OR_USE_THE_CPU;

/// What a function of this library returns, as a plain 32-bit integer. Later versions may add codes: treat every
/// value but 0 as a failure.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The work is in the stream.
    Ok = 0,
    /// An argument can never be right, or this library does not know it. Nothing was launched, the outputs are
    /// untouched; the message names the argument, its value, the limit and the way out.
    Invalid = 1,
    /// What the call needs is not here: a driver, a GPU, a current context, a compiled kernel for this GPU.
    Unavailable = 2,
    /// The driver refused a call; the message has the driver function, its code and its text.
    Driver = 3,
    /// A bug in this library, caught at the boundary. The outputs may be unwritten.
    Internal = 4,
}

thread_local! {
    static LAST_ERROR: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Runs `body` so that no panic crosses into the caller, and keeps its error for [`last_error`].
pub fn guarded(body: impl FnOnce() -> Result<(), Error>) -> Status {
    // The body owns nothing that outlives it, so nothing half-changed is seen after a panic.
    let (status, text) = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => (Status::Ok, None),
        Ok(Err(error)) => (status_of(&error), Some(text_of(&error))),
        Err(payload) => (Status::Internal, Some(format!("internal error: {}", panic_text(payload)))),
    };
    let text = text.map(|text| CString::new(text.replace('\0', "\\0")).unwrap_or_default());
    // A thread that is being torn down has no place for the text any more; the code still tells.
    let _ = LAST_ERROR.try_with(|last| *last.borrow_mut() = text);
    status
}

/// The text of this thread's last failure, or the empty text after a success; valid until this thread's next call.
pub fn last_error() -> *const c_char {
    const NONE: &CStr = c"";
    LAST_ERROR
        .try_with(|last| last.borrow().as_ref().map_or(NONE.as_ptr(), |text| text.as_ptr()))
        .unwrap_or(NONE.as_ptr())
}

/// The error in words, without the CPU device as a way out: it is the Rust library's only.
fn text_of(error: &Error) -> String {
    let text = error.to_string();
    text.strip_suffix(OR_USE_THE_CPU).map(str::to_owned).unwrap_or(text)
}

fn status_of(error: &Error) -> Status {
    match error {
        Error::Invalid { .. } => Status::Invalid,
        Error::Unavailable { .. } => Status::Unavailable,
        Error::Driver { .. } => Status::Driver,
        _ => Status::Internal,
    }
}

fn panic_text(payload: Box<dyn Any + Send>) -> String {
    let text = match payload.downcast::<String>() {
        Ok(text) => return *text,
        Err(other) => other.downcast_ref::<&str>().map(|text| text.to_string()),
    };
    text.unwrap_or_else(|| "a panic without a text".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_text() -> String {
        // SAFETY: the text lives until this thread's next call, and is copied before.
        unsafe { CStr::from_ptr(last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_becomes_a_code_and_a_text() {
        assert_eq!(guarded(|| panic!("tile {} is on fire", 3)), Status::Internal);
        assert_eq!(last_text(), "internal error: tile 3 is on fire");
        assert_eq!(guarded(|| panic!("plain")), Status::Internal);
        assert_eq!(last_text(), "internal error: plain");
        assert_eq!(guarded(|| std::panic::panic_any(7)), Status::Internal);
        assert_eq!(last_text(), "internal error: a panic without a text");
        assert_eq!(guarded(|| Ok(())), Status::Ok);
        assert_eq!(last_text(), "");
    }

    #[test]
    fn each_kind_of_error_has_its_code() {
        let unavailable = Error::Unavailable { what: "no\0driver".into(), remedy: "install one".into() };
        assert_eq!(guarded(|| Err(unavailable)), Status::Unavailable);
        assert_eq!(last_text(), "no\\0driver; install one");
        let no_kernel = Error::Unavailable {
            what: "no GPU kernel has softcap yet".into(),
            remedy: format!("leave it out{OR_USE_THE_CPU}"),
        };
        assert_eq!(guarded(|| Err(no_kernel)), Status::Unavailable);
        assert_eq!(last_text(), "no GPU kernel has softcap yet; leave it out");
        let driver = Error::Driver {
            call: "cuLaunchKernelEx",
            code: 700,
            name: "CUDA_ERROR_ILLEGAL_ADDRESS".into(),
            text: "an illegal memory access was encountered".into(),
            hint: "check the pointers".into(),
        };
        assert_eq!(guarded(|| Err(driver)), Status::Driver);
        assert!(last_text().contains("cuLaunchKernelEx failed: CUDA_ERROR_ILLEGAL_ADDRESS (700)"));
    }

    #[test]
    fn the_text_belongs_to_the_thread() {
        guarded(|| panic!("mine"));
        std::thread::spawn(|| assert_eq!(last_text(), "")).join().unwrap();
        assert_eq!(last_text(), "internal error: mine");
    }
}
