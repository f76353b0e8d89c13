#!/usr/bin/env python3
"""Steps of ebb.torch that a GPU computes, of parameters that lie there, beside torch's optimizers,
whose state lies there, too; for tests/gpu/run.

    torch_steps.py FOLDER

12 matrices of 2048 x 8192, fp32, as much state in FOLDER as it takes with two slots (5 GB), gone
behind each line. Prints the least of four steps behind two that are not counted, and how much of
the GPU's memory is held beside the parameters and the gradients.
"""

import shutil
import sys
import time

import torch

import ebb.torch

COUNT, ROWS, COLS = 12, 2048, 8192
MIB = 1 << 20


def parameters():
    made = torch.Generator("cuda").manual_seed(0)
    for i in range(COUNT):
        param = torch.nn.Parameter(torch.randn(ROWS, COLS, generator=made, device="cuda") * 0.02)
        param.grad = torch.randn(ROWS, COLS, generator=made, device="cuda")
        yield f"layers.{i}.weight", param


def milliseconds(opt):
    least = float("inf")
    for step in range(6):
        torch.cuda.synchronize()
        began = time.perf_counter()
        opt.step()
        torch.cuda.synchronize()
        if step >= 2:
            least = min(least, 1e3 * (time.perf_counter() - began))
    return least


def line(what, make):
    named = list(parameters())
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    opt = make(named)
    took = milliseconds(opt)
    held = (free - torch.cuda.mem_get_info()[0]) / MIB
    print(f"  {what:46}{took:9.1f}{held:12.0f}", flush=True)
    if isinstance(opt, ebb.torch.Muon | ebb.torch.AdamW):
        opt.close()


def main():
    folder = sys.argv[1] + "/steps"
    torch.empty(1, device="cuda")

    def torchs(kind, **options):
        return lambda named: kind([param for _, param in named], lr=1e-3, **options)

    def ours(kind, **options):
        return lambda named: kind(named, lr=1e-3, swap=folder, slots=2, device_budget="all",
                                  **options)

    print(f"  {COUNT} x {ROWS} x {COLS}, fp32                             ms a step   MiB of GPU")
    for what, make in (
        ("torch.optim.Muon", torchs(torch.optim.Muon)),
        ("ebb.torch.Muon, state on the host", ours(ebb.torch.Muon, budget="all")),
        ("ebb.torch.Muon, 25 % of it, paged", ours(ebb.torch.Muon, budget="25%")),
        ("torch.optim.AdamW, fused", torchs(torch.optim.AdamW, fused=True)),
        ("ebb.torch.AdamW, state on the host", ours(ebb.torch.AdamW, budget="all")),
        ("ebb.torch.AdamW, 25 % of it, paged", ours(ebb.torch.AdamW, budget="25%")),
    ):
        line(what, make)
        shutil.rmtree(folder, ignore_errors=True)


main()
