//! Captures where tensor cores and TMA put what, on a Hopper GPU, as fixtures for the simulated device.
//!
//! ```text
//! cargo run --release -p flash-attention-layouts --example capture                 compile, run, write the fixtures
//! cargo run --release -p flash-attention-layouts --example capture -- --pack FOLDER   compile into FOLDER, for a GPU elsewhere
//! FOLDER/capture FOLDER/layouts.ptx OUT                                            there: run, write the fixtures to OUT
//! ```
//!
//! The compiler is the one that `cargo xtask setup` provides.

use anyhow::{Context, ensure};
use flash_attention::cuda::cust::event::{Event, EventFlags, EventStatus};
use flash_attention::cuda::cust::memory::{CopyDestination, DeviceBuffer, DeviceCopy};
use flash_attention::cuda::cust::module::Module;
use flash_attention::cuda::cust::stream::{Stream, StreamFlags};
use flash_attention::cuda::cust::{self, launch};
use flash_attention_builder::{CudaArch, CudaBuilder, Provision, Toolchain, exit_if_linker};
use flash_attention_driver as driver;
use flash_attention_layouts::{
    ELEMENTS, KERNELS, Params, SHARED_BYTES, TMA_DIMS, TMA_ROW_BYTES, WORDS, input,
};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// How long a kernel may take; each needs microseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// The parameters, as cust passes them.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct Argument(Params);

// SAFETY: plain integers.
unsafe impl DeviceCopy for Argument {}

fn main() -> anyhow::Result<()> {
    exit_if_linker();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut arguments = std::env::args_os().skip(1);
    let (first, second) = (arguments.next(), arguments.next().map(PathBuf::from));
    match first {
        Some(option) if option == "--pack" => pack(&second.context("--pack wants a folder")?),
        Some(ptx) => capture(Path::new(&ptx), &second.unwrap_or_else(|| folder.join("fixtures"))),
        None => capture(&compile()?, &folder.join("fixtures")),
    }
}

/// Compiles this crate's kernels.
fn compile() -> anyhow::Result<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target = folder.join("../../target");
    let toolchain = Toolchain::find(&Provision::below(&target).offline(true), &|_, _| {})?;
    let builder = CudaBuilder::new(folder).arch(CudaArch::Sm90a).toolchain(toolchain);
    Ok(builder.target_dir(target.join("device-layouts")).build()?)
}

/// Puts this program and the compiled kernels into a folder.
fn pack(folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let (program, ptx) = (folder.join("capture"), folder.join("layouts.ptx"));
    fs::copy(std::env::current_exe()?, &program)?;
    fs::copy(compile()?, &ptx)?;
    println!("on a machine with a Hopper GPU: {} {} OUT", program.display(), ptx.display());
    Ok(())
}

/// Runs the kernels and writes what they give, one file each.
fn capture(ptx: &Path, fixtures: &Path) -> anyhow::Result<()> {
    let text = fs::read_to_string(ptx).with_context(|| ptx.display().to_string())?;
    let _context = cust::quick_init().context("no GPU")?;
    let module = Module::from_ptx(&text, &[]).context("the kernels do not load: this needs a Hopper GPU")?;
    let stream = Stream::new(StreamFlags::NON_BLOCKING, None)?;
    let elements: Vec<u16> = input().collect();
    assert_eq!(elements.len(), ELEMENTS);
    let on_device = DeviceBuffer::from_slice(&elements)?;
    let map = tensor_map(on_device.as_device_ptr().as_raw())?;
    fs::create_dir_all(fixtures)?;
    for (name, threads) in KERNELS {
        let output = DeviceBuffer::from_slice(&[0u32; WORDS])?;
        let (input, address) = (on_device.as_device_ptr().as_raw(), output.as_device_ptr().as_raw());
        let params = Argument(Params { map, input, output: address });
        let function = module.get_function(name)?;
        // SAFETY: one block of the kernel's threads, with true parameters.
        unsafe { launch!(function<<<1, threads, SHARED_BYTES, stream>>>(params))? };
        wait(name, &stream)?;
        let mut words = vec![0u32; WORDS];
        output.copy_to(&mut words)?;
        let mut text = String::new();
        for line in words.chunks(8) {
            let line: Vec<String> = line.iter().map(|word| format!("{word:x}")).collect();
            writeln!(text, "{}", line.join(" "))?;
        }
        let path = fixtures.join(format!("{name}.txt"));
        fs::write(&path, text)?;
        println!("{}", path.display());
    }
    Ok(())
}

/// Waits for the stream, but not for a kernel that hangs: that ends the program. What was captured before is in its
/// files.
fn wait(name: &'static str, stream: &Stream) -> anyhow::Result<()> {
    let done = Event::new(EventFlags::DISABLE_TIMING)?;
    done.record(stream)?;
    let start = Instant::now();
    while let EventStatus::NotReady = done.query().context(name)? {
        if start.elapsed() > PATIENCE {
            eprintln!("{name} did not end within {PATIENCE:?}");
            // Neither a drop nor the driver's exit handlers get a chance to wait for the kernel.
            std::process::abort();
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// The map of the input as a tensor of 100 rows of 56 columns, in boxes of 64 by 64.
fn tensor_map(address: u64) -> anyhow::Result<[u64; 16]> {
    #[repr(align(64))]
    struct Aligned([u64; 16]);

    let mut map = Aligned([0; 16]);
    let strides = [TMA_ROW_BYTES, 100 * TMA_ROW_BYTES, 100 * TMA_ROW_BYTES];
    let (boxes, element_strides) = ([64u32, 64, 1, 1], [1u32; 4]);
    // SAFETY: four dimensions, three strides, an aligned place for the map.
    let code = unsafe {
        (driver::driver()?.cuTensorMapEncodeTiled)(
            &mut map.0,
            driver::TENSOR_MAP_UINT16,
            4,
            address,
            TMA_DIMS.as_ptr(),
            strides.as_ptr(),
            boxes.as_ptr(),
            element_strides.as_ptr(),
            driver::TENSOR_MAP_INTERLEAVE_NONE,
            driver::TENSOR_MAP_SWIZZLE_128B,
            driver::TENSOR_MAP_L2_PROMOTION_256B,
            driver::TENSOR_MAP_FILL_ZEROS,
        )
    };
    ensure!(code == driver::SUCCESS, "cuTensorMapEncodeTiled gives {code}");
    Ok(map.0)
}
