"""Ebb: optimizer state of large models, paged through a budget of memory.

Needs nothing but Python; `ebb.torch` is for PyTorch. `python -m ebb` says what was found here.
"""

from __future__ import annotations

import ctypes
import json
from typing import Any

from . import _library, errors
from .errors import *

__all__ = ["about"]
__all__ += errors.__all__

__version__: str


def about() -> dict[str, Any]:
    """What was found on this machine.

    library: its path; version, abi: its own; io_backend: what reads and writes files, and why
    that; presets: of Muon; formats: of checkpoints. ImportError where the library is missing.
    """
    answer = ctypes.c_void_p()
    _library.call("ebb_about", ctypes.byref(answer))
    found: dict[str, Any] = json.loads(_library.text(answer))
    return {"library": _library.library()._name, **found}


# The library's; it is loaded by who asks.
def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _library.library().ebb_version().decode()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
