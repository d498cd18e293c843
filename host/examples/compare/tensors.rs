//! Q, K, V and O in memory, in either layout.

use crate::measure::Failure;
use flash_attention::{Element, Problem, Strides};
use ndarray::{ArrayView4, ShapeBuilder};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand_distr::{Distribution, StandardNormal};
use rayon::prelude::*;

/// The inputs of a call, laid out as its problem says.
pub struct Inputs<T> {
    pub q: Vec<T>,
    pub k: Vec<T>,
    pub v: Vec<T>,
}

/// `(batch, sequence, head, dim)`.
pub type Dim = (usize, usize, usize, usize);

/// Shapes of Q, K, V and O.
pub fn dims(p: &Problem) -> [Dim; 4] {
    [
        (p.batch, p.seqlen_q, p.heads, p.head_dim),
        (p.batch, p.seqlen_k, p.kv_heads, p.head_dim),
        (p.batch, p.seqlen_k, p.kv_heads, p.head_dim_v),
        (p.batch, p.seqlen_q, p.heads, p.head_dim_v),
    ]
}

/// Elements of a tensor.
pub fn len(dim: Dim) -> usize {
    dim.0 * dim.1 * dim.2 * dim.3
}

/// A view `(batch, sequence, head, dim)` of `data`.
pub fn view<T>(data: &[T], dim: Dim, strides: Strides) -> ArrayView4<'_, T> {
    ArrayView4::from_shape(dim.strides(whole(dim, strides)), data).expect("the data has the problem's layout")
}

/// Strides of all four dimensions. Those of an empty tensor must not reach anywhere: ndarray checks them even so.
fn whole(dim: Dim, strides: Strides) -> Dim {
    if len(dim) == 0 { (0, 0, 0, 0) } else { (strides.batch, strides.seq, strides.head, 1) }
}

impl<T: Element> Inputs<T> {
    /// Standard normal values, the same for the same seed.
    pub fn random(problem: &Problem, seed: u64) -> Result<Self, Failure> {
        let [q, k, v, _] = dims(problem);
        Ok(Inputs { q: random(len(q), seed, 0)?, k: random(len(k), seed, 1)?, v: random(len(v), seed, 2)? })
    }
}

/// Values of one tensor; chunks have generators of their own, so that threads can share the work.
fn random<T: Element>(len: usize, seed: u64, tensor: u64) -> Result<Vec<T>, Failure> {
    const CHUNK: usize = 1 << 16;
    let mut data = zeros(len)?;
    data.par_chunks_mut(CHUNK).enumerate().for_each(|(n, chunk)| {
        let mut rng = SmallRng::seed_from_u64(seed.wrapping_mul(3).wrapping_add(tensor) ^ (n as u64) << 32);
        for x in chunk {
            let value: f32 = StandardNormal.sample(&mut rng);
            *x = T::from_f32(value);
        }
    });
    Ok(data)
}

/// Zeros, or word that there is no room for them.
pub fn zeros<T: Copy + Default>(len: usize) -> Result<Vec<T>, Failure> {
    let mut data = Vec::new();
    data.try_reserve_exact(len).map_err(|_| {
        Failure::new(format!("no memory for a tensor of {len} elements; ask for smaller tensors"))
    })?;
    data.resize(len, T::default());
    Ok(data)
}
