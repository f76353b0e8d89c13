"""Ctrl-C, where what is half made has no owner yet."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

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
    handlers = {int(n): h for n in _NUMBERS if callable(h := signal.getsignal(n))}
    try:
        _holding = True
        for number in handlers:
            signal.signal(number, lambda n, frame: came.append((n, frame)))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        _holding = False
        for number, frame in came:
            handlers[number](number, frame)
