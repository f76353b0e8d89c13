#!/usr/bin/env python3
"""state_dict() and torch.distributed.checkpoint's save of AdamW's state; for tests/bench/python.

    save.py ours|torch WORK BYTES

Of so many bytes of exp_avg and exp_avg_sq. Answers "save" with the seconds of both calls, what was
saved being with the disk, and the most anonymous memory meanwhile, beyond what the model's weights
take: state, engine and all.
"""

import shutil
import sys

import torch
import torch.distributed.checkpoint as dcp
from common import Peak, anonymous, seconds_of, serve

import ebb.torch

ROWS, COLS = 2048, 4096


def optimizer(who, work, size):
    named = [(f"layers.{i}.weight", torch.nn.Parameter(torch.ones(ROWS, COLS)))
             for i in range(max(1, size // (8 * ROWS * COLS)))]
    weights = anonymous()
    if who == "torch":
        opt = torch.optim.AdamW([param for _, param in named], fused=True)
    else:
        opt = ebb.torch.AdamW(named, swap=f"{work}/swap", budget=64 << 20, slots=2)
    for _, param in named:
        param.grad = torch.full_like(param, 0.01)
    opt.step()
    opt.zero_grad()
    return opt, weights


def main():
    who, work, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
    opt, weights = optimizer(who, work, size)
    folder = f"{work}/dcp"

    def save():
        dcp.save({"optimizer": opt.state_dict()}, checkpoint_id=folder, no_dist=True)

    def measure(word):
        with Peak() as peak:
            seconds = seconds_of(save)
        shutil.rmtree(folder)
        return seconds, peak.bytes - weights

    serve(measure)


main()
