//! Tensors from and to files: safetensors, and NumPy's .npy.

use crate::measure::{Failure, file_mask};
use crate::npy;
use crate::options::{Layout, Sizes};
use crate::tensors::{Dim, Inputs, len, view};
use flash_attention::reference::{RowIndex, Rows};
use flash_attention::{DType, Element, Problem};
use half::{bf16, f16};
use ndarray::ArrayView3;
use safetensors::{Dtype as SafeType, SafeTensors, tensor::TensorView};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// A tensor as a file has it.
#[derive(Debug, PartialEq)]
pub struct Tensor {
    pub shape: Vec<usize>,
    pub values: Values,
}

/// The values of a [`Tensor`], in the file's type.
#[derive(Debug, PartialEq)]
pub enum Values {
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    F32(Vec<f32>),
    F64(Vec<f64>),
}

impl Values {
    fn name(&self) -> &'static str {
        match self {
            Values::F16(_) => "f16",
            Values::Bf16(_) => "bf16",
            Values::F32(_) => "f32",
            Values::F64(_) => "f64",
        }
    }

    fn dtype(&self) -> Option<DType> {
        match self {
            Values::F16(_) => Some(DType::F16),
            Values::Bf16(_) => Some(DType::Bf16),
            Values::F32(_) => Some(DType::F32),
            Values::F64(_) => None,
        }
    }

    fn into_f32(self) -> Vec<f32> {
        match self {
            Values::F16(values) => values.into_iter().map(f16::to_f32).collect(),
            Values::Bf16(values) => values.into_iter().map(bf16::to_f32).collect(),
            Values::F32(values) => values,
            Values::F64(values) => values.into_iter().map(|x| x as f32).collect(),
        }
    }
}

/// An element type that files can hold.
pub trait FileElement: Element {
    /// Its name in a safetensors file.
    const SAFE_TYPE: SafeType;

    /// The values, if they are of this type.
    fn take(values: Values) -> Option<Vec<Self>>;

    /// The values as a file's.
    fn wrap(values: Vec<Self>) -> Values;

    /// The value's bytes, the least first.
    fn bytes(self) -> impl AsRef<[u8]>;
}

macro_rules! file_element {
    ($type:ty, $variant:ident, $safe:ident) => {
        impl FileElement for $type {
            const SAFE_TYPE: SafeType = SafeType::$safe;

            fn take(values: Values) -> Option<Vec<Self>> {
                match values {
                    Values::$variant(values) => Some(values),
                    _ => None,
                }
            }

            fn wrap(values: Vec<Self>) -> Values {
                Values::$variant(values)
            }

            fn bytes(self) -> impl AsRef<[u8]> {
                self.to_le_bytes()
            }
        }
    };
}

file_element!(f16, F16, F16);
file_element!(bf16, Bf16, BF16);
file_element!(f32, F32, F32);

/// Q, K and V of a file, and results where it has them.
pub struct File {
    pub dtype: DType,
    pub sizes: Sizes,
    tensors: HashMap<&'static str, Tensor>,
}

/// Results that came with the inputs.
pub struct Expected {
    o: Option<Vec<f32>>,
    lse: Option<Vec<f32>>,
}

const INPUTS: [&str; 3] = ["q", "k", "v"];
const RESULTS: [&str; 4] = ["out", "lse", "out_causal", "lse_causal"];

/// Reads and checks the tensors of `--input`.
pub fn read(paths: &[PathBuf], layout: Layout) -> Result<File, Failure> {
    let tensors = match paths {
        [path] if path.is_dir() => read_folder(path)?,
        [path] if has_extension(path, "safetensors") => read_safetensors(path)?,
        [q, k, v] if paths.iter().all(|path| has_extension(path, "npy")) => {
            INPUTS.into_iter().zip([npy::read(q)?, npy::read(k)?, npy::read(v)?]).collect()
        }
        _ => {
            let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
            return Err(Failure::new(format!(
                "--input is {}, but must be FILE.safetensors, a folder with q.npy, k.npy and v.npy, or the three \
                 .npy files with commas between",
                names.join(",")
            )));
        }
    };
    let place = paths[0].display();
    let get = |name| {
        tensors
            .get(name)
            .ok_or_else(|| Failure::new(format!("{place}: there is no tensor {name}; q, k and v must be")))
    };
    let (q, k, v) = (get("q")?, get("k")?, get("v")?);
    let dim = |name, tensor: &Tensor| match (tensor.shape.as_slice(), layout) {
        (&[b, h, s, d], Layout::Bhsd) | (&[b, s, h, d], Layout::Bshd) => Ok((b, s, h, d)),
        (shape, _) => Err(Failure::new(format!(
            "{place}: {name} has the shape {shape:?}, but must have four dimensions, those of --layout"
        ))),
    };
    let (q_dim, k_dim, v_dim) = (dim("q", q)?, dim("k", k)?, dim("v", v)?);
    for (name, tensor) in [("k", k), ("v", v)] {
        if tensor.values.name() != q.values.name() {
            return Err(Failure::new(format!(
                "{place}: {name} is {}, but q is {}; convert one of them",
                tensor.values.name(),
                q.values.name()
            )));
        }
    }
    if k_dim.0 != q_dim.0 || k_dim.3 != q_dim.3 || (v_dim.0, v_dim.1, v_dim.2) != (k_dim.0, k_dim.1, k_dim.2)
    {
        return Err(Failure::new(format!(
            "{place}: q {:?}, k {:?} and v {:?} do not fit together; q and k share batch and head dim, k and v share \
             batch, sequence and heads",
            q.shape, k.shape, v.shape
        )));
    }
    let dtype = q.values.dtype().ok_or_else(|| {
        Failure::new(format!("{place}: q is {}, but must be f16, bf16 or f32; convert it", q.values.name()))
    })?;
    let sizes = Sizes {
        batch: q_dim.0,
        seqlen_q: q_dim.1,
        seqlen_k: k_dim.1,
        heads: q_dim.2,
        kv_heads: k_dim.2,
        head_dim: q_dim.3,
        head_dim_v: v_dim.3,
    };
    Ok(File { dtype, sizes, tensors })
}

impl File {
    /// The inputs, and the results for the problem's mask.
    pub fn split<T: FileElement>(
        mut self,
        problem: &Problem,
    ) -> Result<(Inputs<T>, Option<Expected>), Failure> {
        let mut take = |name| {
            let tensor = self.tensors.remove(name).expect("read() has seen it");
            T::take(tensor.values).expect("read() has seen its type")
        };
        let inputs = Inputs { q: take("q"), k: take("k"), v: take("v") };
        let Some(mask) = file_mask(problem) else { return Ok((inputs, None)) };
        let o_len = problem.batch * problem.seqlen_q * problem.heads * problem.head_dim_v;
        let lse_len = problem.batch * problem.seqlen_q * problem.heads;
        let mut result = |name: String, expected: usize| match self.tensors.remove(name.as_str()) {
            Some(tensor) if tensor.shape.iter().product::<usize>() != expected => Err(Failure::new(format!(
                "{name} in the input file has the shape {:?}, but must have {expected} elements",
                tensor.shape
            ))),
            tensor => Ok(tensor.map(|tensor| tensor.values.into_f32())),
        };
        let expected =
            Expected { o: result(format!("out{mask}"), o_len)?, lse: result(format!("lse{mask}"), lse_len)? };
        Ok((inputs, Some(expected)))
    }
}

impl Expected {
    /// The file's values of `rows`; none where it has no output.
    pub fn rows(&self, problem: &Problem, rows: &[RowIndex]) -> Option<Rows> {
        let dim: Dim = (problem.batch, problem.seqlen_q, problem.heads, problem.head_dim_v);
        let o = view(self.o.as_ref()?, dim, problem.o);
        let lse = self.lse.as_ref().map(|lse| {
            ArrayView3::from_shape((problem.batch, problem.heads, problem.seqlen_q), lse).expect("checked")
        });
        Some(Rows::gather(o, lse, rows))
    }
}

/// Writes `out` in the type and layout of Q, and `lse`.
pub fn write<T: FileElement>(
    path: &Path,
    problem: &Problem,
    layout: Layout,
    o: &[T],
    lse: &[f32],
) -> Result<(), Failure> {
    let Problem { batch, seqlen_q, heads, head_dim_v, .. } = *problem;
    let o_shape = match layout {
        Layout::Bhsd => vec![batch, heads, seqlen_q, head_dim_v],
        Layout::Bshd => vec![batch, seqlen_q, heads, head_dim_v],
    };
    debug_assert_eq!(o.len(), len((batch, seqlen_q, heads, head_dim_v)));
    let lse_shape = vec![batch, heads, seqlen_q];
    if has_extension(path, "npy") {
        npy::write(path, &Tensor { shape: o_shape, values: T::wrap(o.to_vec()) })?;
        let lse = Tensor { shape: lse_shape, values: Values::F32(lse.to_vec()) };
        return npy::write(&path.with_extension("lse.npy"), &lse);
    }
    if !has_extension(path, "safetensors") {
        return Err(Failure::new(format!(
            "--output is {}, but must end in .safetensors or .npy",
            path.display()
        )));
    }
    let o_bytes: Vec<u8> = o.iter().flat_map(|x| x.bytes().as_ref().to_vec()).collect();
    let lse_bytes: Vec<u8> = lse.iter().flat_map(|x| x.to_le_bytes()).collect();
    let views = [
        ("out", TensorView::new(T::SAFE_TYPE, o_shape, &o_bytes)),
        ("lse", TensorView::new(SafeType::F32, lse_shape, &lse_bytes)),
    ];
    let views = views.map(|(name, view)| (name, view.expect("the bytes fill the shape")));
    let metadata = HashMap::from([("layout".to_string(), layout_name(layout).to_string())]);
    safetensors::serialize_to_file(views, Some(metadata), path)
        .map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}

fn layout_name(layout: Layout) -> &'static str {
    match layout {
        Layout::Bhsd => "batch,heads,tokens,head_dim",
        Layout::Bshd => "batch,tokens,heads,head_dim",
    }
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found.eq_ignore_ascii_case(extension))
}

fn read_folder(folder: &Path) -> Result<HashMap<&'static str, Tensor>, Failure> {
    let mut tensors = HashMap::new();
    for name in INPUTS.into_iter().chain(RESULTS) {
        let path = folder.join(format!("{name}.npy"));
        if path.exists() {
            tensors.insert(name, npy::read(&path)?);
        }
    }
    Ok(tensors)
}

fn read_safetensors(path: &Path) -> Result<HashMap<&'static str, Tensor>, Failure> {
    let at = |error: &dyn std::fmt::Display| Failure::new(format!("{}: {error}", path.display()));
    let bytes = std::fs::read(path).map_err(|error| at(&error))?;
    let file = SafeTensors::deserialize(&bytes).map_err(|error| at(&error))?;
    let mut tensors = HashMap::new();
    for name in INPUTS.into_iter().chain(RESULTS) {
        let Ok(tensor) = file.tensor(name) else { continue };
        let data = tensor.data();
        let values = match tensor.dtype() {
            SafeType::F16 => Values::F16(little_endian(data, f16::from_le_bytes)),
            SafeType::BF16 => Values::Bf16(little_endian(data, bf16::from_le_bytes)),
            SafeType::F32 => Values::F32(little_endian(data, f32::from_le_bytes)),
            SafeType::F64 => Values::F64(little_endian(data, f64::from_le_bytes)),
            other => return Err(at(&format!("{name} is {other:?}, but must be F16, BF16, F32 or F64"))),
        };
        tensors.insert(name, Tensor { shape: tensor.shape().to_vec(), values });
    }
    Ok(tensors)
}

fn little_endian<T, const N: usize>(data: &[u8], value: impl Fn([u8; N]) -> T) -> Vec<T> {
    data.as_chunks::<N>().0.iter().map(|&bytes| value(bytes)).collect()
}
