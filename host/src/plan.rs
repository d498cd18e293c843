//! Which kernel runs a problem on a GPU, and why: a pure function of numbers.
//!
//! A plan depends on the element type, the head dimensions, the lengths, the mask, the GPU, on how many query heads read
//! one key head, and on strides and alignments, because some kernels cannot take every layout. It never depends on the
//! batch size or the number of key heads, so that a sequence's result does not depend on its company.

use crate::error::{Error, Result};
use crate::problem::{Causal, DType, Problem, Strides, Window};
use crate::{heuristics, launch};
pub use flash_attention_kernels::config::{Entry, Family, MaskKind, Part};
pub use flash_attention_kernels::params::Packing;
use std::fmt;

/// What a plan has to know about a GPU.
///
/// ```
/// use flash_attention::GpuProperties;
/// // An H200, for plans without a GPU at hand.
/// let h200 = GpuProperties { capability: (9, 0), multiprocessors: 132, max_shared: 227 << 10 };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GpuProperties {
    /// Compute capability: (9, 0) for an H100 or H200.
    pub capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Most dynamic shared memory that a block can ask for, in bytes.
    pub max_shared: u32,
}

/// What is known about the addresses of the tensors: the largest power of two, up to 16, that divides each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Alignment {
    /// Of Q.
    pub q: u32,
    /// Of K.
    pub k: u32,
    /// Of V.
    pub v: u32,
    /// Of O.
    pub o: u32,
}

impl Alignment {
    /// The alignment of four addresses.
    ///
    /// ```
    /// use flash_attention::plan::Alignment;
    /// assert_eq!(Alignment::of(0x1000, 0x1008, 0x1002, 0x1100), Alignment { q: 16, k: 8, v: 2, o: 16 });
    /// ```
    pub fn of(q: u64, k: u64, v: u64, o: u64) -> Self {
        let of = |address: u64| 1 << address.trailing_zeros().min(4);
        Alignment { q: of(q), k: of(k), v: of(v), o: of(o) }
    }
}

impl Default for Alignment {
    /// 16 bytes or more, as every allocator gives.
    fn default() -> Self {
        Alignment { q: 16, k: 16, v: 16, o: 16 }
    }
}

/// What the caller wants of a plan beside the problem.
///
/// ```
/// use flash_attention::{Family, PlanOptions};
/// let options = PlanOptions { kernel: Some(Family::Tiled), ..PlanOptions::default() };
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PlanOptions {
    /// The kernel family to use; the fastest that can run the problem where there is none.
    pub kernel: Option<Family>,
    /// Alignment of the tensors' addresses.
    pub alignment: Alignment,
}

/// The kernel that will run, and why no faster one does.
///
/// ```
/// use flash_attention::{DType, Family, GpuProperties, Plan, PlanOptions, Problem};
/// let h200 = GpuProperties { capability: (9, 0), multiprocessors: 132, max_shared: 227 << 10 };
/// let problem = Problem::new(DType::F32, 1, 1024, 16, 64);
/// let plan = Plan::new(&problem, &h200, &PlanOptions::default())?;
/// assert_eq!(plan.entry.family, Family::Tiled);
/// let why: Vec<String> = plan.refused().map(|(family, why)| format!("{} {why}", family.name())).collect();
/// assert_eq!(why, ["sm90 has no kernel for f32", "sm80 has no kernel for f32"]);
/// println!("{plan}"); // Kernel, tile, stages, threads, shared memory, and the reasons again.
/// # Ok::<(), flash_attention::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Plan {
    /// The kernel.
    pub entry: Entry,
    /// How query heads share tiles.
    pub packing: Packing,
    /// Families that were preferred and could not be taken, in the order in which they were asked.
    refused: [Option<(Family, Refusal)>; FAMILIES.len()],
}

/// Families in the order of preference. `standard` runs only where it is asked for by name.
const FAMILIES: [Family; 3] = [Family::Sm90, Family::Sm80, Family::Tiled];

/// Bytes that every stride of a tensor map has to stay below.
const MAX_MAP_STRIDE: usize = 1 << 40;

/// Why a family cannot run a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The GPU's compute capability is another one than the family's.
    Capability {
        /// Which capabilities would do.
        needs: &'static str,
        /// The GPU's.
        has: (u32, u32),
    },
    /// The family has no kernel for the type.
    DType(DType),
    /// The family has no kernel whose tile holds the head dimension.
    HeadDim(usize),
    /// The family has no kernel for an empty key sequence.
    NoKeys,
    /// A tensor's address is not a multiple of 16 bytes.
    Address {
        /// Which tensor.
        tensor: &'static str,
        /// Its alignment in bytes.
        alignment: u32,
    },
    /// A stride is not a multiple of 16 bytes.
    Stride {
        /// Which tensor.
        tensor: &'static str,
        /// Which stride.
        of: &'static str,
        /// The stride in bytes.
        bytes: usize,
    },
    /// A broadcast: a stride of 0.
    Broadcast {
        /// Which tensor.
        tensor: &'static str,
        /// Which stride.
        of: &'static str,
    },
    /// A stride is too long for a tensor map; that of Q's heads is one of all that read one key head.
    LongStride {
        /// Which tensor.
        tensor: &'static str,
        /// Which stride.
        of: &'static str,
        /// The stride in bytes.
        bytes: usize,
    },
    /// A block needs more shared memory than the GPU gives.
    Shared {
        /// Bytes that the block needs.
        needs: u32,
        /// Bytes that the GPU gives.
        has: u32,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Refusal::Capability { needs, has: (major, minor) } => {
                write!(f, "needs compute capability {needs}, this GPU has {major}.{minor}")
            }
            Refusal::DType(dtype) => write!(f, "has no kernel for {}", dtype.name()),
            Refusal::HeadDim(d) => write!(f, "has no kernel for head dimension {d}"),
            Refusal::NoKeys => write!(f, "cannot run without keys"),
            Refusal::Address { tensor, alignment } => {
                write!(f, "{tensor}'s address is a multiple of {alignment} bytes only, not of 16")
            }
            Refusal::Stride { tensor, of, bytes } => {
                write!(f, "{tensor}'s {of} stride {bytes} B is not a multiple of 16")
            }
            Refusal::LongStride { tensor, of, bytes } => {
                write!(f, "{tensor}'s {of} stride {bytes} B is not below {MAX_MAP_STRIDE}")
            }
            Refusal::Broadcast { tensor, of } => write!(f, "{tensor}'s {of} stride is 0, a broadcast"),
            Refusal::Shared { needs, has } => {
                write!(f, "needs {needs} bytes of shared memory a block, this GPU has {has}")
            }
        }
    }
}

impl Plan {
    /// Chooses the kernel for `problem` on `gpu`.
    ///
    /// # Errors
    /// [`Error::Invalid`] where the problem can never be right, or where the kernel asked for cannot run it;
    /// [`Error::Unavailable`] where no kernel of this build can, with the way out.
    pub fn new(problem: &Problem, gpu: &GpuProperties, options: &PlanOptions) -> Result<Self> {
        Self::among(flash_attention_kernels::config::entries, problem, gpu, options)
    }

    /// As [`Plan::new`], with a table of one's own.
    pub(crate) fn among<I: Iterator<Item = &'static Entry>>(
        entries: impl Fn() -> I,
        problem: &Problem,
        gpu: &GpuProperties,
        options: &PlanOptions,
    ) -> Result<Self> {
        problem.check()?;
        only_cpu(problem)?;
        let (major, minor) = gpu.capability;
        if gpu.capability < (8, 0) {
            return Err(Error::unavailable_on_gpu(
                format!(
                    "this GPU has compute capability {major}.{minor}, but the kernels need 8.0 or higher"
                ),
                "use a newer GPU",
            ));
        }
        if let Some(family) = options.kernel {
            return match choose(family, &entries, problem, gpu, options) {
                Ok(entry) => Ok(Plan::of(entry, problem, [None; FAMILIES.len()])),
                Err(why) => Err(Error::invalid(
                    "kernel",
                    family.name(),
                    format!("this family cannot run the problem: {why}"),
                    "leave the choice to the plan or name another family",
                )),
            };
        }
        let mut refused = [None; FAMILIES.len()];
        for (n, family) in FAMILIES.into_iter().enumerate() {
            match choose(family, &entries, problem, gpu, options) {
                Ok(entry) => return Ok(Plan::of(entry, problem, refused)),
                Err(why) => refused[n] = Some((family, why)),
            }
        }
        let reasons: Vec<String> =
            refused.iter().flatten().map(|(family, why)| format!("{} {why}", family.name())).collect();
        let what = format!("no kernel can run this problem ({})", reasons.join("; "));
        Err(Error::unavailable_on_gpu(what, "change what the reasons name"))
    }

    fn of(entry: Entry, problem: &Problem, refused: [Option<(Family, Refusal)>; FAMILIES.len()]) -> Self {
        Plan { entry, packing: heuristics::packing(problem, &entry), refused }
    }

    /// Bytes of device memory that a call of `problem` needs beside its tensors: the matrix of scores for `standard`,
    /// nothing for the others.
    ///
    /// ```
    /// use flash_attention::{DType, Family, GpuProperties, Plan, PlanOptions, Problem};
    /// let h200 = GpuProperties { capability: (9, 0), multiprocessors: 132, max_shared: 227 << 10 };
    /// let problem = Problem::new(DType::F16, 1, 1024, 16, 64);
    /// let bytes = |kernel| -> flash_attention::Result<u64> {
    ///     let plan = Plan::new(&problem, &h200, &PlanOptions { kernel, ..PlanOptions::default() })?;
    ///     Ok(plan.workspace_bytes(&problem))
    /// };
    /// assert_eq!((bytes(None)?, bytes(Some(Family::Standard))?), (0, 16 * 1024 * 1024 * 4));
    /// # Ok::<(), flash_attention::Error>(())
    /// ```
    pub fn workspace_bytes(&self, problem: &Problem) -> u64 {
        match self.entry.family {
            Family::Standard => launch::standard::scores_bytes(&self.entry, problem),
            Family::Tiled | Family::Sm80 | Family::Sm90 => 0,
        }
    }

    /// The families that were preferred but could not run the problem, with the reason.
    pub fn refused(&self) -> impl Iterator<Item = (Family, Refusal)> {
        self.refused.into_iter().flatten()
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Entry { name, block_m, block_n, stages, threads, shared_bytes, .. } = self.entry;
        write!(
            f,
            "{name}: tiles of {block_m} x {block_n}, {stages} stages, {threads} threads, \
             {shared_bytes} bytes of shared memory"
        )?;
        if self.packing != Packing::NONE {
            write!(f, ", {} query heads in each tile", self.packing.heads())?;
        }
        for (family, why) in self.refused() {
            write!(f, "; {}: {why} → {}", family.name(), self.entry.family.name())?;
        }
        Ok(())
    }
}

/// Refuses what only the CPU device computes so far.
fn only_cpu(problem: &Problem) -> Result<()> {
    let what = match problem {
        Problem { window, .. } if *window != Window::default() => "a sliding window",
        Problem { softcap: Some(_), .. } => "softcap",
        _ => return Ok(()),
    };
    Err(Error::unavailable_on_gpu(format!("no GPU kernel has {what} yet"), "leave it out"))
}

/// The family's kernel with the smallest tile that holds the problem.
fn choose<I: Iterator<Item = &'static Entry>>(
    family: Family,
    entries: &impl Fn() -> I,
    problem: &Problem,
    gpu: &GpuProperties,
    options: &PlanOptions,
) -> Result<Entry, Refusal> {
    if family == Family::Sm90 {
        if gpu.capability != (9, 0) {
            return Err(Refusal::Capability { needs: "9.0", has: gpu.capability });
        }
        if problem.seqlen_k == 0 {
            return Err(Refusal::NoKeys);
        }
    }
    let of_type = || {
        entries()
            .filter(|entry| entry.family == family && entry.begins_call() && entry.dtype == problem.dtype)
    };
    if of_type().next().is_none() {
        return Err(Refusal::DType(problem.dtype));
    }
    if matches!(family, Family::Sm80 | Family::Sm90) {
        check_layout(family, problem, options.alignment)?;
    }
    let d = problem.head_dim.max(problem.head_dim_v);
    let mask = match problem.causal {
        Causal::No => MaskKind::Full,
        Causal::BottomRight | Causal::TopLeft => MaskKind::Causal,
    };
    let fitting = || of_type().filter(|entry| entry.mask.serves(mask) && entry.head_dim as usize >= d);
    let smallest = fitting().map(|entry| entry.head_dim).min().ok_or(Refusal::HeadDim(d))?;
    // Of several kernels for one head dimension, the one meant for the longest sequences that still fits; the table
    // lists the preferred one of equals first.
    let candidates = || fitting().filter(|entry| entry.head_dim == smallest);
    candidates()
        .filter(|entry| entry.shared_bytes <= gpu.max_shared && entry.min_seqlen as usize <= problem.seqlen_k)
        .reduce(|best, entry| if entry.min_seqlen > best.min_seqlen { entry } else { best })
        .copied()
        .ok_or_else(|| {
            let needs = candidates().map(|entry| entry.shared_bytes).min().unwrap_or(0);
            Refusal::Shared { needs, has: gpu.max_shared }
        })
}

/// What 16-byte copies ask of addresses and strides; TMA cannot repeat rows by a stride of 0 either.
fn check_layout(family: Family, problem: &Problem, alignment: Alignment) -> Result<(), Refusal> {
    let Problem { dtype, batch, seqlen_q, seqlen_k, heads, kv_heads, q, k, v, o, .. } = *problem;
    let tensors: [(&'static str, Strides, usize, usize, u32); 4] = [
        ("Q", q, seqlen_q, heads, alignment.q),
        ("K", k, seqlen_k, kv_heads, alignment.k),
        ("V", v, seqlen_k, kv_heads, alignment.v),
        ("O", o, seqlen_q, heads, alignment.o),
    ];
    for (tensor, strides, seqlen, heads, alignment) in tensors {
        if alignment < 16 {
            return Err(Refusal::Address { tensor, alignment });
        }
        let dimensions =
            [("batch", strides.batch, batch), ("row", strides.seq, seqlen), ("head", strides.head, heads)];
        // The stride of a dimension with one entry is never used.
        for (of, stride, _) in dimensions.into_iter().filter(|&(_, _, extent)| extent > 1) {
            let bytes = stride * dtype.size();
            if bytes % 16 != 0 {
                return Err(Refusal::Stride { tensor, of, bytes });
            }
            if family == Family::Sm90 {
                if stride == 0 {
                    return Err(Refusal::Broadcast { tensor, of });
                }
                let group = if tensor == "Q" && of == "head" { problem.heads / problem.kv_heads } else { 1 };
                let bytes = bytes.saturating_mul(group);
                if bytes >= MAX_MAP_STRIDE {
                    return Err(Refusal::LongStride { tensor, of, bytes });
                }
            }
        }
    }
    Ok(())
}

/// The family of that name.
///
/// ```
/// use flash_attention::{Family, plan};
/// assert_eq!(plan::family("sm80")?, Family::Sm80);
/// # Ok::<(), flash_attention::Error>(())
/// ```
///
/// # Errors
/// [`Error::Invalid`] lists the names.
pub fn family(name: &str) -> Result<Family> {
    let families = [Family::Standard, Family::Tiled, Family::Sm80, Family::Sm90];
    families.into_iter().find(|family| family.name() == name).ok_or_else(|| {
        Error::invalid(
            "kernel",
            name,
            "must be standard, tiled, sm80 or sm90",
            "leave it out for the plan's choice",
        )
    })
}

#[cfg(test)]
pub(crate) mod tests;
