"""What Ebb raises: a class for each way to fail, all of them `Error`.

Where Python has a class for the same thing, Ebb's is one of it, too: a disk that is full is
`NoSpace` and `OSError`.
"""

from __future__ import annotations

import errno
from typing import Any

from . import _abi

__all__ = [
    "Busy",
    "Cancelled",
    "Corrupt",
    "Error",
    "Incomplete",
    "Internal",
    "IoError",
    "LayoutError",
    "Limit",
    "Moved",
    "NoMemory",
    "NoSpace",
    "PeerError",
    "StateError",
    "Unsupported",
    "UsageError",
]


class Error(RuntimeError):
    """One sentence that names the thing, the place and the reason.

    code: the status of ebb.h, as `ebb._abi` has it: `ebb._abi.BUSY`.
    hint: what to do about it. A traceback shows it below the sentence (Python 3.11 and later);
      before, it is part of `str(error)`.
    file, offset: where in which file, in bytes.
    rank, tensor, step: which they were.

    What is not known is None.
    """

    code: int = _abi.INTERNAL

    def __init__(
        self,
        message: str = "",
        *,
        code: int | None = None,
        hint: str | None = None,
        file: str | None = None,
        offset: int | None = None,
        rank: int | None = None,
        tensor: str | None = None,
        step: int | None = None,
    ) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        self.hint = hint
        self.file = file
        self.offset = offset
        self.rank = rank
        self.tensor = tensor
        self.step = step
        if hint is not None and hasattr(self, "add_note"):
            self.add_note(hint)

    # OSError has a text of its own, made of a number and a file.
    def __str__(self) -> str:
        message = str(self.args[0]) if self.args else ""
        if self.hint is None or hasattr(self, "add_note"):
            return message
        return f"{message}\n{self.hint}"


class UsageError(Error, ValueError):
    """The caller asked for something impossible; nothing was touched."""

    code = _abi.USAGE


class IoError(Error, OSError):
    """The operating system refused."""

    code = _abi.IO


class NoSpace(Error, OSError):
    """There is no space left on a disk."""

    code = _abi.NO_SPACE
    errno = errno.ENOSPC


class NoMemory(Error, MemoryError):
    """A budget or an allocation is too small."""

    code = _abi.NO_MEMORY


class Corrupt(Error):
    """Bytes contradict their checksum or their own structure."""

    code = _abi.CORRUPT


class Incomplete(Error):
    """A part is missing."""

    code = _abi.INCOMPLETE


class Unsupported(Error, NotImplementedError):
    """Valid, but not by this version."""

    code = _abi.UNSUPPORTED


class Limit(Error):
    """A stated limit was exceeded."""

    code = _abi.LIMIT


class Busy(Error):
    """Held by somebody else; try later."""

    code = _abi.BUSY


class Moved(Error):
    """Its writer replaced it while it was read; read it again."""

    code = _abi.MOVED


class StateError(Error):
    """Not now: an earlier failure or the order of calls forbids it."""

    code = _abi.STATE


class LayoutError(Error, ValueError):
    """Two descriptions of the same state disagree."""

    code = _abi.LAYOUT


class PeerError(Error):
    """Another rank failed, or is gone."""

    code = _abi.PEER


class Cancelled(Error):
    """Somebody called it off."""

    code = _abi.CANCELLED


class Internal(Error):
    """A defect of Ebb's."""

    code = _abi.INTERNAL


CLASSES: dict[int, type[Error]] = {
    one.code: one
    for one in (
        UsageError,
        IoError,
        NoSpace,
        NoMemory,
        Corrupt,
        Incomplete,
        Unsupported,
        Limit,
        Busy,
        Moved,
        StateError,
        LayoutError,
        PeerError,
        Cancelled,
        Internal,
    )
}


# What errors of the library call things, and what a user of ebb.torch does in their place.
_WORDS = {
    "ebb_engine_abandon() goes back to the last committed generation":
        "abandon_step() goes back to the last snapshot",
    "ebb_engine_abandon()": "abandon_step()",
    "ebb_engine_continue()": "continue_step()",
    "ebb_engine_install_weights()": "open()",
    "ebb_engine_open()": "the optimizer",
    "ebb_engine_pin()": "export()",
    "ebb_engine_save_to()": "save_to()",
    "ebb_engine_step()": "step()",
    "ebb_engine_take_weights()": "take_parameters()",
    "ebb_model.drop_unknown = 1": "drop_unknown=True",
    "ebb_param.gradient_dtype and weight_dtype say what the trainer has":
        "make a new optimizer of the parameters as they are: resume='store'",
    "use EBB_AT_OWNERS": "placement='owner'",
    "its matrices at owners": "placement='owner'",
}  # fmt: skip


def _in_python(text: str) -> str:
    for theirs, ours in _WORDS.items():
        text = text.replace(theirs, ours)
    return text


def from_c(function: str, status: int, last: _abi.Error) -> Error:
    """The exception for what `function` answered; `last` is what ebb_last_error() gave."""
    kind = CLASSES.get(status, Error)
    if last.code != status:  # a finalizer of this thread has called Ebb in between
        return kind(f"{function} answered {status}", code=status)
    message, hint = _text(last.message), _text(last.hint)
    return kind(
        f"{function} answered {status}" if message is None else _in_python(message),
        code=status,
        hint=None if hint is None else _in_python(hint),
        file=_text(last.file),
        offset=_number(last.offset),
        rank=_number(last.rank),
        tensor=_text(last.tensor),
        step=_number(last.step),
    )


def _text(given: bytes) -> str | None:
    return given.decode(errors="replace") or None


def _number(given: int) -> int | None:
    return None if given == -1 else given


def from_tool(said: dict[str, Any]) -> Error:
    """The exception for what a tool says with --json."""
    code = getattr(_abi, said["code"].upper(), _abi.INTERNAL)
    places = {key: said[key] for key in ("hint", "file", "offset", "rank", "tensor", "step")}
    return CLASSES.get(code, Error)(said["message"], code=code, **places)
