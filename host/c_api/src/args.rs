//! The arguments of a call as C hands them over, and the checked problem that they become.

use std::ffi::{CStr, c_char, c_void};
use std::mem::{offset_of, size_of};

use library::launch::{self, Addresses};
use library::{Causal, DType, Error, Family, Problem, Strides, Window, plan};

/// Size of the structure in its first version; no caller can know fewer fields.
const FIRST_VERSION_SIZE: usize = 232;
/// Beyond any version that is ever likely to be: a larger size is an unset or damaged structure.
const LARGEST_SIZE: usize = 4096;

/// One attention forward. Set `struct_size`, and start from `FLASH_ATTENTION_FORWARD_ARGS_INIT` where the compiler
/// allows, so that fields of later versions keep their defaults.
///
/// Shapes: q `(batch, seqlen_q, heads, head_dim)`, k `(batch, seqlen_k, kv_heads, head_dim)`,
/// v `(batch, seqlen_k, kv_heads, head_dim_v)`, o `(batch, seqlen_q, heads, head_dim_v)`. Any order in memory: the
/// strides tell; only the last dimension has to be contiguous.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ForwardArgs {
    /// `sizeof(flash_attention_forward_args)` of the caller's header: it tells which fields there are. Fields that
    /// a newer caller has and this library does not know must be 0.
    pub struct_size: u32,
    /// Element type of q, k, v and o: 0 f16, 1 bf16, 2 f32.
    pub dtype: i32,
    /// Device pointer to the queries.
    pub q: *const c_void,
    /// Device pointer to the keys.
    pub k: *const c_void,
    /// Device pointer to the values.
    pub v: *const c_void,
    /// Device pointer to the output.
    pub o: *mut c_void,
    /// Device pointer to `(batch, heads, seqlen_q)` contiguous floats for the log-sum-exp of each row (natural
    /// logarithm), or NULL.
    pub lse: *mut f32,
    /// Sequences.
    pub batch: i64,
    /// Query rows of a sequence.
    pub seqlen_q: i64,
    /// Key rows of a sequence.
    pub seqlen_k: i64,
    /// Query heads.
    pub heads: i64,
    /// Key and value heads; divides `heads`.
    pub kv_heads: i64,
    /// Columns of q and k: a multiple of 8 up to 256 (f32: anything up to 256).
    pub head_dim: i64,
    /// Columns of v and o.
    pub head_dim_v: i64,
    /// Elements between neighbours in batch, sequence and head.
    pub q_stride: [i64; 3],
    /// As `q_stride`.
    pub k_stride: [i64; 3],
    /// As `q_stride`.
    pub v_stride: [i64; 3],
    /// As `q_stride`.
    pub o_stride: [i64; 3],
    /// Factor on `q k^T`; NaN for `1/sqrt(head_dim)`.
    pub scale: f32,
    /// 0 no causal mask; 1 aligned at the bottom right (the last query sees the last key); 2 at the top left.
    pub causal: i32,
    /// Keys to the left of the diagonal that a query sees, -1 for all.
    pub window_left: i32,
    /// Keys to the right of the diagonal that a query sees, -1 for all.
    pub window_right: i32,
    /// Cap `c` on the scores, `c * tanh(s / c)`; 0 for none.
    pub softcap: f32,
    /// "tiled", "sm80", "sm90" or "standard"; NULL for the plan's choice, or that of the environment variable
    /// `FLASH_ATTENTION_KERNEL`.
    pub kernel: *const c_char,
}

const _: () = {
    assert!(size_of::<ForwardArgs>() == FIRST_VERSION_SIZE);
    assert!(offset_of!(ForwardArgs, q) == 8 && offset_of!(ForwardArgs, batch) == 48);
    assert!(offset_of!(ForwardArgs, q_stride) == 104 && offset_of!(ForwardArgs, scale) == 200);
    assert!(offset_of!(ForwardArgs, softcap) == 216 && offset_of!(ForwardArgs, kernel) == 224);
};

impl ForwardArgs {
    /// What a field means that the caller does not have.
    const DEFAULT: ForwardArgs = ForwardArgs {
        struct_size: size_of::<ForwardArgs>() as u32,
        dtype: 0,
        q: std::ptr::null(),
        k: std::ptr::null(),
        v: std::ptr::null(),
        o: std::ptr::null_mut(),
        lse: std::ptr::null_mut(),
        batch: 0,
        seqlen_q: 0,
        seqlen_k: 0,
        heads: 0,
        kv_heads: 0,
        head_dim: 0,
        head_dim_v: 0,
        q_stride: [0; 3],
        k_stride: [0; 3],
        v_stride: [0; 3],
        o_stride: [0; 3],
        scale: f32::NAN,
        causal: 0,
        window_left: -1,
        window_right: -1,
        softcap: 0.0,
        kernel: std::ptr::null(),
    };

    /// Checks the call and puts it into the stream.
    ///
    /// # Safety
    /// As for `flash_attention_forward`.
    pub unsafe fn launch(&self, stream: *mut c_void) -> Result<(), Error> {
        let problem = self.problem()?;
        // SAFETY: the caller's promise about `kernel`.
        let kernel = unsafe { self.kernel()? };
        let addresses = Addresses {
            q: self.q as u64,
            k: self.k as u64,
            v: self.v as u64,
            o: self.o as u64,
            lse: self.lse as u64,
        };
        // SAFETY: the caller's promise about the tensors and the stream.
        unsafe { launch::forward(&problem, &addresses, kernel, stream) }
    }

    /// What is asked for, without the pointers. The launch checks the numbers against each other.
    fn problem(&self) -> Result<Problem, Error> {
        let dtype = match self.dtype {
            0 => DType::F16,
            1 => DType::Bf16,
            2 => DType::F32,
            other => return Err(invalid("dtype", other, "must be 0 (f16), 1 (bf16) or 2 (f32)", CHECK)),
        };
        let causal = match self.causal {
            0 => Causal::No,
            1 => Causal::BottomRight,
            2 => Causal::TopLeft,
            other => {
                let limit = "must be 0 (none), 1 (bottom right) or 2 (top left)";
                return Err(invalid("causal", other, limit, CHECK));
            }
        };
        let head_dim = size("head_dim", self.head_dim)?;
        Ok(Problem {
            dtype,
            batch: size("batch", self.batch)?,
            seqlen_q: size("seqlen_q", self.seqlen_q)?,
            seqlen_k: size("seqlen_k", self.seqlen_k)?,
            heads: size("heads", self.heads)?,
            kv_heads: size("kv_heads", self.kv_heads)?,
            head_dim,
            head_dim_v: size("head_dim_v", self.head_dim_v)?,
            q: strides("q_stride", self.q_stride)?,
            k: strides("k_stride", self.k_stride)?,
            v: strides("v_stride", self.v_stride)?,
            o: strides("o_stride", self.o_stride)?,
            scale: if self.scale.is_nan() { library::problem::default_scale(head_dim) } else { self.scale },
            causal,
            window: Window {
                left: bound("window_left", self.window_left)?,
                right: bound("window_right", self.window_right)?,
            },
            softcap: (self.softcap != 0.0).then_some(self.softcap),
        })
    }

    /// The kernel family, if one is asked for.
    ///
    /// # Safety
    /// `kernel` is NULL or a NUL-terminated text.
    unsafe fn kernel(&self) -> Result<Option<Family>, Error> {
        if self.kernel.is_null() {
            return Ok(None);
        }
        // SAFETY: not NULL, so a text by the caller's promise. What is not UTF-8 is no kernel's name either.
        plan::family(&unsafe { CStr::from_ptr(self.kernel) }.to_string_lossy()).map(Some)
    }
}

const CHECK: &str = "check the structure against the header";

/// Copies the fields that the caller has; the others keep their defaults.
///
/// # Safety
/// `args` is NULL or points to `args->struct_size` readable bytes.
pub unsafe fn read(args: *const ForwardArgs) -> Result<ForwardArgs, Error> {
    if args.is_null() {
        return Err(invalid("args", "NULL", "must point to a flash_attention_forward_args", "pass one"));
    }
    // SAFETY: every version of the structure begins with its size. Nothing says that the caller aligned it.
    let given = unsafe { args.cast::<u32>().read_unaligned() } as usize;
    if !(FIRST_VERSION_SIZE..=LARGEST_SIZE).contains(&given) {
        let limit = format!("must be sizeof(flash_attention_forward_args), at least {FIRST_VERSION_SIZE}");
        return Err(invalid("struct_size", given, limit, "set it before the call"));
    }
    let known = size_of::<ForwardArgs>();
    let bytes = args.cast::<u8>();
    let mut own = ForwardArgs::DEFAULT;
    // SAFETY: `given` bytes are readable, `known` writable, and any bytes make valid fields.
    unsafe { bytes.copy_to_nonoverlapping((&raw mut own).cast::<u8>(), given.min(known)) };
    // SAFETY: as above; the loop stays below `given`.
    if let Some(at) = (known..given).find(|&at| unsafe { *bytes.add(at) } != 0) {
        let limit =
            format!("has a field at byte {at} that version {} does not know", env!("CARGO_PKG_VERSION"));
        return Err(invalid("struct_size", given, limit, "leave the field 0 or load a newer library"));
    }
    Ok(own)
}

fn size(name: &'static str, value: i64) -> Result<usize, Error> {
    usize::try_from(value).map_err(|_| invalid(name, value, "must not be negative", CHECK))
}

fn strides(name: &'static str, [batch, seq, head]: [i64; 3]) -> Result<Strides, Error> {
    Ok(Strides { batch: size(name, batch)?, seq: size(name, seq)?, head: size(name, head)? })
}

fn bound(name: &'static str, value: i32) -> Result<Option<usize>, Error> {
    match value {
        -1 => Ok(None),
        0.. => Ok(Some(value as usize)),
        _ => Err(invalid(name, value, "must be 0 or more, or -1 for an open side", CHECK)),
    }
}

fn invalid(
    argument: &'static str,
    value: impl std::fmt::Display,
    limit: impl Into<String>,
    remedy: impl Into<String>,
) -> Error {
    Error::Invalid { argument, value: value.to_string(), limit: limit.into(), remedy: remedy.into() }
}
