//! The builder that most programs need: tensors in, tensors out, on whatever device they lie.

use crate::device::{self, Device, Gpu, Stream};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::extras::Extras;
use crate::launch::{self, Addresses, RawStream};
use crate::plan::{Alignment, Family, Plan, PlanOptions};
use crate::problem::{Causal, Problem, Window, default_scale};
use crate::tensor::{Memory, MemoryMut, Shape, Tensor, TensorView, TensorViewMut, contiguous};
use crate::{cpu, layout};

impl From<bool> for Causal {
    /// `true` is [`Causal::BottomRight`].
    fn from(causal: bool) -> Self {
        if causal { Causal::BottomRight } else { Causal::No }
    }
}

/// One call of attention: `softmax(scale * q k^T + mask) v`.
///
/// ```
/// use flash_attention::{Attention, Device, Stream, Tensor};
/// // One sequence of two rows, one head, two columns.
/// let device = Device::Cpu;
/// let q = Tensor::from_slice(device, &[1.0f32, 0.0, 0.0, 1.0], [1, 2, 1, 2])?;
/// let v = Tensor::from_slice(device, &[1.0f32, 2.0, 3.0, 4.0], [1, 2, 1, 2])?;
/// let stream = Stream::new(device)?;
/// let output = Attention::forward(&q, &q, &v).causal(true).run(&stream)?;
/// // The first row sees the first key only.
/// assert_eq!(output.o.to_vec()?[..2], [1.0, 2.0]);
/// # Ok::<(), flash_attention::Error>(())
/// ```
#[derive(Clone, Copy)]
#[must_use = "nothing runs before run, run_into or run_on"]
pub struct Attention<'a, T> {
    q: TensorView<'a, T>,
    k: TensorView<'a, T>,
    v: TensorView<'a, T>,
    scale: Option<f32>,
    causal: Causal,
    window: Window,
    softcap: Option<f32>,
    kernel: Option<Family>,
    extras: Extras<'a>,
}

/// What attention gives.
///
/// ```
/// use flash_attention::{Attention, Device, Stream, Tensor};
/// let q = Tensor::<f32>::zeros(Device::Cpu, [2, 5, 4, 8])?;
/// let (k, v) = (Tensor::zeros(Device::Cpu, [2, 7, 2, 8])?, Tensor::zeros(Device::Cpu, [2, 7, 2, 16])?);
/// let output = Attention::forward(&q, &k, &v).run(&Stream::new(Device::Cpu)?)?;
/// assert_eq!(output.o.shape(), [2, 5, 4, 16]);
/// assert_eq!(output.lse.shape(), [2, 4, 5, 1]);
/// // Seven equal scores of 0: each row's sum of exponentials is 7.
/// assert!((output.lse.to_vec()?[0] - 7f32.ln()).abs() < 1e-6);
/// # Ok::<(), flash_attention::Error>(())
/// ```
#[derive(Debug)]
pub struct Output<T> {
    /// O `(batch, seqlen_q, heads, head_dim_v)`, contiguous.
    pub o: Tensor<T>,
    /// LSE: the natural logarithm of each row's sum of exponentials, `(batch, heads, seqlen_q, 1)`, contiguous.
    pub lse: Tensor<f32>,
}

impl<'a, T: Element> Attention<'a, T> {
    /// Attention of Q `(batch, seqlen_q, heads, head_dim)`, K `(batch, seqlen_k, kv_heads, head_dim)` and
    /// V `(batch, seqlen_k, kv_heads, head_dim_v)`; `kv_heads` divides `heads`. Shapes are checked when it runs.
    ///
    /// ```
    /// use flash_attention::{Attention, Strides, TensorView};
    /// // The heads of a packed projection (batch, sequence, q k v, heads, dim): three views of one memory.
    /// let (batch, seqlen, heads, dim) = (1, 6, 2, 8);
    /// let qkv = vec![0.5f32; batch * seqlen * 3 * heads * dim];
    /// let whole = TensorView::from_slice(&qkv, [batch, seqlen, 3 * heads, dim])?;
    /// let strides = Strides::bshd(seqlen, 3 * heads, dim);
    /// let part = |n: usize| whole.window(n * heads * dim, [batch, seqlen, heads, dim], strides);
    /// let attention = Attention::forward(part(0)?, part(1)?, part(2)?);
    /// assert_eq!(attention.problem()?.q.seq, 3 * heads * dim);
    /// # Ok::<(), flash_attention::Error>(())
    /// ```
    pub fn forward(
        q: impl Into<TensorView<'a, T>>,
        k: impl Into<TensorView<'a, T>>,
        v: impl Into<TensorView<'a, T>>,
    ) -> Self {
        Attention {
            q: q.into(),
            k: k.into(),
            v: v.into(),
            scale: None,
            causal: Causal::No,
            window: Window::default(),
            softcap: None,
            kernel: None,
            extras: Extras::default(),
        }
    }

    /// The causal mask: `true` lets the last query see the last key ([`Causal::BottomRight`]); [`Causal::TopLeft`] is
    /// PyTorch's `is_causal`. Both are the same where Q and K are of one length.
    ///
    /// ```
    /// use flash_attention::{Attention, Causal, Device, Stream, Tensor};
    /// // One new query against three keys, whose values are 1, 2 and 3.
    /// let q = Tensor::from_slice(Device::Cpu, &[0.0f32], [1, 1, 1, 1])?;
    /// let k = Tensor::from_slice(Device::Cpu, &[0.0f32; 3], [1, 3, 1, 1])?;
    /// let v = Tensor::from_slice(Device::Cpu, &[1.0f32, 2.0, 3.0], [1, 3, 1, 1])?;
    /// let stream = Stream::new(Device::Cpu)?;
    /// let o = |causal: Causal| Attention::forward(&q, &k, &v).causal(causal).run(&stream)?.o.to_vec();
    /// assert_eq!(o(true.into())?, [2.0]); // It stands at the last key and sees all three.
    /// assert_eq!(o(Causal::TopLeft)?, [1.0]); // It stands at the first key.
    /// # Ok::<(), flash_attention::Error>(())
    /// ```
    pub fn causal(mut self, causal: impl Into<Causal>) -> Self {
        self.causal = causal.into();
        self
    }

    /// The factor on `q . k`, finite and positive; `1/sqrt(head_dim)` where it is left out.
    ///
    /// ```
    /// use flash_attention::{Attention, Device, Tensor};
    /// let q = Tensor::<f32>::zeros(Device::Cpu, [1, 4, 2, 16])?;
    /// assert_eq!(Attention::forward(&q, &q, &q).problem()?.scale, 0.25);
    /// assert_eq!(Attention::forward(&q, &q, &q).scale(0.1).problem()?.scale, 0.1);
    /// let error = Attention::forward(&q, &q, &q).scale(0.0).problem().unwrap_err();
    /// assert!(error.to_string().starts_with("scale is 0, but must be finite and greater than 0"));
    /// # Ok::<(), flash_attention::Error>(())
    /// ```
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = Some(scale);
        self
    }

    /// The cap `c` on the scores, `c * tanh(s / c)`. On the CPU device only so far.
    ///
    /// ```
    /// use flash_attention::{Attention, Device, Stream, Tensor};
    /// let q = Tensor::from_slice(Device::Cpu, &[1e6f32], [1, 1, 1, 1])?;
    /// let lse = Attention::forward(&q, &q, &q).softcap(30.0).run(&Stream::new(Device::Cpu)?)?.lse;
    /// assert_eq!(lse.to_vec()?, [30.0]); // A score of 1e12, capped.
    /// # Ok::<(), flash_attention::Error>(())
    /// ```
    pub fn softcap(mut self, cap: f32) -> Self {
        self.softcap = Some(cap);
        self
    }

    /// The sliding window. On the CPU device only so far.
    ///
    /// ```
    /// use flash_attention::{Attention, Device, Stream, Tensor, Window};
    /// // Values 0 to 5 at six positions; a model's "window of 2" is the row's own key and the one before it.
    /// let q = Tensor::from_slice(Device::Cpu, &[0.0f32; 6], [1, 6, 1, 1])?;
    /// let v = Tensor::from_slice(Device::Cpu, &[0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0], [1, 6, 1, 1])?;
    /// let window = Window { left: Some(1), right: Some(0) };
    /// let output = Attention::forward(&q, &q, &v).window(window).run(&Stream::new(Device::Cpu)?)?;
    /// assert_eq!(output.o.to_vec()?, [0.0, 0.5, 1.5, 2.5, 3.5, 4.5]);
    /// # Ok::<(), flash_attention::Error>(())
    /// ```
    pub fn window(mut self, window: Window) -> Self {
        self.window = window;
        self
    }

    /// Bias, mask, ALiBi, sink and lengths, all in host memory. On the CPU device only so far.
    ///
    /// ```
    /// use flash_attention::{Attention, Bias, Device, Extras, Stream, Tensor};
    /// use half::f16;
    /// use ndarray::Array4;
    /// let zeros = [f16::ZERO; 2 * 8];
    /// let q = Tensor::from_slice(Device::Cpu, &zeros, [1, 2, 1, 8])?;
    /// // A bias in the type of Q, the same for both query rows: the second key is out.
    /// let bias = Array4::from_shape_vec((1, 1, 1, 2), vec![f16::ONE, f16::NEG_INFINITY]).unwrap();
    /// // The head's sink takes part in the sum with a logit of 1 and has no value.
    /// let extras = Extras { bias: Some(Bias::F16(bias.view())), sink: Some(&[1.0]), ..Extras::default() };
    /// let output = Attention::forward(&q, &q, &q).extras(extras).run(&Stream::new(Device::Cpu)?)?;
    /// assert!((output.lse.to_vec()?[0] - (1.0 + 2f32.ln())).abs() < 1e-6);
    /// # Ok::<(), flash_attention::Error>(())
    /// ```
    pub fn extras(mut self, extras: Extras<'a>) -> Self {
        self.extras = extras;
        self
    }

    /// The GPU kernel's family, instead of the plan's choice. Where this is left out, the variable
    /// `FLASH_ATTENTION_KERNEL` (`standard`, `tiled`, `sm80`, `sm90`) can name it; the CPU device ignores that.
    ///
    /// ```
    /// use flash_attention::{Attention, Device, Family, Stream, Tensor};
    /// let q = Tensor::<f32>::zeros(Device::Cpu, [1, 4, 1, 8])?;
    /// let attention = Attention::forward(&q, &q, &q).kernel(Family::Tiled);
    /// let error = attention.run(&Stream::new(Device::Cpu)?).unwrap_err();
    /// let message = "kernel is tiled, but the CPU device has no kernels to choose from; leave it out or use a GPU";
    /// assert_eq!(error.to_string(), message);
    /// # Ok::<(), flash_attention::Error>(())
    /// ```
    pub fn kernel(mut self, family: Family) -> Self {
        self.kernel = Some(family);
        self
    }

    /// The call's numbers, checked; with a contiguous O.
    ///
    /// ```
    /// use flash_attention::{Attention, DType, Device, Tensor};
    /// let q = Tensor::<f32>::zeros(Device::Cpu, [2, 5, 4, 8])?;
    /// let kv = Tensor::<f32>::zeros(Device::Cpu, [2, 7, 2, 8])?;
    /// let problem = Attention::forward(&q, &kv, &kv).problem()?;
    /// assert_eq!((problem.dtype, problem.heads, problem.kv_heads), (DType::F32, 4, 2));
    /// # Ok::<(), flash_attention::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] where shapes do not fit together or a number can never be right.
    pub fn problem(&self) -> Result<Problem> {
        let [batch, seqlen_q, heads, head_dim] = self.q.shape;
        let [_, seqlen_k, kv_heads, head_dim_v] = self.v.shape;
        expect_shape("k", self.k.shape, [batch, seqlen_k, kv_heads, head_dim], "Q and V")?;
        expect_shape("v", self.v.shape, [batch, seqlen_k, kv_heads, head_dim_v], "Q")?;
        let problem = Problem {
            dtype: T::DTYPE,
            batch,
            seqlen_q,
            seqlen_k,
            heads,
            kv_heads,
            head_dim,
            head_dim_v,
            q: self.q.strides,
            k: self.k.strides,
            v: self.v.strides,
            o: contiguous([batch, seqlen_q, heads, head_dim_v]),
            scale: self.scale.unwrap_or_else(|| default_scale(head_dim)),
            causal: self.causal,
            window: self.window,
            softcap: self.softcap,
        };
        problem.check()?;
        Ok(problem)
    }

    /// What would run on `device`, with an aligned and contiguous O; none for the CPU device, which has one way only.
    ///
    /// ```
    /// use flash_attention::{Attention, Device, Tensor};
    /// let q = Tensor::<f32>::zeros(Device::Cpu, [1, 4, 1, 8])?;
    /// assert_eq!(Attention::forward(&q, &q, &q).plan(Device::Cpu)?, None);
    /// # Ok::<(), flash_attention::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Attention::run`].
    pub fn plan(&self, device: Device) -> Result<Option<Plan>> {
        let problem = self.problem()?;
        let Device::Cuda(ordinal) = device else { return Ok(None) };
        let alignment = Alignment::of(self.q.address(), self.k.address(), self.v.address(), 0);
        let options = PlanOptions { kernel: self.family()?, alignment };
        Plan::new(&problem, Gpu::get(ordinal)?.properties(), &options).map(Some)
    }

    /// Puts the call into `stream` with fresh outputs. It may return before the work is done:
    /// [`Tensor::to_vec`] and [`Stream::synchronize`] wait for it.
    ///
    /// ```
    /// use flash_attention::{Attention, Device, Stream, Tensor};
    /// let stream = Stream::new(Device::Cpu)?;
    /// let q = Tensor::from_slice(Device::Cpu, &[1.0f32, 2.0], [1, 2, 1, 1])?;
    /// let output = Attention::forward(&q, &q, &q).causal(true).run(&stream)?;
    /// assert_eq!(output.o.to_vec()?[0], 1.0);
    /// # Ok::<(), flash_attention::Error>(())
    /// ```
    ///
    /// # Errors
    /// Everything that can be known to be wrong before the launch, with the way out.
    pub fn run(&self, stream: &Stream) -> Result<Output<T>> {
        let problem = self.problem()?;
        let Problem { batch, seqlen_q, heads, head_dim_v, .. } = problem;
        let mut o = Tensor::for_output(stream.device(), [batch, seqlen_q, heads, head_dim_v])?;
        let mut lse = Tensor::for_output(stream.device(), [batch, heads, seqlen_q, 1])?;
        self.run_into(stream, &mut o, Some(lse.view_mut()))?;
        Ok(Output { o, lse })
    }

    /// As [`Attention::run`], into memory of the caller; `lse` is `(batch, heads, seqlen_q, 1)` and contiguous. After
    /// the first call of a kind this allocates nothing, loads nothing and waits for nothing.
    ///
    /// Safe code can read an output too early only through another stream or [`TensorView::from_raw`], and gets old or
    /// half-written numbers then, never foreign memory: tensors wait for the device when they are dropped.
    ///
    /// ```
    /// use flash_attention::{Attention, Device, Stream, Tensor};
    /// let stream = Stream::new(Device::Cpu)?;
    /// let q = Tensor::from_slice(Device::Cpu, &[1.0f32, 2.0], [1, 2, 1, 1])?;
    /// let (mut o, mut lse) = (Tensor::zeros(Device::Cpu, [1, 2, 1, 1])?, Tensor::zeros(Device::Cpu, [1, 1, 2, 1])?);
    /// let attention = Attention::forward(&q, &q, &q).causal(true);
    /// for _layer in 0..3 {
    ///     attention.run_into(&stream, &mut o, Some(lse.view_mut()))?; // The same memory each time.
    /// }
    /// assert_eq!((o.to_vec()?[0], lse.to_vec()?[0]), (1.0, 1.0));
    /// # Ok::<(), flash_attention::Error>(())
    /// ```
    ///
    /// # Errors
    /// As there; the outputs are untouched then.
    pub fn run_into<'o>(
        &self,
        stream: &Stream,
        o: impl Into<TensorViewMut<'o, T>>,
        lse: Option<TensorViewMut<'o, f32>>,
    ) -> Result<()>
    where
        T: 'o,
    {
        let (o, lse) = (o.into(), lse);
        let problem = self.checked(&o, lse.as_ref())?;
        let devices = [
            ("q", self.q.device()),
            ("k", self.k.device()),
            ("v", self.v.device()),
            ("o", o.device()),
            ("lse", lse.as_ref().and_then(TensorViewMut::device)),
        ];
        for (name, device) in devices {
            if let Some(device) = device.filter(|&device| device != stream.device()) {
                return Err(Error::invalid(
                    name,
                    format!("on {device}"),
                    format!("must be where the stream is, on {}", stream.device()),
                    "copy the tensor or use a stream of its device",
                ));
            }
        }
        let Some((gpu, raw)) = stream.gpu() else { return self.run_on_cpu(&problem, o, lse) };
        self.only_plain()?;
        let family = self.family()?;
        let _entered = gpu.enter()?;
        // SAFETY: tensors of ours are as large as their views say and outlive the work, because dropping one waits;
        // who made views of foreign memory has promised the same. The stream is the context's own.
        unsafe { launch::forward_in(gpu.state(), &problem, &self.addresses(&o, lse.as_ref()), family, raw) }
    }

    /// As [`Attention::run_into`], into a stream of the context that is current on this thread, whoever made them.
    ///
    /// ```no_run
    /// use flash_attention::launch::RawStream;
    /// use flash_attention::{Attention, TensorView, TensorViewMut};
    /// use half::bf16;
    /// # let (q, k, v, o): (u64, u64, u64, u64) = (0, 0, 0, 0);
    /// # let stream: RawStream = std::ptr::null_mut();
    /// let shape = [2, 1024, 16, 128];
    /// // SAFETY: four tensors of another library in the current context; it keeps them until `stream` is done.
    /// unsafe {
    ///     let view = |address| TensorView::<bf16>::from_raw(address, shape);
    ///     let o = TensorViewMut::from_raw(o, shape);
    ///     Attention::forward(view(q), view(k), view(v)).causal(true).run_on(stream, o, None)?;
    /// }
    /// # Ok::<(), flash_attention::Error>(())
    /// ```
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As [`launch::forward`]: the call returns before the work is done, and nothing here keeps the memory of the five
    /// tensors alive until then.
    pub unsafe fn run_on(
        &self,
        stream: RawStream,
        o: TensorViewMut<'_, T>,
        lse: Option<TensorViewMut<'_, f32>>,
    ) -> Result<()> {
        let problem = self.checked(&o, lse.as_ref())?;
        self.only_plain()?;
        // SAFETY: the caller's promises.
        unsafe { launch::forward(&problem, &self.addresses(&o, lse.as_ref()), self.kernel, stream) }
    }

    /// The problem with O's strides, everything checked that does not depend on the device.
    fn checked(&self, o: &TensorViewMut<'_, T>, lse: Option<&TensorViewMut<'_, f32>>) -> Result<Problem> {
        let mut problem = self.problem()?;
        let Problem { batch, seqlen_q, heads, head_dim_v, .. } = problem;
        expect_shape("o", o.shape, [batch, seqlen_q, heads, head_dim_v], "Q and V")?;
        problem.o = o.strides;
        if let Some(lse) = lse {
            expect_shape("lse", lse.shape, [batch, heads, seqlen_q, 1], "Q")?;
            if lse.strides != contiguous(lse.shape) {
                return Err(Error::invalid(
                    "lse",
                    format!("a tensor with {:?}", lse.strides),
                    "must be contiguous (batch, heads, seqlen_q)",
                    "give it memory of its own",
                ));
            }
        }
        layout::check(&problem, &self.addresses(o, lse))?;
        Ok(problem)
    }

    fn addresses(&self, o: &TensorViewMut<'_, T>, lse: Option<&TensorViewMut<'_, f32>>) -> Addresses {
        Addresses {
            q: self.q.address(),
            k: self.k.address(),
            v: self.v.address(),
            o: o.address(),
            lse: lse.map_or(0, TensorViewMut::address),
        }
    }

    fn family(&self) -> Result<Option<Family>> {
        match self.kernel {
            Some(family) => Ok(Some(family)),
            None => device::kernel_override(),
        }
    }

    /// Refuses on a GPU what only the CPU device computes so far.
    fn only_plain(&self) -> Result<()> {
        let Extras { alibi_slopes, bias, mask, sink, lengths_q, lengths_k, cu_seqlens_q, cu_seqlens_k } =
            &self.extras;
        let given = [
            ("ALiBi slopes", alibi_slopes.is_some()),
            ("a bias", bias.is_some()),
            ("a mask tensor", mask.is_some()),
            ("an attention sink", sink.is_some()),
            ("lengths", lengths_q.is_some() || lengths_k.is_some()),
            ("cumulative lengths", cu_seqlens_q.is_some() || cu_seqlens_k.is_some()),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((what, _)) => {
                Err(Error::unavailable_on_gpu(format!("no GPU kernel takes {what} yet"), "leave it out"))
            }
            None => Ok(()),
        }
    }

    fn run_on_cpu(
        &self,
        problem: &Problem,
        o: TensorViewMut<'_, T>,
        lse: Option<TensorViewMut<'_, f32>>,
    ) -> Result<()> {
        if let Some(family) = self.kernel {
            return Err(Error::invalid(
                "kernel",
                family.name(),
                "the CPU device has no kernels to choose from",
                "leave it out or use a GPU",
            ));
        }
        let host = |name, view: &TensorView<'a, T>| match view.memory {
            Memory::Host(values) => Ok(values),
            Memory::Gpu { .. } => Err(on_gpu(name)),
        };
        let (q, k, v) = (host("q", &self.q)?, host("k", &self.k)?, host("v", &self.v)?);
        let MemoryMut::Host(o) = o.memory else { return Err(on_gpu("o")) };
        let lse = match lse.map(|lse| lse.memory) {
            None => None,
            Some(MemoryMut::Host(lse)) => Some(lse),
            Some(MemoryMut::Gpu { .. }) => return Err(on_gpu("lse")),
        };
        cpu::forward(problem, q, k, v, &self.extras, o, lse)
    }
}

fn on_gpu(name: &'static str) -> Error {
    Error::invalid(name, "device memory", "the stream is the CPU's", "use a stream of the GPU")
}

fn expect_shape(name: &'static str, shape: Shape, expected: Shape, whose: &str) -> Result<()> {
    if shape == expected {
        return Ok(());
    }
    Err(Error::invalid(
        name,
        format!("{shape:?}"),
        format!("it must be {expected:?} beside the shapes of {whose}"),
        "check the shapes",
    ))
}

#[cfg(test)]
mod tests;
