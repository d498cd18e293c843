//! The simulated device: a plan's kernel on the CPU, one fiber a thread, every access checked.
//!
//! See docs/simulator.md. This is for tests and for trying a kernel without a GPU; it is not a fast way to compute
//! attention.

use crate::element::Element;
use crate::error::{Error, Result};
use crate::launch::{self, Addresses, MapShape, standard};
use crate::plan::{Alignment, Entry, Family, GpuProperties, Plan, PlanOptions};
use crate::problem::{DType, Problem, Strides};
use cuda_std::sim::{Access, Launch, Memory, Swizzle, encode_tensor_map};
pub use cuda_std::sim::{Finding, FindingKind, Mutation, Report};
use cuda_std::tma::ParamAddress;
use flash_attention_kernels::params::TensorMap;
use flash_attention_kernels::simulate::{Kernel, kernel};

/// What the simulated GPU is: a Hopper GPU with few multiprocessors, so that small problems need several turns.
pub const GPU: GpuProperties =
    GpuProperties { capability: (9, 0), multiprocessors: 3, max_shared: 227 << 10 };

/// How to run a problem.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The kernel family; the plan's choice where there is none.
    pub kernel: Option<Family>,
    /// The schedule.
    pub seed: u64,
    /// A bug to plant.
    pub mutation: Option<Mutation>,
    /// Factor on the head strides of the simulated tensors, so that their offsets need more than 32 bits; 0 and 1 leave
    /// them as they are.
    pub stretch: usize,
}

/// What a launch gave.
pub struct Outcome<T> {
    /// The kernel that ran.
    pub plan: Plan,
    /// O, laid out as the problem's strides say; what the kernel did not write is NaN.
    pub o: Vec<T>,
    /// LSE `(batch, heads, seqlen_q)`.
    pub lse: Vec<f32>,
    /// What was wrong, and how much was done.
    pub report: Report,
}

/// Runs attention forward on the simulated device. The tensors lie in their slices as the problem's strides say; what
/// lies between their rows is out of bounds for the kernel.
///
/// ```
/// use flash_attention::{DType, Family, Problem, sim};
/// // A kernel of the GPU, on the CPU, every access checked.
/// let problem = Problem::new(DType::F32, 1, 20, 1, 8);
/// let x: Vec<f32> = (0..160).map(|n| (n as f32).sin()).collect();
/// let options = sim::Options { kernel: Some(Family::Tiled), seed: 7, ..sim::Options::default() };
/// let outcome = sim::forward(&problem, &x, &x, &x, &options)?;
/// outcome.report.expect_clean();
/// assert!(outcome.plan.entry.name.starts_with("tiled_f32_") && outcome.o.iter().all(|x| x.is_finite()));
/// # Ok::<(), flash_attention::Error>(())
/// ```
///
/// # Errors
/// As [`launch::forward`], but for the driver's; where the plan's kernel has no simulated counterpart; where a slice is
/// too short.
pub fn forward<T: Element>(
    problem: &Problem,
    q: &[T],
    k: &[T],
    v: &[T],
    options: &Options,
) -> Result<Outcome<T>> {
    problem.check()?;
    if problem.dtype != T::DTYPE {
        return Err(Error::invalid("dtype", problem.dtype.name(), "must be the slices'", "convert them"));
    }
    let stretch = options.stretch.max(1);
    let far = |strides: Strides| Strides { head: strides.head * stretch, ..strides };
    let near = problem;
    let problem = &Problem { q: far(near.q), k: far(near.k), v: far(near.v), o: far(near.o), ..*near };
    let plan_options = PlanOptions { kernel: options.kernel, alignment: Alignment::default() };
    let plan = Plan::new(problem, &GPU, &plan_options)?;
    let tensors = Shapes::of(near, stretch);
    let mut memory = Memory::new();
    let addresses = Addresses {
        q: tensors.q.upload(&mut memory, "Q", q)?,
        k: tensors.k.upload(&mut memory, "K", k)?,
        v: tensors.v.upload(&mut memory, "V", v)?,
        o: tensors.o.output::<T>(&mut memory, "O"),
        lse: memory.output::<f32>("LSE", problem.batch * problem.heads * problem.seqlen_q),
    };
    let report = if problem.batch == 0 || problem.seqlen_q == 0 {
        Report::default()
    } else {
        run(&plan, problem, &addresses, &mut memory, options)?
    };
    let rows = problem.batch * problem.heads * problem.seqlen_q;
    Ok(Outcome {
        plan,
        o: tensors.o.download(&mut memory, addresses.o),
        lse: memory.read(addresses.lse, rows),
        report,
    })
}

fn run(
    plan: &Plan,
    problem: &Problem,
    addresses: &Addresses,
    memory: &mut Memory,
    options: &Options,
) -> Result<Report> {
    let Plan { entry, packing, .. } = plan;
    let tiles = launch::tiles(entry, *packing, problem)?;
    match function(entry)? {
        Kernel::Standard(_) => run_standard(entry, problem, addresses, memory, options),
        Kernel::Tiled(function) => {
            let forward = launch::forward_params(entry, *packing, problem, addresses);
            // SAFETY: the simulated device checks every access; the parameters are those of the entry.
            Ok(launch_of(entry, tiles, options).run(memory, || unsafe { function(forward) }))
        }
        Kernel::Sm80(function) => {
            let params = launch::sm80_params(plan, problem, addresses);
            // SAFETY: as above.
            Ok(launch_of(entry, tiles, options).run(memory, || unsafe { function(params) }))
        }
        Kernel::Sm90(function) => {
            let grid = tiles.min(GPU.multiprocessors);
            let mut work_counter = 0;
            if tiles > grid {
                work_counter = memory.output::<u32>("work counter", 2);
                memory.write(work_counter, &[0u32; 2]);
            }
            let encode = |map: &MapShape| {
                let (dims, strides, boxes) = (map.dims(), map.strides(), map.boxes());
                Ok(TensorMap(encode_tensor_map(map.address, dims, strides, boxes, 2, Swizzle::Bytes128)))
            };
            let params = launch::sm90_params(plan, problem, addresses, work_counter, encode)?;
            let maps = ParamAddress(&raw const params as u64);
            // SAFETY: as above.
            Ok(launch_of(entry, grid, options).run(memory, || unsafe { function(params, maps) }))
        }
    }
}

/// The three launches of standard attention; what they report, together.
fn run_standard(
    scores: &Entry,
    problem: &Problem,
    addresses: &Addresses,
    memory: &mut Memory,
    options: &Options,
) -> Result<Report> {
    let elements = standard::scores_bytes(scores, problem) / size_of::<f32>() as u64;
    let workspace = memory.output::<f32>("scores", elements as usize);
    let params = standard::params(scores, problem, addresses, workspace);
    let mut all = Report::default();
    for (entry, grid) in standard::steps(scores, problem)? {
        let Kernel::Standard(function) = function(&entry)? else {
            unreachable!("{} takes the parameters of its family", entry.name)
        };
        // SAFETY: as above.
        let report = launch_of(&entry, grid, options).run(memory, || unsafe { function(params) });
        all.findings.extend(report.findings);
        all.more_findings += report.more_findings;
        all.operations += report.operations;
    }
    Ok(all)
}

fn function(entry: &Entry) -> Result<Kernel> {
    kernel(entry.name).ok_or_else(|| {
        Error::unavailable(format!("{} cannot be simulated", entry.name), "name another kernel family")
    })
}

fn launch_of(entry: &Entry, grid: u32, options: &Options) -> Launch {
    let launch = Launch::new(entry.name, grid, entry.threads).shared(entry.shared_bytes).seed(options.seed);
    Launch { mutation: options.mutation, ..launch }
}

/// A tensor `(batch, sequence, head, dim)`: in a slice, and in simulated memory with the head stride stretched.
struct Shape {
    dims: [usize; 4],
    strides: Strides,
    stretch: usize,
}

struct Shapes {
    q: Shape,
    k: Shape,
    v: Shape,
    o: Shape,
}

impl Shapes {
    fn of(p: &Problem, stretch: usize) -> Self {
        let shape =
            |seqlen, heads, dim, strides| Shape { dims: [p.batch, seqlen, heads, dim], strides, stretch };
        Shapes {
            q: shape(p.seqlen_q, p.heads, p.head_dim, p.q),
            k: shape(p.seqlen_k, p.kv_heads, p.head_dim, p.k),
            v: shape(p.seqlen_k, p.kv_heads, p.head_dim_v, p.v),
            o: shape(p.seqlen_q, p.heads, p.head_dim_v, p.o),
        }
    }
}

impl Shape {
    /// First elements of the rows: in the slice and in simulated memory.
    fn rows(&self) -> impl Iterator<Item = (usize, usize)> {
        let ([batch, seqlen, heads, _], strides, stretch) = (self.dims, self.strides, self.stretch);
        (0..batch).flat_map(move |b| {
            (0..seqlen).flat_map(move |i| {
                let row = b * strides.batch + i * strides.seq;
                (0..heads).map(move |h| (row + h * strides.head, row + h * strides.head * stretch))
            })
        })
    }

    /// Elements from the first to the end of the last row in a slice.
    fn elements(&self) -> usize {
        self.rows().map(|(near, _)| near).max().map_or(0, |last| last + self.dims[3])
    }

    /// Bytes of the region in simulated memory.
    fn bytes<T>(&self) -> u64 {
        let elements = self.rows().map(|(_, far)| far).max().map_or(0, |last| last + self.dims[3]);
        (elements * size_of::<T>()) as u64
    }

    fn row_bytes<T>(&self) -> u64 {
        (self.dims[3] * size_of::<T>()) as u64
    }

    fn upload<T: Element>(&self, memory: &mut Memory, name: &'static str, values: &[T]) -> Result<u64> {
        if values.len() < self.elements() {
            return Err(Error::invalid(
                name,
                format!("a slice of {} elements", values.len()),
                format!("needs {}", self.elements()),
                "check its shape and strides",
            ));
        }
        let address = memory.region(name, self.bytes::<T>(), Access::Read);
        let place = |far: usize| address + (far * size_of::<T>()) as u64;
        if self.stretch == 1 {
            // What lies between the rows is there as well, and not for the kernel.
            write(memory, address, &values[..self.elements()]);
            memory.forbid_read(address, self.bytes::<T>());
            self.rows().for_each(|(_, far)| memory.allow_read(place(far), self.row_bytes::<T>()));
        } else {
            self.rows().for_each(|(near, far)| write(memory, place(far), &values[near..][..self.dims[3]]));
        }
        Ok(address)
    }

    fn output<T: Element>(&self, memory: &mut Memory, name: &str) -> u64 {
        let address = memory.region(name, self.bytes::<T>(), Access::Write);
        let allow =
            |(_, far)| memory.allow_write(address + (far * size_of::<T>()) as u64, self.row_bytes::<T>());
        self.rows().for_each(allow);
        address
    }

    fn download<T: Element>(&self, memory: &mut Memory, address: u64) -> Vec<T> {
        let mut values = vec![T::from_f32(f32::NAN); self.elements()];
        for (near, far) in self.rows() {
            let row = read(memory, address + (far * size_of::<T>()) as u64, self.dims[3]);
            values[near..][..self.dims[3]].copy_from_slice(&row);
        }
        values
    }
}

fn write<T: Element>(memory: &mut Memory, address: u64, values: &[T]) {
    match T::DTYPE {
        // SAFETY: f16 and bf16 are u16 underneath.
        DType::F16 | DType::Bf16 => memory.write(address, unsafe { cast::<T, u16>(values) }),
        // SAFETY: the type is f32.
        DType::F32 => memory.write(address, unsafe { cast::<T, f32>(values) }),
    }
}

fn read<T: Element>(memory: &mut Memory, address: u64, elements: usize) -> Vec<T> {
    match T::DTYPE {
        DType::F16 | DType::Bf16 => {
            let bits = memory.read::<u16>(address, elements);
            // SAFETY: f16 and bf16 are u16 underneath.
            unsafe { cast::<u16, T>(&bits) }.to_vec()
        }
        DType::F32 => {
            let values = memory.read::<f32>(address, elements);
            // SAFETY: the type is f32.
            unsafe { cast::<f32, T>(&values) }.to_vec()
        }
    }
}

/// # Safety
/// `A` and `B` have the same representation.
unsafe fn cast<A, B>(values: &[A]) -> &[B] {
    assert!(size_of::<A>() == size_of::<B>() && align_of::<A>() == align_of::<B>());
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), values.len()) }
}
