//! The kernels on a real GPU, held against the f64 reference.

mod case;
mod contract;
mod driver;
mod shapes;

use flash_attention::{DType, Device, Family, GpuProperties, Stream};

/// The GPU's stream and figures; `None`, said loudly, where there is no GPU.
pub fn gpu() -> Option<(Stream, GpuProperties)> {
    let device = Device::Cuda(0);
    match Stream::new(device) {
        Ok(stream) => {
            let (_, properties) = device.describe().unwrap();
            Some((stream, properties.unwrap()))
        }
        Err(why) => {
            eprintln!("SKIPPED, this test needs a GPU: {why}");
            None
        }
    }
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
