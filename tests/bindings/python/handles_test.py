"""Handles that lead to nothing: each call with one ends with a sentence, at once."""

from __future__ import annotations

import os
import signal
import unittest
from ctypes import byref, c_int64, c_void_p

import ebb
from ebb import _library
from small_model import EngineCase, SmallModel, alone, listen, step


def said_in_child(engine: c_void_p) -> str:
    """What a forked child is told when it makes a step of its parent's engine."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a child that waits for a thread of its parent's waits for ever
        try:
            _library.call("ebb_engine_step", engine, None, None)
            said = "nothing"
        except ebb.Error as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return said


class Handles(EngineCase):
    def test_null_is_refused_by_name(self) -> None:
        for name in ("ebb_engine_close", "ebb_engine_abandon", "ebb_engine_install_weights"):
            with self.assertRaisesRegex(ebb.UsageError, "the engine is NULL"):
                _library.call(name, None)
        with self.assertRaisesRegex(ebb.UsageError, "NULL"):
            _library.call("ebb_ranks_close", c_void_p())
        with self.assertRaisesRegex(ebb.UsageError, "NULL"):
            _library.call("ebb_listener_close", None)

    def test_a_place_for_the_answer_is_asked_for(self) -> None:
        with self.assertRaisesRegex(ebb.UsageError, "NULL"):
            _library.call("ebb_about", None)
        with self.assertRaisesRegex(ebb.UsageError, "NULL"):
            _library.call("ebb_ranks_agree", self.ranks, 1, None)

    def test_a_closed_engine_is_refused(self) -> None:
        engine = self.opened(SmallModel())
        _library.call("ebb_engine_close", engine)
        with self.assertRaisesRegex(ebb.UsageError, "closed") as caught:
            step(engine, 0)
        self.assertEqual(caught.exception.code, -1)
        with self.assertRaises(ValueError):
            _library.call("ebb_engine_close", engine)

    def test_ranks_are_no_engine_and_closed_ones_are_none(self) -> None:
        with self.assertRaises(ebb.UsageError):
            _library.call("ebb_engine_abandon", self.ranks)
        ranks = alone()
        _library.call("ebb_ranks_close", ranks)
        with self.assertRaisesRegex(ebb.UsageError, "closed"):
            _library.call("ebb_ranks_agree", ranks, 1, byref(c_int64()))
        listener, _ = listen()
        _library.call("ebb_listener_close", listener)
        with self.assertRaisesRegex(ebb.UsageError, "closed"):
            _library.call("ebb_listener_close", listener)

    def test_a_forked_child_is_told_so_and_its_parent_goes_on(self) -> None:
        engine = self.opened(SmallModel())
        step(engine, 0)
        self.assertRegex(said_in_child(engine), "^StateError: .*process")
        self.assertEqual(step(engine, 1).step, 2)

    def test_a_second_open_engine_of_a_directory_is_refused(self) -> None:
        self.opened(SmallModel())
        with self.assertRaises(ebb.Busy) as caught:
            SmallModel().open(self.ranks, self.directory)
        self.assertIn(self.directory, str(caught.exception))


if __name__ == "__main__":
    unittest.main()
