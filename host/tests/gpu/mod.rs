//! The kernels on a real GPU, held against the f64 reference.

mod case;
mod contract;
mod driver;
mod shapes;
mod warm;

use flash_attention::{DType, Device, Family, GpuProperties, Stream};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The GPU, for as long as a test uses it.
pub struct Gpu {
    pub stream: Stream,
    pub properties: GpuProperties,
    _turn: Turn,
}

/// Tests run beside each other, but for those that capture: what other threads ask of the driver in the meantime can
/// end a capture, whatever its mode.
static TURNS: RwLock<()> = RwLock::new(());

/// A test's place among the others. A failed test leaves nothing behind that the next one could trip over.
enum Turn {
    Shared { _guard: RwLockReadGuard<'static, ()> },
    Alone { _guard: RwLockWriteGuard<'static, ()> },
}

/// Where there is no GPU, says so loudly.
fn open(turn: impl FnOnce() -> Turn) -> Option<Gpu> {
    warm::watch_driver();
    let device = Device::Cuda(0);
    let turn = turn();
    match Stream::new(device) {
        Ok(stream) => {
            let (_, properties) = device.describe().unwrap();
            Some(Gpu { stream, properties: properties.unwrap(), _turn: turn })
        }
        Err(why) => {
            eprintln!("SKIPPED, this test needs a GPU: {why}");
            None
        }
    }
}

/// The GPU, shared with the tests of other threads; `None` where there is none.
pub fn gpu() -> Option<Gpu> {
    open(|| Turn::Shared { _guard: TURNS.read().unwrap_or_else(PoisonError::into_inner) })
}

/// The GPU while no other test uses it; `None` where there is none.
pub fn gpu_alone() -> Option<Gpu> {
    open(|| Turn::Alone { _guard: TURNS.write().unwrap_or_else(PoisonError::into_inner) })
}

/// The families that are held against the reference.
pub const FAMILIES: [Family; 4] = [Family::Standard, Family::Tiled, Family::Sm80, Family::Sm90];
/// The element types.
pub const DTYPES: [DType; 3] = [DType::F16, DType::Bf16, DType::F32];

/// Calls `$function::<T>($arguments)` for the element type that `$dtype` names.
macro_rules! typed {
    ($dtype:expr, $function:ident($($argument:expr),*)) => {
        match $dtype {
            flash_attention::DType::F16 => $function::<half::f16>($($argument),*),
            flash_attention::DType::Bf16 => $function::<half::bf16>($($argument),*),
            flash_attention::DType::F32 => $function::<f32>($($argument),*),
        }
    };
}
pub(crate) use typed;
