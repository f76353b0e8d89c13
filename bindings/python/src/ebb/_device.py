"""A GPU that a plugin brings, for steps that are computed there."""

from __future__ import annotations

import ctypes
import os
import sys

from . import _library


def plugin() -> str:
    """Where a plugin is: what EBB_PLUGIN says, or ebb-cuda.so beside the library; "" where there is
    none. It is not loaded."""
    return os.environ.get("EBB_PLUGIN") or str(_library.about()["plugin"])


class Device:
    """One that is open until nobody has it; an engine that was opened with it keeps it. Any thread.
    `ebb.Error` says why there is none: no plugin, no driver, no such device."""

    def __init__(self, index: int) -> None:
        """`index`: which of those that the process sees, as CUDA counts them."""
        self.index = index
        self.handle = ctypes.c_void_p()
        given = os.environ.get("EBB_PLUGIN")
        _library.call(
            "ebb_device_open", given.encode() if given else None, index, ctypes.byref(self.handle)
        )

    @property
    def name(self) -> str:
        text = ctypes.c_void_p()
        _library.call("ebb_device_name", self.handle, ctypes.byref(text))
        return _library.text(text)

    def __del__(self) -> None:
        # A forked child may close it: nothing is asked of the device there.
        if self.handle and not sys.is_finalizing():
            _library.library().ebb_device_close(self.handle)
