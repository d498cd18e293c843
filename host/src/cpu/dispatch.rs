//! The instruction set of this CPU, chosen once, and work compiled for each of them.

use super::simd::{Portable, Simd};
#[cfg(target_arch = "x86_64")]
use super::x86::{Avx2, Avx512};

/// Work that is compiled once for each instruction set. `run` and all that it calls with vectors must be
/// `#[inline(always)]`, or they are compiled without the instructions.
pub(super) trait Task {
    /// What comes out.
    type Output;

    /// Does it.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// An instruction set that this CPU has.
#[derive(Clone, Copy)]
pub(super) enum InstructionSet {
    /// What the target has without asking.
    Portable,
    /// AVX2 with FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// AVX-512F.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl InstructionSet {
    /// All that this CPU has, the best one last.
    pub fn all() -> Vec<Self> {
        let mut all = vec![InstructionSet::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            all.extend(Avx2::detect().map(InstructionSet::Avx2));
            all.extend(Avx512::detect().map(InstructionSet::Avx512));
        }
        all
    }

    /// The best one.
    pub fn best() -> Self {
        *Self::all().last().expect("there is always the portable one")
    }

    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            InstructionSet::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512(_) => "avx512",
        }
    }

    /// Lanes of its vectors.
    pub fn lanes(self) -> usize {
        match self {
            InstructionSet::Portable => Portable::LANES,
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2(_) => Avx2::LANES,
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512(_) => Avx512::LANES,
        }
    }

    /// Runs `task` as compiled for this instruction set.
    pub fn run<T: Task>(self, task: T) -> T::Output {
        match self {
            InstructionSet::Portable => task.run(Portable),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Avx2` exists only where the CPU has these features.
            InstructionSet::Avx2(simd) => unsafe { run_avx2(simd, task) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Avx512` exists only where the CPU has this feature.
            InstructionSet::Avx512(simd) => unsafe { run_avx512(simd, task) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn run_avx2<T: Task>(simd: Avx2, task: T) -> T::Output {
    task.run(simd)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn run_avx512<T: Task>(simd: Avx512, task: T) -> T::Output {
    task.run(simd)
}

/// The outputs of a task on every instruction set of this CPU.
#[cfg(test)]
pub(super) fn each_instruction_set<T: Task>(task: impl Fn() -> T) -> Vec<T::Output> {
    InstructionSet::all().into_iter().map(|set| set.run(task())).collect()
}
