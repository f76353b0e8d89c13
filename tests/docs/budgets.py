"""budgets.py [--check]: the tables of docs/budget.md, from ebb.torch's own plans. Nothing is allocated:
the models' weights are a sparse file. Needs torch; EBB_LIBRARY and PYTHONPATH lead to Ebb."""
import json
import math
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

import ebb.torch
from blocks import TREE
from generated import put, table

NAME = "tests/docs/budgets.py"
MODELS = {"gpt2-1.5b": "GPT-2, 1.6B", "llama-3-8b": "Llama 3, 8B", "llama-3-70b": "Llama 3, 70B"}
RATES = (3e9, 7e9)  # bytes a second, reads and writes together


class Model(nn.Module):
    """Parameters in bf16, which take no memory until somebody looks."""

    def __init__(self, name, folder):
        super().__init__()
        shapes = json.loads((TREE / f"tests/fixtures/shapes/{name}.json").read_text())
        file = Path(folder, name)
        file.touch()
        kind = dict(dtype=torch.bfloat16, shared=True)
        weights, at = torch.from_file(str(file), size=shapes["elements"], **kind), 0
        self.matrices = set()
        for tensor in shapes["tensors"]:
            for layer in range(tensor["count"]):
                own = tensor["name"].replace("#", str(layer)).replace(".", "_")
                part = weights[at : at + math.prod(tensor["shape"])]
                at += part.numel()
                self.register_parameter(own, nn.Parameter(part.view(tensor["shape"])))
                if tensor["kind"] == "matrix":
                    self.matrices.add(own)

    def algorithm(self, name, _):
        return "muon" if name in self.matrices else "adamw"


def plan(model, folder, budget, **arguments):
    groups = ebb.torch.groups(model, rule=model.algorithm)
    return ebb.torch.Muon(groups, swap=f"{folder}/swap", budget=budget, **arguments).plan()


def gigabytes(count):
    return f"{count / 1e9:.1f}" if count < 99.95e9 else f"{count / 1e9:.0f}"


def seconds(plan):
    return [f"{(plan.read + plan.written) / rate:.1f}" for rate in RATES]


def by_budget(name, model, folder):
    rows = []
    for budget in ("least", "25%", "50%", "all"):
        one = plan(model, folder, budget, masters="engine")
        moved = one.read + one.written
        rows.append([MODELS[name], f'`"{budget}"`', gigabytes(one.memory), gigabytes(moved),
                     *seconds(one)])  # fmt: skip
    return rows


def by_state(name, model, folder):
    kinds = {
        "fp32 masters and states": dict(masters="engine"),
        "momentum in bf16": dict(masters="engine", momentum_dtype=torch.bfloat16),
        "momentum in int8": dict(masters="engine", momentum_dtype=torch.int8),
        "masters in halves (bf16 weights)": dict(masters="halves"),
    }
    rows = []
    for kind, arguments in kinds.items():
        one = plan(model, folder, "least", **arguments)
        rows.append([MODELS[name], kind, gigabytes(one.state), gigabytes(one.disk),
                     gigabytes(one.read + one.written), *seconds(one)])  # fmt: skip
    return rows


def main(check):
    budgets, states = [], []
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            model = Model(name, folder)
            budgets += by_budget(name, model, folder)
            states += by_state(name, model, folder)
    times = [f"s at {rate / 1e9:.0f} GB/s" for rate in RATES]
    good = put("docs/budget.md", NAME + ", budgets", table(
        ["model", "budget", "memory, GB", "read and written a step, GB", *times], budgets), check)
    good &= put("docs/budget.md", NAME + ", states", table(
        ["model", "what is kept", "state, GB", "disk, GB", "read and written a step, GB", *times],
        states), check)  # fmt: skip
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
