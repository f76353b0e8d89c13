"""libebb.so.0: found, loaded once, and called.

Every call lets go of Python's lock, as ctypes.CDLL does: many of them wait.
"""

from __future__ import annotations

import ctypes
import json
import os
import sysconfig
import threading
from pathlib import Path
from typing import Any

from . import _abi, errors

NAME = "libebb.so.0"

_lock = threading.Lock()
_loaded: ctypes.CDLL | None = None


def library() -> ctypes.CDLL:
    """The library, loaded by the first who asks. Any thread. ImportError where there is none, or
    one that is not this package's.
    """
    global _loaded
    if _loaded is None:
        with _lock:
            if _loaded is None:
                _loaded = _load(find())
    return _loaded


def call(name: str, *arguments: object) -> None:
    """Calls a function of ebb.h that answers a status. Raises `ebb.Error`, as what fits, where
    that is not EBB_DONE.
    """
    loaded = library()
    status = getattr(loaded, name)(*arguments)
    if status != _abi.DONE:
        raise errors.from_c(name, status, loaded.ebb_last_error().contents)


def text(pointer: ctypes.c_void_p) -> str:
    """A text that a function gave. Frees it: `pointer` is NULL behind this."""
    try:
        return ctypes.string_at(pointer).decode(errors="replace") if pointer else ""
    finally:
        library().ebb_free(pointer)
        pointer.value = None


def about() -> dict[str, Any]:
    """What ebb_about() says."""
    answer = ctypes.c_void_p()
    call("ebb_about", ctypes.byref(answer))
    found: dict[str, Any] = json.loads(text(answer))
    return found


def find() -> str:
    """Where the library is: what EBB_LIBRARY says; in the package, where a wheel has it; in the
    release build of the source tree that the package lies in; or where the loader looks.
    """
    given = os.environ.get("EBB_LIBRARY")
    if given:
        return given
    package = Path(__file__).resolve().parent
    places = [package / "lib" / NAME, *(build / "lib" / NAME for build in _builds(package))]
    return next((str(place) for place in places if place.exists()), NAME)


def _builds(package: Path) -> list[Path]:
    """Of the source tree whose bindings/python/src/ebb the package is."""
    trees = list(package.parents)[3:4]  # none where it lies near the root
    return [tree / "build/release" for tree in trees if (tree / "bindings/c/ebb.h").exists()]


def programs() -> list[Path]:
    """Where the tools may be: where EBB_TOOLS says; where pip puts programs: of this Python, of a
    user, of a folder (pip install --target); in the source tree."""
    given = os.environ.get("EBB_TOOLS")
    if given:
        return [Path(given)]
    package = Path(__file__).resolve().parent
    user = sysconfig.get_path("scripts", f"{os.name}_user")
    installed = [Path(sysconfig.get_path("scripts")), Path(user), package.parent / "bin"]
    return [*installed, *(build / "bin" for build in _builds(package))]


def _show_programs(loaded: ctypes.CDLL) -> None:
    for place in programs():
        if (place / "ebb-hdf5-reader").is_file():
            loaded.ebb_programs_in(os.fsencode(place))
            return


def _load(path: str) -> ctypes.CDLL:
    try:
        loaded = ctypes.CDLL(path, mode=ctypes.RTLD_LOCAL)
    except OSError as why:
        raise ImportError(
            f"Ebb's library cannot be loaded: {why}; "
            "build it (./dev build in Ebb's tree), or say in EBB_LIBRARY where it is",
            path=path,
        ) from why
    _check_abi(loaded, path)
    for name, (result, arguments) in _abi.FUNCTIONS.items():
        function = _function(loaded, name, path)
        function.restype = result
        function.argtypes = arguments
    _show_programs(loaded)
    return loaded


# With another ABI the fields of structs lie elsewhere.
def _check_abi(loaded: ctypes.CDLL, path: str) -> None:
    abi = _function(loaded, "ebb_abi", path)()
    if abi != _abi.ABI:
        raise ImportError(
            f"{path} has ABI {abi}, and this package, {Path(__file__).parent}, wants "
            f"{_abi.ABI}; install both from one version, or let EBB_LIBRARY name the library "
            "that came with the package",
            path=path,
        )


def _function(loaded: ctypes.CDLL, name: str, path: str) -> Any:
    try:
        return getattr(loaded, name)
    except AttributeError:
        raise ImportError(
            f"{path} has no {name}: it is older than this package, or another library; "
            "install both from one version",
            path=path,
        ) from None
