#!/usr/bin/env python3
"""DeepSpeed's CPUAdam on state that its aio engine moves, in the order of its pipelined swapper;
for tests/bench/python.

    deepspeed_adamw.py DIRECTORY MATRICES

The model of adamw.py, a sub-group for each matrix: fp32 parameter, exp_avg and exp_avg_sq in a file
each. Gradients lie in memory, and parameters are not copied back to a model, to DeepSpeed's
advantage. Answers "default" and "tuned" (depth 32, two threads) with the seconds of a step; "check"
with how far apart a matrix and torch.optim.AdamW's are behind three steps.
"""

import os
import sys
from pathlib import Path

import torch
from common import matrices, seconds_of, serve, apart

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from deepspeed.ops.op_builder import AsyncIOBuilder, CPUAdamBuilder
from deepspeed_swap import TUNED, Swapper

ROWS, COLS, LR = 1024, 4096, 1e-3


class AdamSwapper(Swapper):
    states, gradients, adam = ("param", "exp_avg", "exp_avg_sq"), [], None

    def beginning(self, place):
        return 0.0

    def written(self, buffers):
        return buffers

    def update(self, group, buffers):
        param, first, second = buffers
        self.adam.adam_update(0, self.steps, LR, 0.9, 0.999, 1e-8, 0.01, True, param,
                              self.gradients[group], first, second)


class Tuned(AdamSwapper):
    settings = TUNED


def check(aio, directory):
    folder = os.path.join(directory, "check")
    os.makedirs(folder, exist_ok=True)
    swapper = AdamSwapper(aio, folder, 1, ROWS * COLS)
    param = torch.nn.Parameter(torch.zeros(ROWS * COLS))
    param.grad = swapper.gradients[0]
    torchs = torch.optim.AdamW([param], lr=LR, fused=True)
    for _ in range(3):
        swapper.step()
        torchs.step()
    theirs = swapper.read(0)[0]
    assert swapper.reader.wait() == len(theirs)
    return apart([theirs[0]], [param.detach()])


def main():
    directory, count = sys.argv[1], int(sys.argv[2])
    os.makedirs(directory, exist_ok=True)
    aio = AsyncIOBuilder().load().aio_handle
    AdamSwapper.adam = CPUAdamBuilder().load()
    AdamSwapper.adam.create_adam(0, LR, 0.9, 0.999, 1e-8, 0.01, True, False)
    AdamSwapper.gradients = [param.grad.view(-1) for _, param in matrices(count, ROWS, COLS)]
    kinds, made = {"default": AdamSwapper, "tuned": Tuned}, {}

    def measure(word):
        if word == "check":
            return (check(aio, directory),)
        if word not in made:
            # Of the same files: one step begins where the other kind's ended.
            made[word] = kinds[word](aio, directory, count, ROWS * COLS)
            made[word].step()
        return (seconds_of(made[word].step),)

    serve(measure)


main()
