#!/usr/bin/env python3
"""TFLOP/s, power, SM clock and TFLOP/s per watt of ours and the rivals, under load, in one run on one GPU.

  measure_power.py [--library libflash_attention.so] [--kernel NAME] [--seconds 1] [--rounds 2] [--out FILE.json]
                   [--dtype bf16] [--shapes 128:16384:full,128:16384:causal]    head_dim:seqlen:full|causal

Each contestant's call is captured in a graph and replayed without a pause: half a second to warm up, then the measured
stretch. Contestants take turns in a random order. Power is the difference of the driver's energy counter, the clock
the median of samples taken while the GPU is busy. A shape has 16384 tokens in all and heads * head_dim = 2048; inputs
are N(0, 1): other values switch other numbers of transistors. These are sustained figures, at the power limit: a
benchmark with idle gaps reads higher.
"""
import argparse
import ctypes
import json
import random
import statistics
import sys
import time

import torch

import ours
import rivals

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}


class Nvml:
    """The few calls of the driver's management library that are needed, for the GPU that PyTorch uses."""

    SM_CLOCK = 1

    def __init__(self):
        self.library = ctypes.CDLL("libnvidia-ml.so.1")
        self.check(self.library.nvmlInit_v2())
        self.device = ctypes.c_void_p()
        uuid = "GPU-%s" % getattr(torch.cuda.get_device_properties(0), "uuid", "?")
        if self.library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(self.device)) != 0:
            self.check(self.library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.device)))

    @staticmethod
    def check(code):
        if code != 0:
            raise RuntimeError("NVML answers %d" % code)

    def joules(self):
        millijoules = ctypes.c_ulonglong()
        self.check(self.library.nvmlDeviceGetTotalEnergyConsumption(self.device, ctypes.byref(millijoules)))
        return millijoules.value / 1000

    def megahertz(self):
        clock = ctypes.c_uint()
        self.check(self.library.nvmlDeviceGetClockInfo(self.device, self.SM_CLOCK, ctypes.byref(clock)))
        return clock.value

    def limit_watts(self):
        milliwatts = ctypes.c_uint()
        self.check(self.library.nvmlDeviceGetEnforcedPowerLimit(self.device, ctypes.byref(milliwatts)))
        return milliwatts.value / 1000


def replay_for(graph, seconds, batch, sample):
    """Replays without a pause for about `seconds`; seconds of GPU time of one replay, and the wall time."""
    begin, end, done = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    torch.cuda.synchronize()
    started, replays = time.time(), 0
    begin.record()
    while time.time() - started < seconds:
        for _ in range(batch):
            graph.replay()
        replays += batch
        # One batch ahead of the GPU at most, so that the stretch ends about when the clock says.
        if replays > batch:
            done.synchronize()
        done.record()
        sample()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1000 / replays, time.time() - started


def measure(nvml, graph, seconds):
    """TFLOP-independent figures of one contestant: seconds a call, watts, megahertz."""
    call_seconds, _ = replay_for(graph, 0.1, 5, lambda: None)
    batch = max(1, int(0.02 / call_seconds))
    replay_for(graph, 0.4, batch, lambda: None)
    clocks, before = [], nvml.joules()
    call_seconds, wall = replay_for(graph, seconds, batch, lambda: clocks.append(nvml.megahertz()))
    return call_seconds, (nvml.joules() - before) / wall, statistics.median(clocks)


def contestants(library, q, k, v, causal, wanted):
    """A graph for each contestant that can run the shape."""
    calls = {name: (lambda call=call: call(q, k, v, causal)) for name, call in rivals.available().items()}
    if library:
        o = torch.empty_like(q)
        args = library.prepare(q, k, v, o, causal=int(causal))
        calls["ours"] = lambda o=o: library.launch(args)  # keeps the output alive
    graphs = {}
    for name, call in calls.items():
        if name == "ours" or name in wanted:
            try:
                graphs[name] = rivals.capture(call)
            except Exception as why:
                print("note: %s is not measured: %s" % (name, repr(why)[:120]))
                torch.cuda.synchronize()
    return graphs, calls


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", help="path of libflash_attention.so; left out: the rivals alone")
    parser.add_argument("--kernel")
    parser.add_argument("--rivals", default="fa3,cudnn,fa2")
    parser.add_argument("--dtype", default="bf16", choices=DTYPES)
    parser.add_argument("--shapes", default="128:16384:full,128:16384:causal")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no GPU that PyTorch can use: nothing was measured")
    nvml = Nvml()
    library = ours.Library(args.library, args.kernel) if args.library else None
    torch.manual_seed(0)
    print("%s, limit %.0f W, torch %s" % (torch.cuda.get_device_name(), nvml.limit_watts(), torch.__version__))
    print("%4s %6s %-6s %-6s %9s %7s %7s %9s" % ("d", "n", "causal", "who", "TFLOP/s", "W", "MHz", "TFLOP/s/W"))
    rows = []
    for shape in args.shapes.split(","):
        d, n, mask = shape.split(":")
        d, n, causal = int(d), int(n), mask == "causal"
        dims = (max(1, 16384 // n), n, 2048 // d, d)
        q, k, v = [torch.randn(dims, device="cuda", dtype=DTYPES[args.dtype]) for _ in range(3)]
        flop = 4 * dims[0] * dims[2] * n * n * d / (2 if causal else 1)
        graphs, calls = contestants(library, q, k, v, causal, args.rivals.split(","))
        taken = {name: [] for name in graphs}
        for _ in range(args.rounds):
            for name in random.sample(list(graphs), len(graphs)):
                taken[name].append(measure(nvml, graphs[name], args.seconds))
        row = dict(dtype=args.dtype, head_dim=d, heads=dims[2], batch=dims[0], seqlen=n, causal=causal)
        for name in sorted(taken):
            seconds, watts, clock = [statistics.median(values) for values in zip(*taken[name])]
            speed = flop / seconds / 1e12
            print("%4d %6d %-6s %-6s %9.1f %7.0f %7.0f %9.3f" % (d, n, causal, name, speed, watts, clock, speed / watts))
            row.setdefault("ms", {})[name] = 1000 * seconds
            row.setdefault("watts", {})[name] = watts
            row.setdefault("megahertz", {})[name] = clock
        rows.append(row)
        del graphs, calls
    if args.out:
        with open(args.out, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
