"""Ctrl-C, where what is half made has no owner yet."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """What Python's handlers of signals do is done behind the block: KeyboardInterrupt comes there,
    too, behind whatever the block raises."""
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers run in the main thread alone
        return
    came: list[tuple[int, FrameType | None]] = []
    numbers = signal.valid_signals()
    handlers = {n: h for n in numbers if callable(h := signal.getsignal(n))}
    for number in handlers:
        signal.signal(number, lambda n, frame: came.append((n, frame)))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for late, frame in came:
            handlers[signal.Signals(late)](late, frame)
