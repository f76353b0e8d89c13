"""Ctrl-C, where what is half made has no owner yet."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

Handler = Callable[[int, "FrameType | None"], Any]

_NUMBERS = tuple(signal.Signals)
_holding = False  # in the main thread


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """What Python's handlers of signals do is done behind the block: KeyboardInterrupt comes there,
    too, behind whatever the block raises. Inside of another such block: behind that."""
    global _holding
    if _holding or threading.current_thread() is not threading.main_thread():
        yield  # handlers run in the main thread alone
        return
    came: list[tuple[int, FrameType | None]] = []
    given = {int(n): signal.getsignal(n) for n in _NUMBERS}
    handlers: dict[int, Handler] = {n: h for n, h in given.items() if callable(h)}
    try:
        _holding = True
        for number in handlers:
            signal.signal(number, lambda n, frame: came.append((n, frame)))
        yield
    finally:
        _holding = False
        _put_back(dict(handlers))
        for number, frame in came:
            handlers[number](number, frame)


def _put_back(handlers: dict[int, Handler]) -> None:
    """All of them, though one that is there again may raise at once."""
    try:
        while handlers:
            number = next(iter(handlers))
            signal.signal(number, handlers[number])
            del handlers[number]
    except BaseException:
        _put_back(handlers)
        raise
