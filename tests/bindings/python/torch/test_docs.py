"""What the pages and the docstrings show runs as it stands there; but for folders: what begins with
/nvme/ lies below the row's own."""
import contextlib
import doctest
import importlib
import re
from pathlib import Path

import numpy
import torch
from torch import nn

import ebb
import ebb.swap
import ebb.torch
from worlds import row, run_rows

TREE = Path(__file__).resolve().parents[4]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wq = nn.Linear(16, 128, bias=False)
        self.wo = nn.Linear(128, 16)


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])
        self.norm = nn.LayerNorm(16)

    def forward(self, x, y):
        for layer in self.layers:
            x = x + layer.wo(layer.wq(x))
        return (self.norm(x) - y).square().mean()


def names() -> dict:
    """What a page does not say how to make, and the checkpoints that it opens."""
    torch.manual_seed(0)
    model = GPT()
    weights = dict(model.named_parameters())
    ebb.save("CKPT", model.state_dict())
    ebb.save("checkpoint-1000", model.state_dict())
    states = {(name, state): tensor.detach() for name, tensor in weights.items()
              for state in ("master", "momentum_buffer" if tensor.dim() == 2 else "exp_avg")}
    for folder in ("deepspeed", "nvme"):
        Path(folder).mkdir()
    ebb.save("deepspeed/global_step9000", states, format="deepspeed", step=9000)
    w = torch.randn(4, 3)
    return {
        "GPT": GPT, "arrays": {"w": numpy.zeros((2, 3))}, "batches": batches, "ebb": ebb,
        "grad": torch.ones(16), "m": w.clone(), "model": model,
        "numpy": numpy, "params": weights, "step": 1, "torch": torch, "w": w,
        "warm_up": lambda step: min(1.0, (step + 1) / 10),
    }  # fmt: skip


def batches(start: int):
    for step in range(start, 101):
        generator = torch.Generator().manual_seed(step)
        yield torch.randn(4, 16, generator=generator), torch.randn(4, 16, generator=generator)


def apart_in(folder: str) -> contextlib.AbstractContextManager:
    Path(folder).mkdir()
    return contextlib.chdir(folder)


def here(code: str) -> str:
    return code.replace('"/nvme/', '"nvme/')


@row("the Python of README.md, docs/python.md and a recipe runs")
def pages() -> str:
    found = 0
    for page in ("README.md", "docs/python.md", "docs/recipes/weights-out.md"):
        for code in re.findall(r"```python\n(.*?)```", (TREE / page).read_text(), re.DOTALL):
            found += 1
            with apart_in(str(found)):
                exec(compile(here(code), f"{page}, block {found}", "exec"), names())
    assert found >= 6, found
    return f"{found} blocks"


@row("what docstrings show runs, and answers what they say")
def docstrings() -> str:
    runner = doctest.DocTestRunner(verbose=False)
    for module in ("ebb", "ebb.swap._paged", "ebb.torch._muon"):
        tests = doctest.DocTestFinder().find(importlib.import_module(module))
        for number, test in enumerate(tests):
            if not test.examples:
                continue
            with apart_in(f"{module}-{number}"):
                test.globs.update(names())
                for example in test.examples:
                    example.source = here(example.source)
                runner.run(test)
    told = runner.summarize(verbose=False)
    assert told.failed == 0 and told.attempted >= 6, told
    return f"{told.attempted} lines"


if __name__ == "__main__":
    run_rows()
