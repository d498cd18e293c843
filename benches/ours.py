"""Our library in Python: libflash_attention.so through its C ABI, on PyTorch's tensors and stream.

    from ours import Library
    library = Library("target/release/libflash_attention.so")
    o = library.forward(q, k, v, causal=True)

Tensors are (batch, sequence, heads, head_dim), of any strides; only the last dimension has to be contiguous.
`x.transpose(1, 2)` makes PyTorch's (batch, heads, sequence, head_dim) fit.
"""
import ctypes
import math

import torch

OK, INVALID, UNAVAILABLE, DRIVER, INTERNAL = range(5)
NO_MASK, BOTTOM_RIGHT, TOP_LEFT = range(3)
DTYPES = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2}


class ForwardArgs(ctypes.Structure):
    """`flash_attention_forward_args` of flash_attention.h."""

    _fields_ = (
        [("struct_size", ctypes.c_uint32), ("dtype", ctypes.c_int32)]
        + [(name, ctypes.c_void_p) for name in ("q", "k", "v", "o", "lse")]
        + [
            (name, ctypes.c_int64)
            for name in ("batch", "seqlen_q", "seqlen_k", "heads", "kv_heads", "head_dim", "head_dim_v")
        ]
        + [(name + "_stride", ctypes.c_int64 * 3) for name in "qkvo"]
        + [("scale", ctypes.c_float), ("causal", ctypes.c_int32)]
        + [("window_left", ctypes.c_int32), ("window_right", ctypes.c_int32)]
        + [("softcap", ctypes.c_float), ("kernel", ctypes.c_char_p)]
    )


class Refused(Exception):
    """The library answered with a code other than 0."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


class Library:
    """The loaded library. `kernel` names the kernel that every call is to use; None leaves it to the plan."""

    def __init__(self, path, kernel=None):
        self.library = ctypes.CDLL(path)
        for name in ("flash_attention_last_error", "flash_attention_version"):
            getattr(self.library, name).restype = ctypes.c_char_p
        self.library.flash_attention_forward.argtypes = [ctypes.POINTER(ForwardArgs), ctypes.c_void_p]
        self.library.flash_attention_forward.restype = ctypes.c_int32
        self.kernel = kernel.encode() if kernel else None

    @property
    def version(self):
        return self.library.flash_attention_version().decode()

    def prepare(self, q, k, v, o, lse=None, causal=NO_MASK, scale=math.nan, window=(-1, -1), softcap=0.0):
        """The argument structure of a call; the tensors have to outlive it."""
        strides = {
            name + "_stride": (ctypes.c_int64 * 3)(*tensor.stride()[:3])
            for name, tensor in zip("qkvo", (q, k, v, o))
        }
        return ForwardArgs(
            struct_size=ctypes.sizeof(ForwardArgs),
            dtype=DTYPES[q.dtype],
            q=q.data_ptr(),
            k=k.data_ptr(),
            v=v.data_ptr(),
            o=o.data_ptr(),
            lse=None if lse is None else lse.data_ptr(),
            batch=q.shape[0],
            seqlen_q=q.shape[1],
            seqlen_k=k.shape[1],
            heads=q.shape[2],
            kv_heads=k.shape[2],
            head_dim=q.shape[3],
            head_dim_v=v.shape[3],
            scale=scale,
            causal=int(causal),
            window_left=window[0],
            window_right=window[1],
            softcap=softcap,
            kernel=self.kernel,
            **strides,
        )

    def launch(self, args):
        """Puts a prepared call into the current stream."""
        stream = torch.cuda.current_stream().cuda_stream
        code = self.library.flash_attention_forward(ctypes.byref(args), stream)
        if code != OK:
            raise Refused(code, self.library.flash_attention_last_error().decode())

    def forward(self, q, k, v, o=None, **options):
        """Attention of the tensors, in `o` or in a fresh tensor."""
        if o is None:
            o = q.new_empty(*q.shape[:3], v.shape[3])
        self.launch(self.prepare(q, k, v, o, **options))
        return o
