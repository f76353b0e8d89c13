#!/usr/bin/env python3
"""Anonymous memory of a run of ebb.torch.AdamW; for tests/bench/python.

    memory.py WORK MATRICES

Six matrices of 1024 x 4096 are 25 million parameters. Answers, of five steps, bytes of anonymous
memory at most, beyond what was there with the model, to
  run       with the least budget; and bytes of gradients, of the budget, of the state, and of what
            plan() promised
  resident  with all state in memory
  torch     of torch.optim.AdamW(fused=True)
"""

import sys

import torch
from common import Peak, anonymous, serve

import ebb.torch

ROWS, COLS = 1024, 4096


def main():
    work, count = sys.argv[1], int(sys.argv[2])
    named = [(f"layers.{i}.weight", torch.nn.Parameter(torch.ones(ROWS, COLS)))
             for i in range(count)]

    def made(word):
        if word == "torch":
            return torch.optim.AdamW([param for _, param in named], fused=True)
        budget = "least" if word == "run" else "all"
        return ebb.torch.AdamW(named, swap=f"{work}/swap", budget=budget, resume="discard")

    def measure(word):
        model = anonymous()
        opt = made(word)
        with Peak() as peak:
            for _ in range(5):
                for _, param in named:
                    param.grad = torch.full_like(param, 0.01)
                opt.step()
                opt.zero_grad()
        if word != "run":
            return (peak.bytes - model,)
        plan = opt.plan()
        opt.close()
        gradients = 4 * ROWS * COLS * count
        # "least" is the plan's.
        return peak.bytes - model, gradients, plan.least_budget, plan.state, plan.memory

    serve(measure)


main()
