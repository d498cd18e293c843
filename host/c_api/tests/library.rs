//! Calls through the loaded library, as a foreign language makes them. No test here needs a driver.

use std::ffi::{CStr, c_char, c_void};

use libloading::{Library, Symbol};

/// The structure as a caller writes it down from the header, independently of the library's own.
#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    struct_size: u32,
    dtype: i32,
    q: usize,
    k: usize,
    v: usize,
    o: usize,
    lse: usize,
    batch: i64,
    seqlen_q: i64,
    seqlen_k: i64,
    heads: i64,
    kv_heads: i64,
    head_dim: i64,
    head_dim_v: i64,
    q_stride: [i64; 3],
    k_stride: [i64; 3],
    v_stride: [i64; 3],
    o_stride: [i64; 3],
    scale: f32,
    causal: i32,
    window_left: i32,
    window_right: i32,
    softcap: f32,
    kernel: *const c_char,
    /// What a newer caller may have behind the fields of today.
    later: [u64; 2],
}

/// A call that is right but for the memory, which does not exist.
fn plausible() -> Args {
    let stride = [128 * 2 * 64, 2 * 64, 64];
    Args {
        struct_size: 232,
        dtype: 0,
        q: 1 << 20,
        k: 2 << 20,
        v: 3 << 20,
        o: 4 << 20,
        lse: 0,
        batch: 1,
        seqlen_q: 128,
        seqlen_k: 128,
        heads: 2,
        kv_heads: 2,
        head_dim: 64,
        head_dim_v: 64,
        q_stride: stride,
        k_stride: stride,
        v_stride: stride,
        o_stride: stride,
        scale: f32::NAN,
        causal: 0,
        window_left: -1,
        window_right: -1,
        softcap: 0.0,
        kernel: std::ptr::null(),
        later: [0; 2],
    }
}

struct Api {
    library: Library,
}

impl Api {
    fn load() -> Self {
        // SAFETY: our own library; it runs nothing when it is loaded.
        Api { library: unsafe { Library::new(super::library_path()) }.expect("the library loads") }
    }

    fn forward(&self, args: *const Args) -> (i32, String) {
        type Forward = unsafe extern "C" fn(*const Args, *mut c_void) -> i32;
        // SAFETY: the signature is the header's; every test's arguments are refused before a tensor is touched, or
        // no driver is there to touch it.
        unsafe {
            let forward: Symbol<'_, Forward> =
                self.library.get(b"flash_attention_forward").expect("the symbol");
            (forward(args, std::ptr::null_mut()), self.text("flash_attention_last_error"))
        }
    }

    fn text(&self, function: &str) -> String {
        type Text = extern "C" fn() -> *const c_char;
        // SAFETY: the signature is the header's, and the text is copied before any other call.
        unsafe {
            let text: Symbol<'_, Text> = self.library.get(function.as_bytes()).expect("the symbol");
            CStr::from_ptr(text()).to_str().expect("UTF-8").to_owned()
        }
    }
}

#[test]
fn says_its_version_and_no_error_before_a_call() {
    let api = Api::load();
    assert_eq!(api.text("flash_attention_version"), env!("CARGO_PKG_VERSION"));
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(api.text("flash_attention_last_error"), ""));
    });
}

#[test]
fn refuses_null_and_unset_structures() {
    let api = Api::load();
    let (code, text) = api.forward(std::ptr::null());
    assert_eq!(
        (code, text.as_str()),
        (1, "args is NULL, but must point to a flash_attention_forward_args; pass one")
    );
    for size in [0, 4, 231, 4097, u32::MAX] {
        let (code, text) = api.forward(&Args { struct_size: size, ..plausible() });
        assert_eq!(code, 1, "{size}");
        assert!(text.starts_with(&format!("struct_size is {size}, but must be")), "{text}");
    }
}

#[test]
fn later_fields_must_be_zero() {
    let api = Api::load();
    let newer = Args { struct_size: 248, ..plausible() };
    let (code, text) = api.forward(&Args { causal: 9, ..newer });
    assert_eq!(code, 1);
    assert!(text.starts_with("causal is 9"), "zeros behind the known fields are fine: {text}");
    let (code, text) = api.forward(&Args { later: [0, 1], ..newer });
    assert_eq!(code, 1);
    assert!(text.starts_with("struct_size is 248, but has a field at byte 240 that version"), "{text}");
}

#[test]
fn names_the_argument_that_is_wrong() {
    let api = Api::load();
    let good = plausible();
    let cases = [
        ("dtype is 3", Args { dtype: 3, ..good }),
        ("causal is -1", Args { causal: -1, ..good }),
        ("batch is -1", Args { batch: -1, ..good }),
        ("seqlen_k is -5", Args { seqlen_k: -5, ..good }),
        ("heads is 0", Args { heads: 0, ..good }),
        ("heads is 3, but must be a multiple of kv_heads", Args { heads: 3, ..good }),
        ("head_dim is 60", Args { head_dim: 60, ..good }),
        ("head_dim_v is 264", Args { head_dim_v: 264, ..good }),
        ("q_stride is -1", Args { q_stride: [0, -1, 0], ..good }),
        ("scale is 0", Args { scale: 0.0, ..good }),
        ("scale is inf", Args { scale: f32::INFINITY, ..good }),
        ("window_left is -2", Args { window_left: -2, ..good }),
        ("softcap is -1", Args { softcap: -1.0, ..good }),
        ("softcap is NaN", Args { softcap: f32::NAN, ..good }),
        ("q is a null address", Args { q: 0, ..good }),
        ("v is a null address", Args { v: 0, ..good }),
        ("o is a null address", Args { o: 0, ..good }),
        ("q is at address 0x100001", Args { q: (1 << 20) + 1, ..good }),
        ("o is at address 0x100000, but must not share memory with q", Args { o: 1 << 20, ..good }),
        ("kernel is sm70", Args { kernel: c"sm70".as_ptr(), ..good }),
        ("kernel is sm\u{fffd}", Args { kernel: c"sm\xff".as_ptr(), ..good }),
    ];
    for (start, args) in cases {
        let (code, text) = api.forward(&args);
        assert_eq!(code, 1, "{start}: {text}");
        assert!(text.starts_with(start), "{start}: {text}");
        assert!(text.contains(", but ") && text.contains("; "), "a limit and a way out: {text}");
    }
}

#[test]
fn an_enormous_batch_is_an_error_and_not_a_panic() {
    let api = Api::load();
    let (code, text) = api.forward(&Args { batch: i64::MAX, ..plausible() });
    assert!(code == 1 || code == 2, "{code} {text}");
}

#[test]
fn without_a_driver_a_good_call_is_unavailable() {
    // SAFETY: loads the driver's library, or not.
    if unsafe { Library::new("libcuda.so.1") }.is_ok() {
        eprintln!("SKIPPED without_a_driver_a_good_call_is_unavailable: there is a driver");
        return;
    }
    let api = Api::load();
    for kernel in [None, Some(c"standard"), Some(c"tiled"), Some(c"sm80"), Some(c"sm90")] {
        let kernel = kernel.map_or(std::ptr::null(), CStr::as_ptr);
        let (code, text) = api.forward(&Args { kernel, ..plausible() });
        assert_eq!(code, 2, "{text}");
        // The C library has no CPU device to go to.
        assert!(text.starts_with("no NVIDIA driver found: libcuda.so.1: "), "{text}");
        assert!(text.ends_with("; install the NVIDIA driver"), "{text}");
    }
    assert_eq!(api.forward(std::ptr::null()).0, 1, "the next error replaces it");
}
