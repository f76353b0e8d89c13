"""Exceptions: each is what Ebb means and what Python has for the same thing."""

from __future__ import annotations

import copy
import errno
import pickle
import re
import traceback
import unittest
from pathlib import Path
from unittest import mock

import ebb
from ebb import _abi, errors

# What each is besides ebb.Error, and its code.
CLASSES: dict[type[ebb.Error], tuple[type[Exception], int]] = {
    ebb.UsageError: (ValueError, _abi.USAGE),
    ebb.IoError: (OSError, _abi.IO),
    ebb.NoSpace: (OSError, _abi.NO_SPACE),
    ebb.NoMemory: (MemoryError, _abi.NO_MEMORY),
    ebb.Corrupt: (RuntimeError, _abi.CORRUPT),
    ebb.Incomplete: (RuntimeError, _abi.INCOMPLETE),
    ebb.Unsupported: (NotImplementedError, _abi.UNSUPPORTED),
    ebb.Limit: (RuntimeError, _abi.LIMIT),
    ebb.Busy: (RuntimeError, _abi.BUSY),
    ebb.Moved: (RuntimeError, _abi.MOVED),
    ebb.StateError: (RuntimeError, _abi.STATE),
    ebb.LayoutError: (ValueError, _abi.LAYOUT),
    ebb.PeerError: (RuntimeError, _abi.PEER),
    ebb.Cancelled: (RuntimeError, _abi.CANCELLED),
    ebb.Internal: (RuntimeError, _abi.INTERNAL),
}
SENTENCE = "step 7: /nvme/run7/tiles: the device is full"
HINT = "make room there"
# Python 3.9 and 3.10 have no notes: the hint is in the text there.
TEXT = SENTENCE if hasattr(BaseException, "add_note") else f"{SENTENCE}\n{HINT}"
PLACES = {"file": "/nvme/run7/tiles", "offset": 4096, "rank": 0, "tensor": "wq", "step": 7}


def last_error(code: int, **places: object) -> _abi.Error:
    """What ebb_last_error() gives; of what is not said nothing is known."""
    known: dict[str, object] = {
        "message": SENTENCE.encode(),
        "hint": b"",
        "file": b"",
        "tensor": b"",
        "offset": -1,
        "rank": -1,
        "step": -1,
    }
    return _abi.Error(code=code, **{**known, **places})


def full(code: int) -> ebb.Error:
    places = {key: v.encode() if isinstance(v, str) else v for key, v in PLACES.items()}
    return errors.from_c("ebb_engine_step", code, last_error(code, hint=HINT.encode(), **places))


# Of ebb.h, in hints that no user of ebb.torch meets: the package makes these calls itself.
OUR_OWN = {"ebb_engine_begin_step()", "ebb_engine_gradients()"}


class Errors(unittest.TestCase):
    def assert_is_full(self, error: ebb.Error) -> None:
        self.assertEqual(str(error), TEXT)
        self.assertEqual(error.args, (SENTENCE,))
        self.assertEqual(error.hint, HINT)
        self.assertEqual({key: getattr(error, key) for key in PLACES}, PLACES)

    def test_each_status_has_a_class_of_its_own(self) -> None:
        numbers = (v for k, v in vars(_abi).items() if k.isupper() and isinstance(v, int))
        statuses = {number for number in numbers if number < 0}
        self.assertEqual(set(errors.CLASSES), statuses)
        self.assertEqual(set(errors.CLASSES.values()), set(CLASSES))
        self.assertLessEqual({kind.__name__ for kind in CLASSES}, set(ebb.__all__))

    def test_each_is_what_python_has_for_it_with_its_sentence_and_places(self) -> None:
        for kind, (base, code) in CLASSES.items():
            with self.subTest(kind.__name__):
                error = full(code)
                self.assertIs(type(error), kind)
                self.assertIsInstance(error, (ebb.Error, RuntimeError))
                self.assertIsInstance(error, base)
                self.assertEqual(error.code, code)
                self.assert_is_full(error)

    def test_what_is_not_known_is_none_and_rank_0_is_known(self) -> None:
        error = errors.from_c("f", _abi.CORRUPT, last_error(_abi.CORRUPT, rank=0))
        self.assertEqual((error.hint, error.file, error.tensor), (None, None, None))
        self.assertEqual((error.offset, error.rank, error.step), (None, 0, None))

    def test_they_travel_between_processes(self) -> None:
        for kind, (_, code) in CLASSES.items():
            for travelled in (pickle.loads(pickle.dumps(full(code))), copy.copy(full(code))):
                with self.subTest(kind.__name__):
                    self.assertIs(type(travelled), kind)
                    self.assertEqual(travelled.code, code)
                    self.assert_is_full(travelled)
                    self.assertEqual(shown(travelled).count(HINT), 1)

    def test_a_traceback_shows_sentence_and_hint_once(self) -> None:
        for _, code in CLASSES.values():
            self.assertEqual(shown(full(code)).count(SENTENCE), 1)
            self.assertEqual(shown(full(code)).count(HINT), 1)

    # As in Python 3.9 and 3.10.
    def test_without_notes_the_hint_is_in_the_text(self) -> None:
        with mock.patch.object(errors, "hasattr", lambda *_: False, create=True):
            for _, code in CLASSES.values():
                self.assertEqual(str(full(code)), f"{SENTENCE}\n{HINT}")
                self.assertEqual(getattr(full(code), "__notes__", []), [])
            self.assertEqual(str(ebb.Busy("held")), "held")

    def test_python_code_can_raise_them(self) -> None:
        error = ebb.NoSpace(SENTENCE, hint=HINT, rank=3)
        self.assertEqual((str(error), error.code, error.rank), (TEXT, _abi.NO_SPACE, 3))
        self.assertEqual((error.errno, error.hint), (errno.ENOSPC, HINT))
        self.assertEqual(str(ebb.IoError()), "")

    def test_a_status_of_a_newer_library_keeps_its_number(self) -> None:
        error = errors.from_c("ebb_engine_step", -55, last_error(-55))
        self.assertIs(type(error), ebb.Error)
        self.assertEqual((str(error), error.code), (SENTENCE, -55))
        self.assertEqual(pickle.loads(pickle.dumps(error)).code, -55)

    # A finalizer that ran in between has called the library, too.
    def test_another_calls_sentence_is_not_taken_for_this_ones(self) -> None:
        error = errors.from_c("ebb_engine_step", _abi.BUSY, last_error(_abi.DONE))
        self.assertIs(type(error), ebb.Busy)
        self.assertEqual(str(error), "ebb_engine_step answered -9")

    def test_bytes_that_are_no_utf8_hide_nothing(self) -> None:
        last = last_error(_abi.IO, file=b"/nvme/\xff")
        self.assertEqual(errors.from_c("f", _abi.IO, last).file, "/nvme/\ufffd")


def shown(error: ebb.Error) -> str:
    return "".join(traceback.format_exception(type(error), error, None))

    def test_hints_name_what_python_has(self) -> None:
        hint = b"ebb_engine_continue() goes on; ebb_engine_save_to() another directory"
        error = errors.from_c("ebb_engine_step", _abi.STATE, last_error(_abi.STATE, hint=hint))
        self.assertEqual(error.hint, "continue_step() goes on; save_to() another directory")
        names = Path(__file__).parents[3] / "bindings" / "c" / "names.cpp"
        in_c = set(re.findall(r'"(ebb_engine_[a-z_]+\(\))"', names.read_text(encoding="utf-8")))
        self.assertGreater(len(in_c), 8)
        said = " ".join(errors._WORDS)
        self.assertEqual({name for name in in_c if name not in said}, OUR_OWN)



if __name__ == "__main__":
    unittest.main()
