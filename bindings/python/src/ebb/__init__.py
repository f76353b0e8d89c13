"""Ebb: optimizer state of large models, paged through a budget of memory.

Needs nothing but Python; `ebb.torch` is for PyTorch. `python -m ebb` says what was found here.
"""

from __future__ import annotations

from typing import Any

from . import _device, _library, errors
from .errors import *

__all__ = ["about"]
__all__ += errors.__all__

__version__: str


def about() -> dict[str, Any]:
    """What was found on this machine.

    library: its path; version, abi: its own; io_backend: what reads and writes files, and why
    that; plugin: for GPUs, its path, "" where there is none; presets: of Muon; formats: of
    checkpoints. ImportError where the library is missing.
    """
    found = {"library": _library.library()._name, **_library.about()}
    return {**found, "plugin": _device.plugin()}


# The library's; it is loaded by who asks.
def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _library.library().ebb_version().decode()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
