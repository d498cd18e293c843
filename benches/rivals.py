"""The rivals' attention as plain calls on (batch, sequence, heads, head_dim) tensors."""
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


def sdpa(backend):
    """PyTorch's scaled_dot_product_attention with one backend; it takes (batch, heads, sequence, head_dim)."""

    def call(q, k, v, causal):
        q, k, v = [x.transpose(1, 2) for x in (q, k, v)]
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)

    return call


def available():
    """Name and call of each rival that is installed: fa2, cudnn, and fa3 from PyPI's wheel `fa3-fwd`."""
    found = {"fa2": sdpa(SDPBackend.FLASH_ATTENTION), "cudnn": sdpa(SDPBackend.CUDNN_ATTENTION)}
    try:
        from fa3_fwd_interface import flash_attn_func

        def fa3(q, k, v, causal):
            result = flash_attn_func(q, k, v, causal=causal)
            return result[0] if isinstance(result, tuple) else result  # some versions return the log-sum-exp too

        found["fa3"] = fa3
    except Exception as missing:
        print("note: FlashAttention-3 is not here:", repr(missing)[:100])
    return found


def capture(call):
    """A graph that replays the call; the call itself ran three times before."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph
