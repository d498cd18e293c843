//! Tiny kernels that show where tensor cores and TMA put what.
//!
//! Each has one block, reads [`input`] and writes [`WORDS`] words of raw registers or shared memory. Inputs are small
//! integers, so every sum is exact and a result says from where each element came. The example `capture` runs them on a
//! Hopper GPU and keeps the results as fixtures; the test of this crate holds the simulated device against them.
#![cfg_attr(target_arch = "nvptx64", no_std)]
// Registers are arrays with constant indices on the device; iterators over them are not.
#![allow(clippy::needless_range_loop)]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, stdarch_nvptx, asm_experimental_arch))]

use core::mem::offset_of;
use cuda_std::element::Bf16;
use cuda_std::global::GlobalPtr;
use cuda_std::mbarrier::Mbarrier;
use cuda_std::shared::{SharedPtr, dynamic_shared_mem};
use cuda_std::wgmma::{self, Accumulator, Descriptor};
use cuda_std::{fence, kernel, ldmatrix, mma, thread, warp};

/// Words of every kernel's output; what a kernel does not write stays 0.
pub const WORDS: usize = 128 * 40;
/// Elements of the input: rows of 64.
pub const ELEMENTS: usize = 256 * 64;
/// Dynamic shared memory of every kernel in bytes.
pub const SHARED_BYTES: u32 = 48 << 10;
/// The kernels and their threads; the one that could wait for ever comes last.
pub const KERNELS: [(&str, u32); 5] = [
    ("layout_mma", 32),
    ("layout_ldmatrix", 32),
    ("layout_wgmma_shared", 128),
    ("layout_wgmma_registers", 128),
    ("layout_tma", 128),
];
/// Shape of the tensor in the map that [`layout_tma`] reads, innermost first; boxes are 64 columns by 64 rows.
pub const TMA_DIMS: [u64; 4] = [56, 100, 1, 1];
/// Bytes from row to row of that tensor.
pub const TMA_ROW_BYTES: u64 = 128;

/// Parameters of every kernel.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Params {
    /// The tensor map of [`layout_tma`].
    pub map: [u64; 16],
    /// Address of the input.
    pub input: u64,
    /// Address of the output.
    pub output: u64,
}

/// The input as bf16: integers from -16 to 15 without a short period.
pub fn input() -> impl Iterator<Item = u16> {
    (0..ELEMENTS as u32).map(|i| {
        let value = (i.wrapping_mul(2_654_435_761) >> 27) as i32 - 16;
        ((value as f32).to_bits() >> 16) as u16
    })
}

#[inline(always)]
unsafe fn read_word(params: &Params, index: u32) -> u32 {
    // SAFETY: the caller stays inside the input.
    unsafe { GlobalPtr::<u32>::new(params.input).load(index as i64) }
}

#[inline(always)]
unsafe fn write_word(params: &Params, index: u32, value: u32) {
    // SAFETY: the caller stays inside the output.
    unsafe { GlobalPtr::<u32>::new(params.output).store(index as i64, value) }
}

/// Copies `words` words of the input into shared memory as they are, for all of the block and both proxies to see.
#[inline(always)]
unsafe fn fill_shared(params: &Params, words: u32) -> SharedPtr<u32> {
    let shared = dynamic_shared_mem::<u32>();
    let mut at = thread::thread_idx_x();
    while at < words {
        // SAFETY: inside the input and inside the block's shared memory.
        unsafe { shared.store(at, read_word(params, at)) };
        at += thread::block_dim_x();
    }
    fence::proxy_async_shared();
    thread::sync_threads();
    shared
}

/// Fragments of `mma.sync`.
///
/// # Safety
/// One block of 32 threads with [`Params`] that are true.
#[kernel(threads = 32)]
pub unsafe fn layout_mma(params: Params) {
    let lane = warp::lane_id();
    // SAFETY: 6 words of input and 4 of output a lane.
    unsafe {
        let word = |i| read_word(&params, 6 * lane + i);
        let (a, b) = ([word(0), word(1), word(2), word(3)], [word(4), word(5)]);
        let mut acc = [lane as f32, 100.0, 200.0, 300.0];
        mma::m16n8k16::<Bf16>(&mut acc, a, b);
        for i in 0..4 {
            write_word(&params, 4 * lane + i as u32, acc[i].to_bits());
        }
    }
}

/// Fragments of `ldmatrix`, as it is and transposed.
///
/// # Safety
/// As for [`layout_mma`].
#[kernel(threads = 32)]
pub unsafe fn layout_ldmatrix(params: Params) {
    let lane = warp::lane_id();
    // SAFETY: 512 bytes of shared memory, 8 words of output a lane.
    unsafe {
        let rows = fill_shared(&params, 128).cast::<[u32; 4]>();
        let (plain, transposed) = (ldmatrix::x4(rows.offset(lane)), ldmatrix::x4_trans(rows.offset(lane)));
        for i in 0..4 {
            write_word(&params, 8 * lane + i as u32, plain[i]);
            write_word(&params, 8 * lane + 4 + i as u32, transposed[i]);
        }
    }
}

/// Shared memory after a copy that reaches past two sides of the tensor.
///
/// # Safety
/// One block of 128 threads with [`Params`] that are true.
#[kernel(threads = 128)]
pub unsafe fn layout_tma(params: Params, address: cuda_std::tma::ParamAddress) {
    let tid = thread::thread_idx_x();
    let shared = dynamic_shared_mem::<u16>();
    let full = Mbarrier(shared.offset(64 * 64).cast());
    // SAFETY: a box and a barrier in shared memory, 2048 words of output.
    unsafe {
        if tid == 0 {
            full.init(1);
        }
        fence::mbarrier_init();
        thread::sync_threads();
        if tid == 0 {
            full.arrive_expect(64 * 128);
            address.tensor_map(offset_of!(Params, map)).load_4d(shared, [0, 50, 0, 0], full);
        }
        full.wait(0);
        for i in 0..16 {
            let at = 128 * i + tid;
            write_word(&params, at, shared.cast::<u32>().load(at));
        }
    }
}

/// Accumulators of a product from shared memory: descriptors of two operands with contiguous contraction.
///
/// # Safety
/// As for [`layout_tma`].
#[kernel(threads = 128)]
pub unsafe fn layout_wgmma_shared(params: Params) {
    // SAFETY: A of 64 and B of 80 rows of 128 bytes in shared memory.
    unsafe {
        let tile = fill_shared(&params, 144 * 32).address();
        let mut acc = [0.0f32; 40];
        wgmma::fence();
        for step in 0..4 {
            let a = Descriptor::new(tile, 1024, 1024).advance(32 * step);
            let b = Descriptor::new(tile + 64 * 128, 1024, 1024).advance(32 * step);
            acc.multiply_shared::<Bf16>(a, b, step > 0);
        }
        finish(&params, acc);
    }
}

/// Accumulators of a product with A in registers and B, two slabs of columns, transposed.
///
/// # Safety
/// As for [`layout_tma`].
#[kernel(threads = 128)]
pub unsafe fn layout_wgmma_registers(params: Params) {
    let tid = thread::thread_idx_x();
    // SAFETY: two slabs of 32 rows of 128 bytes in shared memory, 4 words of input a thread after them.
    unsafe {
        let tile = fill_shared(&params, 64 * 32).address();
        let word = |i| read_word(&params, 64 * 32 + 4 * tid + i);
        let a = [word(0), word(1), word(2), word(3)];
        let mut acc = [1.0f32; 40];
        wgmma::fence();
        for step in 0..2 {
            acc.multiply_registers::<Bf16>(a, Descriptor::new(tile, 32 * 128, 1024).advance(2048 * step));
        }
        finish(&params, acc);
    }
}

#[inline(always)]
unsafe fn finish(params: &Params, mut acc: [f32; 40]) {
    // SAFETY: 40 words of output a thread.
    unsafe {
        wgmma::commit_group();
        acc.wait::<0>();
        for i in 0..40 {
            write_word(params, 40 * thread::thread_idx_x() + i as u32, acc[i].to_bits());
        }
    }
}

#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: ends the grid with an error; there is nothing to unwind on the device.
    unsafe { core::arch::nvptx::trap() }
}
