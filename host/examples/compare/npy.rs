//! NumPy's .npy: f16, f32 and f64. NumPy has no bf16, so that type needs safetensors.

use crate::files::{Tensor, Values};
use crate::measure::Failure;
use half::f16;
use ndarray::{ArrayD, IxDyn};
use ndarray_npy::{
    ReadDataError, ReadNpyError, ReadableElement, WritableElement, WriteDataError, read_npy, write_npy,
};
use py_literal::Value as Literal;
use std::io;
use std::path::Path;

/// An f16 in a .npy file, which ndarray-npy does not know: two bytes, `<f2`.
#[derive(Clone, Copy)]
struct Half(f16);

const HALF_NAME: &str = "<f2";

impl ReadableElement for Half {
    fn read_to_end_exact_vec<R: io::Read>(
        mut reader: R,
        type_desc: &Literal,
        len: usize,
    ) -> Result<Vec<Self>, ReadDataError> {
        if *type_desc != Literal::String(HALF_NAME.into()) {
            return Err(ReadDataError::WrongDescriptor(type_desc.clone()));
        }
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes)?;
        match bytes.len().cmp(&(2 * len)) {
            std::cmp::Ordering::Less => Err(ReadDataError::MissingData),
            std::cmp::Ordering::Greater => Err(ReadDataError::ExtraBytes(bytes.len() - 2 * len)),
            std::cmp::Ordering::Equal => {
                Ok(bytes.as_chunks::<2>().0.iter().map(|&pair| Half(f16::from_le_bytes(pair))).collect())
            }
        }
    }
}

impl WritableElement for Half {
    fn type_descriptor() -> Literal {
        Literal::String(HALF_NAME.into())
    }

    fn write<W: io::Write>(&self, mut writer: W) -> Result<(), WriteDataError> {
        Ok(writer.write_all(&self.0.to_le_bytes())?)
    }

    fn write_slice<W: io::Write>(slice: &[Self], mut writer: W) -> Result<(), WriteDataError> {
        let bytes: Vec<u8> = slice.iter().flat_map(|half| half.0.to_le_bytes()).collect();
        Ok(writer.write_all(&bytes)?)
    }
}

/// Reads a tensor, in C or Fortran order.
pub fn read(path: &Path) -> Result<Tensor, Failure> {
    fn values<T: Clone + ReadableElement>(path: &Path) -> Result<(Vec<usize>, Vec<T>), ReadNpyError> {
        let array: ArrayD<T> = read_npy(path)?;
        Ok((array.shape().to_vec(), array.as_standard_layout().iter().cloned().collect()))
    }
    let tensor = |(shape, values)| Tensor { shape, values };
    let half = || {
        values::<Half>(path)
            .map(|(shape, halves)| (shape, Values::F16(halves.into_iter().map(|half| half.0).collect())))
    };
    let single = || values::<f32>(path).map(|(shape, values)| (shape, Values::F32(values)));
    let double = || values::<f64>(path).map(|(shape, values)| (shape, Values::F64(values)));
    let mut result = half();
    for attempt in [&single as &dyn Fn() -> _, &double] {
        if matches!(result, Err(ReadNpyError::WrongDescriptor(_))) {
            result = attempt();
        }
    }
    result.map(tensor).map_err(|error| {
        let hint = match error {
            ReadNpyError::WrongDescriptor(_) => {
                "; it must be float16, float32 or float64 (bf16: use safetensors)"
            }
            _ => "",
        };
        Failure::new(format!("{}: {error}{hint}", path.display()))
    })
}

/// Writes a tensor, in C order.
pub fn write(path: &Path, tensor: &Tensor) -> Result<(), Failure> {
    fn array<T: Clone>(shape: &[usize], values: &[T]) -> ArrayD<T> {
        ArrayD::from_shape_vec(IxDyn(shape), values.to_vec()).expect("the values fill the shape")
    }
    let shape = &tensor.shape;
    match &tensor.values {
        Values::F16(values) => {
            let halves: Vec<Half> = values.iter().map(|&x| Half(x)).collect();
            write_npy(path, &array(shape, &halves))
        }
        Values::F32(values) => write_npy(path, &array(shape, values)),
        Values::F64(values) => write_npy(path, &array(shape, values)),
        Values::Bf16(_) => {
            return Err(Failure::new(format!(
                "{}: NumPy has no bf16; write FILE.safetensors",
                path.display()
            )));
        }
    }
    .map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::ShapeBuilder;

    /// A folder of this test's own.
    fn folder(name: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("compare-npy-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn fortran_order_and_f64_are_read() {
        let folder = folder("fortran");
        let path = folder.join("x.npy");
        // Rows (0, 1, 2) and (3, 4, 5), column by column in the file.
        let columns = vec![0.0f32, 3.0, 1.0, 4.0, 2.0, 5.0];
        let array = ArrayD::from_shape_vec(IxDyn(&[2, 3]).f(), columns).unwrap();
        write_npy(&path, &array).unwrap();
        assert!(String::from_utf8_lossy(&std::fs::read(&path).unwrap()).contains("'fortran_order': True"));
        let values = Values::F32(vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(read(&path).unwrap(), Tensor { shape: vec![2, 3], values });
        let double = Tensor { shape: vec![2], values: Values::F64(vec![1e300, -0.1]) };
        write(&path, &double).unwrap();
        assert_eq!(read(&path).unwrap(), double);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn other_types_and_cut_files_are_named() {
        let folder = folder("broken");
        let path = folder.join("x.npy");
        write_npy(&path, &ArrayD::<i32>::zeros(IxDyn(&[4]))).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.starts_with(&path.display().to_string()), "{error}");
        assert!(
            error.ends_with("; it must be float16, float32 or float64 (bf16: use safetensors)"),
            "{error}"
        );
        write(&path, &Tensor { shape: vec![8], values: Values::F16(vec![f16::ONE; 8]) }).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for bytes in [&whole[..whole.len() - 1], &[&whole[..], &[0]].concat()] {
            std::fs::write(&path, bytes).unwrap();
            let error = read(&path).unwrap_err().to_string();
            assert!(error.starts_with(&path.display().to_string()), "{error}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn f16_and_f32_come_back_as_written() {
        let folder = folder("round");
        let halves =
            vec![f16::from_f32(1.5), f16::NEG_INFINITY, f16::from_f32(-0.0), f16::MAX, f16::ONE, f16::ZERO];
        for values in [Values::F16(halves), Values::F32(vec![1.0, -2.5, 3.0, 1e-40, f32::MAX, 0.0])] {
            let tensor = Tensor { shape: vec![1, 2, 3], values };
            let path = folder.join("x.npy");
            write(&path, &tensor).unwrap();
            assert_eq!(read(&path).unwrap(), tensor);
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
