"""How far a conversion or a read is: for a function of the caller's, or a bar of tqdm's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Union

from .errors import UsageError

Wanted = Union[Callable[[int, int], object], bool, None]


class Progress:
    """Of a number of bytes. While it lives, a bar may stand on the screen.

    wanted: a function of the bytes that are done and of all of them, called on this thread; what it
    raises ends the work. True: a bar. None: one where tqdm is installed and somebody looks, on a
    terminal or in a notebook. False: neither.
    """

    def __init__(self, wanted: Wanted, doing: str, total: int = 0) -> None:
        self._total, self._done = total, 0
        self._call = wanted if callable(wanted) else None
        self._bar = None
        if wanted is True or (wanted is None and _somebody_looks()):
            self._bar = _bar(doing, total, needed=wanted is True)

    def add(self, nbytes: int) -> None:
        self.show(self._done + nbytes, self._total)

    def show(self, done: int, total: int) -> None:
        self._done, self._total = done, total
        if self._call is not None:
            self._call(done, total)
        if self._bar is not None:
            self._bar.total = total
            self._bar.update(done - self._bar.n)

    def told(self, document: dict[str, Any]) -> None:
        """By ckpt-convert. All is written when it begins to read back."""
        if document["doing"] == "writing":
            self.show(document["bytes"], document["of"])
            return
        self.show(document["of"], document["of"])
        if self._bar is not None:
            self._bar.set_description(document["doing"])

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, why: BaseException | None,
        where: TracebackType | None,
    ) -> None:  # fmt: skip
        if self._bar is not None:
            self._bar.close()


def _somebody_looks() -> bool:
    return "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())


def _bar(doing: str, total: int, needed: bool) -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        if needed:
            raise UsageError("a bar needs tqdm", hint="pip install tqdm") from None
        return None
    return tqdm(desc=doing, total=total, unit="B", unit_scale=True, unit_divisor=1024)
