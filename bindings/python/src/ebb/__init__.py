"""Ebb: optimizer state of large models, paged through a budget of memory.

Needs nothing but Python; `ebb.torch` is for PyTorch. `python -m ebb` says what was found here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import _device, _library, errors
from .errors import *

if TYPE_CHECKING:
    from ._checkpoint import Checkpoint
    from ._checkpoint import TensorRef as TensorRef
    from ._load_into import LoadReport as LoadReport

__all__ = ["about", "open", "save"]
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


def open(path: str | os.PathLike[str]) -> Checkpoint:
    """A checkpoint of any format that Ebb reads: a folder or a file. Its index is read, and no
    tensor.

    >>> ck = ebb.open("checkpoint-1000")
    >>> weight = ck["layers.0.wq.weight"].torch()
    >>> report = ck.load_into(model)
    """
    from ._checkpoint import Checkpoint

    return Checkpoint(path)


def save(
    path: str | os.PathLike[str],
    tensors: Mapping[str | tuple[str, str], Any],
    *,
    format: str = "dcp",
    step: int | None = None,
    workers: int = 0,
    process_group: Any = None,
) -> int:
    """Writes a checkpoint of torch tensors or NumPy arrays, and answers the bytes written. `path`
    must not be there: it appears whole or not at all.

    tensors: by name, or by name and state. format: "dcp", "safetensors", or another of
      ebb.about()["formats"]; a path that ends as files of the format do is one file. step: stored
      where the format has a place for it. workers: 0: two for each core. [C] where one of the
      tensors is a DTensor: each rank writes its rows, and nothing is gathered; process_group:
      torch's, of those ranks.

    >>> nbytes = ebb.save("step-100", model.state_dict())
    >>> ebb.save("model.safetensors", {"w": numpy.zeros((2, 3))}, format="safetensors")
    168
    """
    from ._save import save

    return save(path, tensors, format, step, workers, process_group)


# What takes time to load is loaded by who asks.
def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _library.library().ebb_version().decode()
    if name in ("Checkpoint", "TensorRef"):
        from . import _checkpoint

        return getattr(_checkpoint, name)
    if name == "LoadReport":
        from ._load_into import LoadReport

        return LoadReport
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
