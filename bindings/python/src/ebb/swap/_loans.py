"""Buffers of a SwapSpace that are in memory: what was acquired is released, whatever comes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from ebb._signals import held_back

if TYPE_CHECKING:
    from ._space import Buffer, SwapSpace


class Loans:
    """Until the end of a with block, or give_back(). keep: what was changed is, by then, unless an
    exception comes."""

    def __init__(self, space: SwapSpace) -> None:
        self._space = space
        self._numbers: list[tuple[int, bool]] = []
        self.keep = True

    def take(self, buffer: Buffer, modify: bool = True) -> dict[str, Tensor]:
        with held_back():
            number, tensors = self._space._acquire(buffer, modify)
            self._numbers.append((number, modify))
        return tensors

    def give_back(self, keep: bool) -> None:
        """All of them, also where one cannot be kept: its error comes then."""
        error: Exception | None = None
        with held_back():
            for number, modify in self._numbers:
                try:
                    self._space._release(number, keep and modify)
                except Exception as why:
                    error = error or why
                    self._drop(number)
            self._numbers.clear()
        if error is not None:
            raise error

    def _drop(self, number: int) -> None:
        try:
            self._space._release(number, False)
        except Exception:  # the error that was first says why
            pass

    def __enter__(self) -> Loans:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        self.give_back(self.keep and failed is None)
