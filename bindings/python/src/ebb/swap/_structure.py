"""What an optimizer keeps of a parameter, taken apart: tensors that are paged, small values that
stay in memory, and how they are nested."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ebb.errors import Unsupported

# Python's numbers that state, or a group, may have, and what they are stored as.
PLAIN: dict[type, torch.dtype] = {bool: torch.bool, int: torch.int64, float: torch.float64}


@dataclass(frozen=True)
class Paged:
    """A tensor of state that lies in the store; in memory with these strides, on which the bits of
    what is computed with it depend."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    strides: tuple[int, ...]

    def placed(self, stored: Tensor, device: torch.device) -> Tensor:
        """What is stored row by row, as the optimizer had it; it may be `stored` itself."""
        there = stored.to(device)
        if there.stride() == self.strides or 0 in self.shape or there.shape != self.shape:
            return there
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype,
                                   device=device).copy_(there)  # fmt: skip

    def laid_out(self, memory: Tensor) -> Tensor:
        """A contiguous tensor's memory as one that lies as the optimizer's does."""
        dense = sum((e - 1) * s for e, s in zip(self.shape, self.strides)) < memory.numel()
        if 0 in self.shape or memory.shape != self.shape or not dense:
            return memory
        return memory.as_strided(self.shape, self.strides)


@dataclass(frozen=True)
class Kept:
    """A number that stays in memory, or a tensor of one. device: of the tensor; None: it is
    Python's."""

    dtype: torch.dtype
    device: torch.device | None = None

    def own(self, value: Any) -> Any:
        """The number, or a tensor of it, as one that nobody else has."""
        plain = value.item() if isinstance(value, Tensor) else value
        if self.device is not None:
            return torch.tensor(plain, dtype=self.dtype, device=self.device)
        return next(kind for kind, dtype in PLAIN.items() if dtype == self.dtype)(plain)


@dataclass(frozen=True)
class Structure:
    """paged, kept: by path, "exp_avg", "Q.0"; nested: the state, with paths in place of those."""

    paged: dict[str, Paged]
    kept: dict[str, Kept]
    nested: Any


@dataclass(frozen=True)
class _Path:
    path: str


def structure_of(state: Mapping[str, Any], name: str) -> Structure:
    """Unsupported names what cannot be stored."""
    paged: dict[str, Paged] = {}
    kept: dict[str, Kept] = {}

    def one(path: str, value: Any) -> Any:
        if isinstance(value, Tensor) and value.layout is not torch.strided:
            raise Unsupported(
                f"{name}: its state {path} is {value.layout}, which cannot be paged",
                hint="dense gradients make dense state: nn.Embedding(sparse=False)",
            )
        if isinstance(value, Tensor) and value.dim() > 0:
            paged[path] = Paged(tuple(value.shape), value.dtype, value.stride())
        elif isinstance(value, Tensor):
            if value.is_complex():
                raise Unsupported(f"{name}: its state {path} is complex, which cannot be paged")
            kept[path] = Kept(value.dtype, value.device)
        elif type(value) in PLAIN:
            kept[path] = Kept(PLAIN[type(value)])
        elif value is None or isinstance(value, str):
            return value
        else:
            raise Unsupported(
                f"{name}: its state {path} is a {type(value).__name__}, which cannot be paged"
            )
        return _Path(path)

    return Structure(paged, kept, _mapped(dict(state), one))


def values_of(state: Mapping[str, Any], structure: Structure, name: str) -> dict[str, Any]:
    """Tensors and numbers, by path. Unsupported where they are not those of `structure`."""
    found: dict[str, Any] = {}

    def one(path: str, value: Any) -> Any:
        if path not in structure.paged and path not in structure.kept:
            return value
        found[path] = value
        return _Path(path)

    nested = _mapped(dict(state), one)
    whole = nested == structure.nested and len(found) == len(structure.paged) + len(structure.kept)
    fits = whole and all(_fits(found[k], want) for k, want in structure.paged.items())
    if not fits or not all(_is_number(found[k]) for k in structure.kept):
        raise Unsupported(
            f"{name}: its state is not what it was found to be: {_said(state)}",
            hint="optimizers whose state changes its kind from step to step cannot be paged",
        )
    return found


def state_of(structure: Structure, values: Mapping[str, Any]) -> dict[str, Any]:
    """As the optimizer has it."""

    def one(_: str, value: Any) -> Any:
        return values[value.path] if isinstance(value, _Path) else value

    made: dict[str, Any] = _mapped(structure.nested, one)
    return made


def _mapped(value: Any, one: Callable[[str, Any], Any], path: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _mapped(item, one, _join(path, key)) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_mapped(item, one, _join(path, i)) for i, item in enumerate(value))
    return one(path, value)


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _fits(value: Any, wanted: Paged) -> bool:
    return (
        isinstance(value, Tensor)
        and tuple(value.shape) == wanted.shape
        and value.dtype == wanted.dtype
    )


def _is_number(value: Any) -> bool:
    return value.numel() == 1 if isinstance(value, Tensor) else type(value) in PLAIN


def _said(state: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{k} {tuple(v.shape)}" if isinstance(v, Tensor) else f"{k} {type(v).__name__}"
        for k, v in state.items()
    )
