#!/usr/bin/env python3
"""A Muon step of resident state, ebb.torch's or torch.optim.Muon's; for tests/bench/python.

    muon.py ours|torch WORK

Answers "fp32-8x512x2048", and so on, with the seconds of a step of so many matrices of that shape,
in the standard form; "bf16-..." as torch ships it. "check-..." (of ours): how far apart the weights
of both are behind three steps in fp32.

torch's in fp32 is torch's own function without its cast: of the source of
torch.optim._muon._zeropower_via_newtonschulz, `grad.bfloat16()` becomes `grad`, and all else stays,
so that it even saves the copy which the cast is.
"""

import inspect
import sys

import torch
import torch.optim._muon as torchs
from common import apart_behind_steps, matrices, seconds_of, serve

import ebb.torch

SHIPPED = torchs._zeropower_via_newtonschulz
LR, DECAY = 0.02, 0.1


def in_fp32():
    source = inspect.getsource(SHIPPED)
    if source.count("grad.bfloat16()") != 1:
        raise ValueError("torch's Newton-Schulz has another cast than 2.13's")
    names = dict(vars(torchs))
    exec(source.replace("grad.bfloat16()", "grad"), names)
    return names[SHIPPED.__name__]


FP32 = in_fp32()


class Torchs:
    """torch.optim.Muon whose Newton-Schulz is the one that it was made with."""

    def __init__(self, named, precision):
        self.function = {"fp32": FP32, "bf16": SHIPPED}[precision]
        self.opt = torch.optim.Muon([p for _, p in named], lr=LR, weight_decay=DECAY)

    def step(self):
        torchs._zeropower_via_newtonschulz = self.function
        self.opt.step()


def ours(named, precision, work):
    group = dict(params=named, algorithm="muon", lr=LR, weight_decay=DECAY, precision=precision)
    return ebb.torch.Muon([group], swap=work, budget="all", slots=2)


def check(count, rows, cols, work):
    both = [matrices(count, rows, cols) for _ in range(2)]
    mine, theirs = ours(both[0], "fp32", work), Torchs(both[1], "fp32")
    return apart_behind_steps(both, mine, theirs)


def main():
    who, work = sys.argv[1:]
    made = {}

    def measure(word):
        precision, _, shape = word.partition("-")
        sizes = [int(number) for number in shape.split("x")]
        if precision == "check":
            return (check(*sizes, f"{work}/check"),)
        if word not in made:
            named = matrices(*sizes)
            made[word] = Torchs(named, precision) if who == "torch" else ours(
                named, precision, f"{work}/{word}")
            made[word].step()  # memory is touched, the store is made
        return (seconds_of(made[word].step),)

    serve(measure)


main()
