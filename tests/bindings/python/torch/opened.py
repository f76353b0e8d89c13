"""Fixtures as ebb.open() has them, and modules that their weights go into."""
from pathlib import Path

import torch
from torch import nn

import ebb

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures"


def fixtures() -> list[Path]:
    return [path.parent / "data" for path in sorted(FIXTURES.glob("*/*/expected.json"))
            if not path.parent.name.startswith("bad_") and (path.parent / "data").exists()]


def opened():
    """Of each fixture, its checkpoint and, where a model is recognised, its weights."""
    for path in fixtures():
        if path.parent.name == "conjugated":  # the one that this version does not read
            continue
        checkpoint = ebb.open(path)
        try:
            yield path.parent.name, checkpoint, checkpoint.weights()
        except ebb.Error:
            yield path.parent.name, checkpoint, None


class Holder(nn.Module):
    """A module that has these names, in zeros, or in another dtype."""

    def __init__(self, weights, dtype=None) -> None:
        super().__init__()
        for name, ref in weights.items():
            *folders, last = name.split(".")
            at: nn.Module = self
            for folder in folders:
                if folder not in at._modules:
                    at.add_module(folder, nn.Module())
                at = at._modules[folder]
            kind = getattr(torch, ref.dtype)
            floats = kind.is_floating_point and kind.itemsize >= 2
            tensor = torch.zeros(ref.shape, dtype=dtype if dtype and floats else kind)
            if floats and ref.shape:
                at.register_parameter(last, nn.Parameter(tensor))
            else:
                at.register_buffer(last, tensor)


def holds(weights) -> bool:
    """A module cannot have a parameter where it has a module, nor an empty name."""
    names = list(weights)
    return bool(names) and all(part for name in names for part in name.split(".")) and not any(
        other.startswith(name + ".") for name in names for other in names)
