"""What an optimizer is told beside its groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ebb._paths import directory_of
from ebb.errors import IoError

from ._sizes import bytes_of

_DTYPES = {torch.float32: None, torch.bfloat16: "BF16", torch.int8: "I8"}
_MASTERS = {"engine": {}, "halves": {"master": "U16"}, "parameters": {"master": "none"}}


@dataclass(frozen=True)
class Options:
    """As Muon's arguments of the same names, looked at: a wrong one raises at once."""

    swap: Any
    budget: int | str
    masters: str
    momentum_dtype: torch.dtype
    placement: str
    process_group: Any
    resume: str | None
    checkpoint: str
    max_norm: float
    threads: int | None
    slots: int
    tile: int | str
    chunk: int | str
    peer_timeout: timedelta | None
    check_parameters: bool
    device_budget: int | str | None
    drop_unknown: bool = False

    def __post_init__(self) -> None:
        # A program may change its directory later (Hydra).
        self.move(self.swap)
        _one_of("masters", self.masters, ("auto", "engine", "halves", "parameters"))
        _one_of("placement", self.placement, ("auto", "shard", "owner"))
        _one_of("resume", self.resume, (None, "store", "discard"))
        _one_of("checkpoint", self.checkpoint, ("tensors", "reference"))
        _one_of("momentum_dtype", self.momentum_dtype, tuple(_DTYPES))
        if self.device_budget is not None:
            self._check_device()
        if not isinstance(self.peer_timeout, (timedelta, type(None))):
            raise TypeError(f"peer_timeout={self.peer_timeout!r}: a datetime.timedelta")
        if not self.max_norm >= 0:
            raise ValueError(f"max_norm={self.max_norm!r}: 0, or the norm to clip to")
        if self.slots < 2 or (self.threads is not None and self.threads < 1):
            raise ValueError(f"slots={self.slots!r}, threads={self.threads!r}: at least 2, and 1")
        for what in ("tile", "chunk"):
            bytes_of(getattr(self, what), what)
        if not (isinstance(self.budget, str) and _is_word(self.budget)):
            bytes_of(self.budget, "budget")

    def _check_device(self) -> None:
        if self.device_bytes() == 0 and self.device_budget != "all":
            raise ValueError("device_budget=0: bytes, '8GiB', 'all'; None: the host computes")

    def device_bytes(self) -> int:
        """Of a GPU that computes; 0: no limit."""
        if self.device_budget in (None, "all"):
            return 0
        return bytes_of(self.device_budget, "device_budget")

    def masters_of(self, params: Sequence[Tensor], groups: Sequence[dict[str, Any]]) -> str:
        """"engine", "halves" or "parameters". "auto": what takes the least, where that can be."""
        if self.masters != "auto":
            return self.masters
        if any(g.get("decay") == "l2" or g.get("out") == "update" for g in groups):
            return "engine"
        dtypes = {param.dtype for param in params}
        if dtypes == {torch.bfloat16} and self.device_budget is None:
            return "halves"
        return "parameters" if dtypes == {torch.float32} else "engine"

    def dtypes(self, masters: str) -> dict[str, str]:
        """What states are kept as, where that is not fp32."""
        kept = _DTYPES[self.momentum_dtype]
        named = {"momentum_buffer": kept} if kept else {}
        return {**_MASTERS[masters], **named}

    def budget_of(self, least: int, state: int, all_of_it: int) -> int:
        """In bytes, of a plan's."""
        if self.budget == "least":
            return least
        if self.budget == "all":
            return all_of_it
        if isinstance(self.budget, str) and self.budget.endswith("%"):
            return max(least, int(float(self.budget[:-1]) / 100 * state))
        return bytes_of(self.budget, "budget")

    def move(self, swap: Any) -> None:
        """The state goes on there."""
        object.__setattr__(self, "swap", _absolute(swap))

    def directories(self) -> list[Path]:
        return list(self.swap)

    def directory(self, rank: int, world: int) -> Path:
        """This rank's, made where its parent exists."""
        all_of_them = self.directories()
        if len(all_of_them) not in (1, world):
            raise ValueError(f"swap has {len(all_of_them)} directories for {world} ranks")
        mine = all_of_them[rank if len(all_of_them) > 1 else 0]
        if not mine.exists():
            if not mine.parent.is_dir():
                raise FileNotFoundError(f"swap={str(mine)!r}: {mine.parent} is not there")
            try:
                mine.mkdir(exist_ok=True)
            except OSError as error:
                why = f"cannot make the directory {mine}: {error.strerror}"
                raise IoError(why, file=str(mine)) from error
        return mine

    def limit(self) -> timedelta:
        return self.peer_timeout or timedelta(minutes=30)


def _absolute(swap: Any) -> tuple[Path, ...]:
    """The directories as they are now."""
    if not isinstance(swap, (list, tuple)):
        return (directory_of(swap, "swap"),)
    if not swap:
        raise ValueError("swap=[]: name a directory, or one for each rank")
    return tuple(directory_of(one, "swap") for one in swap)


def _one_of(what: str, value: Any, known: tuple[Any, ...]) -> None:
    if value not in known:
        raise ValueError(f"{what}={value!r}: one of {', '.join(map(repr, known))}")


def _is_word(budget: str) -> bool:
    if budget in ("least", "all"):
        return True
    try:
        return budget.endswith("%") and 0 < float(budget[:-1])
    except ValueError:
        return False
