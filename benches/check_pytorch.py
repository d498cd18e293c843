#!/usr/bin/env python3
"""Checks libflash_attention.so against PyTorch, on a GPU, through PyTorch's own tensors.

  check_pytorch.py libflash_attention.so [--kernel NAME] [--quick] [--verbose]     shapes, masks, layouts, tails
  check_pytorch.py libflash_attention.so --soak 10000 [--seed N]                   random shapes, bounded
  check_pytorch.py libflash_attention.so --errors                                  errors and bits beside the rivals'

A result is right if its relative Frobenius error, its worst row and its worst element against f64 are each at most
twice those of a plain run in the same precision plus a rounding-sized constant, its log-sum-exp is within
1e-4 * max(1, |lse|), and NaN and -inf are in the same places. Outputs start as NaN, and what lies around the tensors
is NaN and has to stay so. A case that the asked-for kernel refuses is listed; a case that the plan's own choice
refuses is a failure. Exit code 0 only if nothing failed.
"""
import argparse
import itertools
import math
import os
import random
import sys
import threading
import time

import torch

import ours
import rivals

DEVICE = "cuda"
F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
NAMES = {F16: "f16", BF16: "bf16", F32: "f32"}
# Rounding-sized constants: a few units in the last place of the type.
ROUNDING = {F16: 2.0**-11, BF16: 2.0**-8, F32: 8 * 2.0**-23}
MASKS = {ours.NO_MASK: "full", ours.BOTTOM_RIGHT: "causal", ours.TOP_LEFT: "top-left"}


class Case:
    """One call: types, sizes, mask and how the tensors lie in memory."""

    def __init__(self, dtype, b, s_q, s_k, h, h_k, d, d_v=None, causal=0, layout="bshd", scale=math.nan, **features):
        self.dtype, self.b, self.s_q, self.s_k, self.h, self.h_k = dtype, b, s_q, s_k, h, h_k
        self.d, self.d_v, self.causal, self.layout, self.scale = d, d_v or d, causal, layout, scale
        self.window = features.get("window", (-1, -1))
        self.softcap = features.get("softcap", 0.0)
        # A feature that kernels may not have yet: a typed refusal is no failure.
        self.optional = bool(features)

    def __str__(self):
        heads = "%d" % self.h if self.h == self.h_k else "%d/%d" % (self.h, self.h_k)
        dims = "%d" % self.d if self.d == self.d_v else "%d:%d" % (self.d, self.d_v)
        extras = "" if math.isnan(self.scale) else " scale %g" % self.scale
        extras += "" if self.window == (-1, -1) else " window %d,%d" % self.window
        extras += " softcap %g" % self.softcap if self.softcap else ""
        return "%-4s b %d s %dx%d h %s d %s %s %s%s" % (
            NAMES[self.dtype], self.b, self.s_q, self.s_k, heads, dims, MASKS[self.causal], self.layout, extras)

    def options(self):
        return dict(causal=self.causal, scale=self.scale, window=self.window, softcap=self.softcap)


class Memory:
    """A tensor somewhere in a buffer of NaN, and the means to see that the rest of the buffer stayed as it was."""

    def __init__(self, dtype, b, s, h, d, layout, output=False):
        if layout == "bhsd":
            self.buffer = torch.empty(b, h, s, d, dtype=dtype, device=DEVICE)
            self.view = self.buffer.transpose(1, 2)
        elif layout == "padded":  # a window into a larger buffer, rows still 16-byte aligned
            self.buffer = torch.empty(b, s + 5, h + 1, d + 16, dtype=dtype, device=DEVICE)
            self.view = self.buffer[:, 2 : 2 + s, :h, 8 : 8 + d]
        elif layout == "odd":  # rows that start anywhere
            self.buffer = torch.empty(b, s + 2, h, d + 1, dtype=dtype, device=DEVICE)
            self.view = self.buffer[:, 1 : 1 + s, :, 1:]
        elif layout == "broadcast" and not output:  # one sequence for all of the batch
            self.buffer = torch.empty(1, s, h, d, dtype=dtype, device=DEVICE)
            self.view = self.buffer.expand(b, s, h, d)
        else:
            self.buffer = torch.empty(b, s, h, d, dtype=dtype, device=DEVICE)
            self.view = self.buffer
        self.buffer.fill_(math.nan)
        if not output:
            one = self.view[:1] if layout == "broadcast" else self.view
            one.copy_(torch.randn(one.shape, dtype=F32, device=DEVICE))

    def stray_writes(self):
        """How many elements outside of the tensor are not NaN any more."""
        inside = self.view.numel() - torch.isnan(self.view).sum()
        return self.buffer.numel() - torch.isnan(self.buffer).sum() - inside


def scores(q, k, case):
    """Masked scores (b, h, s_q, s_k) in the type of q; keys that are not allowed are -inf."""
    scale = 1 / math.sqrt(case.d) if math.isnan(case.scale) else case.scale
    s = torch.einsum("bihd,bjhd->bhij", q, k) * scale
    if case.softcap:
        s = case.softcap * torch.tanh(s / case.softcap)
    delta = 0 if case.causal == ours.TOP_LEFT else case.s_k - case.s_q
    distance = (
        torch.arange(case.s_k, device=DEVICE)[None, :] - torch.arange(case.s_q, device=DEVICE)[:, None] - delta
    )
    masked = torch.zeros_like(distance, dtype=torch.bool)
    if case.causal:
        masked |= distance > 0
    if case.window[0] >= 0:
        masked |= distance < -case.window[0]
    if case.window[1] >= 0:
        masked |= distance > case.window[1]
    return s.masked_fill_(masked, -math.inf)


def attention(q, k, v, case, wide, round_p=None):
    """Output and log-sum-exp by the definition, all in the type `wide`, P rounded to `round_p`."""
    group = case.h // case.h_k
    q, k, v = q.to(wide), k.to(wide).repeat_interleave(group, 2), v.to(wide).repeat_interleave(group, 2)
    s = scores(q, k, case)
    lse = torch.logsumexp(s, -1) if case.s_k else torch.full(s.shape[:3], -math.inf, dtype=wide, device=DEVICE)
    p = torch.exp(s - lse.masked_fill(lse == -math.inf, 0)[..., None])
    if round_p:
        p = p.to(round_p).to(wide)
    return torch.einsum("bhij,bjhd->bihd", p, v), lse


def distances(o, truth):
    """Relative Frobenius error, worst row and worst element, the latter two relative to the truth's largest."""
    e, t = (o.double() - truth).flatten(0, -2), truth.flatten(0, -2)
    norm = lambda x: torch.linalg.vector_norm(x, dim=-1)
    tiny = 1e-300
    return torch.stack([
        torch.linalg.vector_norm(e) / (torch.linalg.vector_norm(t) + tiny),
        norm(e).max() / (norm(t).max() + tiny),
        e.abs().max() / (t.abs().max() + tiny),
    ])


def check(library, case):
    """None if the case is right, else what is wrong; and the errors."""
    make = lambda s, h, d, **more: Memory(case.dtype, case.b, s, h, d, case.layout, **more)
    q, k, v = make(case.s_q, case.h, case.d), make(case.s_k, case.h_k, case.d), make(case.s_k, case.h_k, case.d_v)
    o = make(case.s_q, case.h, case.d_v, output=True)
    lse = torch.full((case.b, case.h, case.s_q), math.nan, dtype=F32, device=DEVICE)
    library.forward(q.view, k.view, v.view, o.view, lse=lse, **case.options())
    if o.view.numel() == 0:
        return (None if int(o.stray_writes()) == 0 else "wrote outside of an empty output"), [0.0] * 7
    truth, true_lse = attention(q.view, k.view, v.view, case, torch.float64)
    narrow = None if case.dtype == F32 else case.dtype
    plain = attention(q.view, k.view, v.view, case, F32, narrow)[0].to(case.dtype)
    empty = true_lse == -math.inf
    lse_error = ((lse - true_lse).abs() / true_lse.abs().clamp(min=1)).masked_fill(empty, 0)
    numbers = torch.cat([
        distances(o.view, truth), distances(plain, truth),
        torch.stack([
            lse_error.nan_to_num(nan=math.inf).max(), (empty != (lse == -math.inf)).sum().double(),
            torch.isnan(o.view).sum().double(), o.stray_writes().double(),
            (o.view.transpose(1, 2)[empty] != 0).sum().double(),
        ]),
    ]).tolist()
    error, same, (lse_worst, lse_places, nans, stray, nonzero) = numbers[:3], numbers[3:6], numbers[6:]
    shown = error + same + [lse_worst]
    if nans:
        return "%d of %d elements are NaN" % (nans, o.view.numel()), shown
    if stray:
        return "%d elements outside of the output were written" % stray, shown
    if lse_places or nonzero:
        return "rows without keys: %d wrong log-sum-exp, %d non-zero outputs" % (lse_places, nonzero), shown
    for name, e, p in zip(("Frobenius error", "worst row", "worst element"), error, same):
        if not e <= 2 * p + ROUNDING[case.dtype]:
            at = (o.view.double() - truth).abs().flatten().argmax().item()
            where = [int(x) for x in torch.unravel_index(torch.tensor(at), o.view.shape)]
            values = (o.view.reshape(-1)[at].item(), truth.flatten()[at].item())
            return "%s %.2g, plain run %.2g; at (b, s, h, d) = %s: %g, truth %g" % (name, e, p, where, *values), shown
    if not lse_worst <= 1e-4:
        at = lse_error.nan_to_num(nan=math.inf).flatten().argmax().item()
        where = [int(x) for x in torch.unravel_index(torch.tensor(at), lse.shape)]
        return "log-sum-exp off by %.2g at (b, h, s) = %s" % (lse_worst, where), shown
    return None, shown


def cases(quick):
    """Every dimension of the contract against the others, in small sizes."""
    all_masks = (ours.NO_MASK, ours.BOTTOM_RIGHT, ours.TOP_LEFT)
    dims = (64, 128, 72) if quick else (8, 32, 64, 72, 96, 104, 128, 160, 192, 256)
    sizes = [(128, 128), (1, 1), (127, 129), (300, 170), (65, 333)]
    sizes += [] if quick else [(1, 257), (129, 1), (256, 384), (512, 512), (513, 1025), (64, 64), (191, 191)]
    for dtype, d, causal in itertools.product((F16, BF16), dims, all_masks):
        for s_q, s_k in sizes:
            yield Case(dtype, 2, s_q, s_k, 4, 2, d, causal=causal)
    for d, causal in itertools.product((64, 72) if quick else (1, 8, 33, 64, 72, 128, 200, 256), all_masks):
        for s_q, s_k in sizes[:5]:
            yield Case(F32, 2, s_q, s_k, 4, 2, d, causal=causal)
    for dtype, d in itertools.product((F16, BF16, F32), (96, 256, 8) if quick else ()):
        yield Case(dtype, 1, 200, 200, 2, 2, d, causal=1)
    for layout, d, causal in itertools.product(("bhsd", "padded", "odd", "broadcast"), (64, 128, 88), (0, 1)):
        yield Case(BF16, 3, 150, 210, 6, 2, d, causal=causal, layout=layout)
    for dtype, (h, h_k) in itertools.product((F16, F32), ((8, 1), (6, 3), (5, 5), (32, 8))):
        yield Case(dtype, 2, 100, 260, h, h_k, 64, causal=1)
    # Short queries of grouped heads, which may share tiles.
    groups = ((6, 2), (8, 1)) if quick else ((4, 2), (6, 2), (8, 2), (7, 1), (16, 2), (16, 1), (64, 1))
    short = (1, 17) if quick else (1, 3, 17, 64, 100)
    for n, ((h, h_k), s_q, d) in enumerate(itertools.product(groups, short, (64, 128) if quick else (64, 96, 128, 256))):
        layout = ("bshd", "bhsd", "padded")[n % 3]
        yield Case((F16, BF16)[n % 2], 2, s_q, 300, h, h_k, d, layout=layout)
        yield Case((BF16, F16)[n % 2], 3, s_q, (20, 170, 1000)[n % 3], h, h_k, d, causal=1 + n % 2, layout=layout)
    for d, d_v in ((64, 128), (128, 64), (192, 128), (40, 96), (8, 256)):
        yield Case(BF16, 2, 140, 270, 3, 3, d, d_v, causal=1)
        yield Case(F32, 1, 70, 90, 3, 3, d, d_v, causal=0)
    for dtype, (b, s_q, s_k) in itertools.product((F16, F32), ((0, 5, 5), (2, 0, 5), (2, 5, 0), (1, 0, 0))):
        yield Case(dtype, b, s_q, s_k, 2, 2, 64, causal=1)
    yield Case(F16, 1, 64, 64, 1, 1, 64, scale=2.0)
    yield Case(F32, 1, 64, 64, 1, 1, 64, scale=30.0)
    yield Case(BF16, 1, 2048, 2048, 2, 2, 128, causal=1)
    yield Case(F16, 70, 1, 1000, 4, 4, 64)
    for causal, window in itertools.product((0, 1), ((16, 0), (40, 9), (-1, 3), (0, -1))):
        yield Case(F16, 1, 150, 180, 2, 2, 64, causal=causal, window=window)
    yield Case(F16, 1, 150, 180, 2, 2, 64, softcap=5.0)
    if not quick:
        yield Case(F16, 1, 8192, 8192, 1, 1, 128, causal=1)
        yield Case(BF16, 1, 16, 16384, 8, 1, 128)
        yield Case(BF16, 1, 4096, 4096, 2, 1, 256)
        yield Case(F16, 1300, 60, 60, 60, 60, 8)


def run_cases(library, quick, verbose):
    counts = dict(ok=0, refused=0, failed=0)
    refusals = {}
    print("%-62s %9s %9s %9s %9s" % ("case", "error", "plain", "worst", "lse"))
    for case in cases(quick):
        try:
            wrong, numbers = check(library, case)
        except ours.Refused as refusal:
            key = str(refusal)
            fine = (library.kernel is not None or case.optional) and refusal.code in (ours.INVALID, ours.UNAVAILABLE)
            if fine:
                counts["refused"] += 1
                refusals.setdefault(key, []).append(str(case))
                continue
            wrong, numbers = "refused (%d): %s" % (refusal.code, key), [math.nan] * 7
        counts["failed" if wrong else "ok"] += 1
        if wrong or verbose:
            error, plain, worst, lse = numbers[0], numbers[3], numbers[2], numbers[6]
            print("%-62s %9.2g %9.2g %9.2g %9.2g  %s" % (case, error, plain, worst, lse, "FAILED: " + wrong if wrong else "ok"))
        if wrong and refusal_is_fatal(wrong):
            print("the GPU is in an error state: stopping")
            break
    else:
        try:
            wrong = captured(library)
        except ours.Refused as refusal:
            wrong = None if library.kernel is not None and refusal.code == ours.INVALID else str(refusal)
            counts["refused"] += wrong is None
        else:
            counts["ok"] += wrong is None
        if wrong:
            counts["failed"] += 1
            print("a call captured in a graph  FAILED: " + wrong)
    for text, where in refusals.items():
        print("refused %d, such as [%s]: %s" % (len(where), where[0], text))
    print("%(ok)d passed, %(failed)d failed, %(refused)d refused" % counts)
    return counts["failed"] == 0 and counts["ok"] > 0


def captured(library):
    """None if a call captured in a graph follows its inputs each time it is replayed, else what is wrong."""
    # More tiles than a GPU runs at once, so that persistent kernels hand out second ones.
    case = Case(BF16, 2, 1500, 1500, 8, 2, 128, causal=1)
    q, k, v = [Memory(case.dtype, case.b, s, h, case.d, case.layout).view for s, h in
               ((case.s_q, case.h), (case.s_k, case.h_k), (case.s_k, case.h_k))]
    # "standard" wants its workspace before the capture.
    o = library.forward(q, k, v, **case.options())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        library.forward(q, k, v, o, **case.options())
    for replay in range(3):
        q.copy_(torch.randn(q.shape, dtype=F32, device=DEVICE))
        o.fill_(math.nan)
        graph.replay()
        expected = library.forward(q, k, v, **case.options())
        differ = int((o != expected).sum())
        if differ:
            return "replay %d: %d elements differ from those of the call itself" % (replay, differ)
    return None


def refusal_is_fatal(wrong):
    return wrong.startswith("refused (%d)" % ours.DRIVER)


def random_case(rng):
    """A random shape whose tensors and scores stay small."""
    while True:
        dtype = rng.choice((F16, BF16, F16, BF16, F32))
        d, d_v = 8 * rng.randint(1, 32), 8 * rng.randint(1, 32)
        if rng.random() < 0.7:
            d = d_v = rng.choice((64, 128, 256, 64, 128, 96, 192, d))
        length = lambda: int(2 ** rng.uniform(0, 11.5))
        s_q, s_k = length(), length()
        h_k = rng.randint(1, 4)
        h, b = h_k * rng.choice((1, 1, 2, 4, rng.randint(3, 16))), rng.randint(1, 6)
        if b * h * s_q * s_k <= 2**24 and b * h * max(s_q, s_k) * max(d, d_v) <= 2**23:
            layout = rng.choice(("bshd", "bshd", "bhsd", "padded"))
            return Case(dtype, b, s_q, s_k if rng.random() < 0.7 else s_q, h, h_k, d, d_v, rng.randint(0, 2), layout)


def soak(library, launches, seed, per_shape=50):
    """Random shapes: each checked once, then launched again and again with the bits compared; a hang is reported."""
    rng, started = random.Random(seed), time.time()
    done, failed, refused, progress = 0, 0, 0, [time.time(), ""]

    def watch():
        while True:
            time.sleep(1)
            if time.time() - progress[0] > 30:
                print("HANG: no progress for 30 s in", progress[1], flush=True)
                os._exit(3)

    threading.Thread(target=watch, daemon=True).start()
    while done < launches:
        case = random_case(rng)
        progress[:] = [time.time(), str(case)]
        try:
            wrong, _ = check(library, case)
            if not wrong:
                n = min(per_shape, launches - done)
                wrong = repeat(library, case, n)
                done += n
        except ours.Refused as refusal:
            if library.kernel is not None and refusal.code != ours.DRIVER:
                refused += 1
                if refused > 10 * launches:
                    break
                continue
            wrong = "refused (%d): %s" % (refusal.code, refusal)
        done += 1
        if wrong:
            failed += 1
            print("%s  FAILED: %s" % (case, wrong), flush=True)
            if failed >= 10:
                break
    took = time.time() - started
    print("soak: seed %d, %d launches in %.1f s, %d shapes refused, %d failed" % (seed, done, took, refused, failed))
    return failed == 0 and done >= launches


def repeat(library, case, times):
    """Launches a case again and again, alternating between two streams, and compares the bits."""
    q, k, v = [Memory(case.dtype, case.b, s, h, d, case.layout).view for s, h, d in
               ((case.s_q, case.h, case.d), (case.s_k, case.h_k, case.d), (case.s_k, case.h_k, case.d_v))]
    first = library.forward(q, k, v, **case.options())
    bits = lambda x: x.view(torch.int32 if x.dtype == F32 else torch.int16)
    streams = [torch.cuda.Stream() for _ in range(2)]
    outputs = [torch.empty_like(first) for _ in streams]
    counts = [torch.zeros((), dtype=torch.int64, device=DEVICE) for _ in streams]
    torch.cuda.synchronize()
    for i in range(times):
        at = i % len(streams)
        with torch.cuda.stream(streams[at]):
            outputs[at].fill_(math.nan)
            library.forward(q, k, v, outputs[at], **case.options())
            counts[at] += (bits(outputs[at]) != bits(first)).sum()
    torch.cuda.synchronize()
    mismatches = sum(int(count) for count in counts)
    return "%d elements differ between launches" % mismatches if mismatches else None


def with_outliers(shape, dtype, generator):
    x = torch.randn(shape, device=DEVICE, generator=generator)
    chosen = torch.rand(shape, device=DEVICE, generator=generator) < 1e-3
    return torch.where(chosen, 10 * x, x).to(dtype)


def errors(library, seqlen=4096, heads=2):
    """Our error against f64 beside the rivals' on the same data, and the bits over runs and batch positions."""
    generator, good = torch.Generator(DEVICE).manual_seed(0), True
    contestants = rivals.available()
    names = ["ours"] + list(contestants) + ["plain"]
    print("relative Frobenius error against f64, n = %d; 'ok' within 2 %% of the yardstick" % seqlen)
    print("%-5s %4s %-6s %-8s" % ("dtype", "d", "causal", "data"), *["%10s" % n for n in names], " ours/yardstick")
    for dtype, d, causal, outliers in itertools.product((BF16, F16), (64, 128, 256), (0, 1), (False, True)):
        case = Case(dtype, 1, seqlen, seqlen, heads, heads, d, causal=causal)
        shape = (1, seqlen, heads, d)
        q, k, v = [
            with_outliers(shape, dtype, generator) if outliers
            else torch.randn(shape, device=DEVICE, generator=generator).to(dtype) for _ in range(3)
        ]
        truth = attention(q, k, v, case, torch.float64)[0]
        outputs = {"plain": attention(q, k, v, case, F32, dtype)[0].to(dtype)}
        for name, call in contestants.items():
            try:
                outputs[name] = call(q, k, v, bool(causal))
            except Exception as refusal:  # a rival that lacks this type or size
                print("note: %s: %s" % (name, repr(refusal)[:100]))
        try:
            outputs["ours"] = library.forward(q, k, v, causal=causal)
        except ours.Refused as refusal:
            print("%s  FAILED: refused: %s" % (case, refusal))
            good = False
            continue
        e = {name: float(distances(o, truth)[0]) for name, o in outputs.items()}
        yardstick = "fa3" if dtype == BF16 and "fa3" in e else "fa2" if "fa2" in e else "plain"
        ratio = e["ours"] / e[yardstick]
        good &= ratio <= 1.02
        print("%-5s %4d %-6s %-8s" % (NAMES[dtype], d, bool(causal), "outliers" if outliers else "normal"),
              *["%10.3g" % e[n] if n in e else "%10s" % "-" for n in names],
              "  %.3f of %s %s" % (ratio, yardstick, "ok" if ratio <= 1.02 else "LARGER"))
    return same_bits(library) and good


def other_bits_elsewhere(library, case):
    """Whether the first sequence of a batch has other bits at another position, among other data."""
    q, k, v = [Memory(case.dtype, case.b, case.s_q, h, case.d, "bshd").view for h in (case.h, case.h_k, case.h_k)]
    alone = library.forward(q[:1], k[:1], v[:1], causal=case.causal)[0]
    for position in range(case.b):
        moved = [x.clone() for x in (q, k, v)]
        for x, y in zip(moved, (q, k, v)):
            x[position] = y[0]
        together = library.forward(*moved, causal=case.causal)[position]
        if not torch.equal(together.view(torch.int16), alone.view(torch.int16)):
            return "other bits at batch position %d of %d than alone" % (position, case.b)
    return None


def same_bits(library, runs=100, batch=5):
    """The same bits in every run, and at every position of a batch among other data."""
    good = True
    for dtype, d, causal, (s, h) in itertools.product((BF16, F16), (64, 128, 256), (0, 1), ((1000, 4), (9, 14))):
        case = Case(dtype, batch, s, s, h, 2, d, causal=causal)
        try:
            wrong = repeat(library, case, runs) or other_bits_elsewhere(library, case)
        except ours.Refused as refusal:
            wrong = "refused: %s" % refusal
        if wrong:
            print("%s  FAILED: %s" % (case, wrong))
            good = False
    print("bits: %d runs and %d batch positions, %s" % (runs, batch, "all the same" if good else "NOT the same"))
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", help="path of libflash_attention.so")
    parser.add_argument("--kernel", help="tiled, sm80, sm90 or standard; left out: the plan's choice")
    parser.add_argument("--quick", action="store_true", help="fewer dims and sizes, under 40 s")
    parser.add_argument("--verbose", action="store_true", help="a line for every case, not only for failures")
    parser.add_argument("--soak", type=int, metavar="N", help="N launches of random shapes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--errors", action="store_true", help="errors and bits beside FA2's, cuDNN's and FA3's")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no GPU that PyTorch can use: nothing was checked")
    torch.manual_seed(args.seed)
    started, library = time.time(), ours.Library(args.library, args.kernel)
    print("flash-attention %s, kernel %s, %s, torch %s" % (
        library.version, args.kernel or "of the plan", torch.cuda.get_device_name(), torch.__version__))
    if args.soak:
        good = soak(library, args.soak, args.seed)
    elif args.errors:
        good = errors(library)
    else:
        good = run_cases(library, args.quick, args.verbose)
    torch.cuda.synchronize()
    print("%s in %.1f s" % ("ok" if good else "NOT OK", time.time() - started))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
