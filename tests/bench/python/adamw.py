#!/usr/bin/env python3
"""AdamW steps of ebb.torch, paged or resident, and of torch; for tests/bench/python.

    adamw.py WORK MATRICES BUDGET

The model: so many matrices of 1024 x 4096. Answers
  paged     seconds of a step, mean of four in a row; bytes of one that were read, and written
  resident  seconds of a step whose state is all in memory
  fused     seconds of torch.optim.AdamW(fused=True)
  check     how far apart the weights of one matrix are behind three steps of ours and of torch's
"""

import sys

import torch
from common import apart_behind_steps, matrices, seconds_of, serve

import ebb.torch

ROWS, COLS, LR = 1024, 4096, 1e-3
STEPS = 4  # in a row: what is written behind the last one is a small part


class Models:
    """An optimizer of each kind, made when it is first asked for; all share gradients."""

    def __init__(self, work, count, budget):
        self.work, self.count, self.budget, self.made = work, count, budget, {}
        self.grads = [param.grad for _, param in matrices(count, ROWS, COLS)]

    def optimizer(self, kind):
        if kind not in self.made:
            self.made[kind] = self._make(kind)
            self.made[kind].step()  # memory is touched, slots are written
            self.made[kind].step()
        return self.made[kind]

    def _make(self, kind):
        named = [(f"layers.{i}.weight", torch.nn.Parameter(torch.ones_like(grad)))
                 for i, grad in enumerate(self.grads)]
        for (_, param), grad in zip(named, self.grads):
            param.grad = grad
        if kind == "fused":
            return torch.optim.AdamW([param for _, param in named], lr=LR, fused=True)
        budget = self.budget if kind == "paged" else "all"
        return ebb.torch.AdamW(named, lr=LR, swap=f"{self.work}/{kind}", budget=budget, slots=2)


def check(work):
    both = [matrices(1, ROWS, COLS) for _ in range(2)]
    mine = ebb.torch.AdamW(both[0], lr=LR, swap=f"{work}/check", budget="least")
    theirs = torch.optim.AdamW([param for _, param in both[1]], lr=LR, fused=True)
    return apart_behind_steps(both, mine, theirs)


def main():
    work, count, budget = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    models = Models(work, count, budget)

    def measure(word):
        if word == "check":
            return (check(work),)
        opt = models.optimizer(word)
        if word != "paged":
            return (seconds_of(opt.step),)
        before = opt.stats()
        seconds = seconds_of(lambda: [opt.step() for _ in range(STEPS)])
        after = opt.stats()
        moved = [(int(after[name]) - int(before[name])) / STEPS
                 for name in ("pager_read_bytes", "pager_written_bytes")]
        return seconds / STEPS, *moved

    serve(measure)


main()
