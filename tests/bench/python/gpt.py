#!/usr/bin/env python3
"""Steps of ebb.torch on the model, the numbers and the budget of ebb-gpt-step; for
tests/bench/python.

    gpt.py EBB-GPT-STEP DIRECTORY WIDTH LAYERS BUDGET THREADS

Answers as that program does: "step", "snapshot" (state_dict() of checkpoint="reference"), "sum".
"""

import subprocess
import sys

import torch
from common import made_numbers, seconds_of, serve

import ebb.torch


def groups_of(program, width, layers):
    """Its parameters, in its order, with gradients."""
    shapes = subprocess.run([program, "shapes", width, layers], check=True, capture_output=True,
                            text=True).stdout.splitlines()
    split = {"muon": [], "adamw": []}
    for i, line in enumerate(shapes):
        name, algorithm, *extents = line.split()
        shape = [int(extent) for extent in extents]
        param = torch.nn.Parameter(made_numbers(i, shape))
        param.grad = made_numbers(len(shapes) + i, shape)
        split[algorithm].append((name, param))
    return [
        dict(params=split["muon"], algorithm="muon", lr=0.02, weight_decay=0.1, precision="fp32"),
        dict(params=split["adamw"], algorithm="adamw", lr=1e-3, weight_decay=0.01),
    ]


def main():
    program, directory, width, layers, budget, threads = sys.argv[1:]
    groups = groups_of(program, width, layers)
    params = [param for group in groups for _, param in group["params"]]
    opt = ebb.torch.Muon(
        groups, swap=directory, budget=int(budget), threads=int(threads), max_norm=1.0,
        checkpoint="reference",
    )  # fmt: skip
    opt.open()

    def measure(word):
        if word == "sum":
            return (sum(int(p.detach().view(torch.int32).sum()) for p in params),)
        if word == "step":
            return (seconds_of(opt.step),)
        opt.step()
        return (seconds_of(opt.state_dict),)

    serve(measure)


main()
