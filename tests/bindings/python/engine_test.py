"""An engine, driven through ctypes."""

from __future__ import annotations

import ctypes
import json
import math
import unittest
from ctypes import byref, c_char_p, c_int32, c_uint32, c_uint64, c_void_p

from ebb import _library
from small_model import NAMES, EngineCase, Matrix, SmallModel, buffers, step

LAST = 3  # steps before the snapshot


def about(engine: c_void_p) -> dict[str, object]:
    answer = c_void_p()
    _library.call("ebb_engine_about", engine, byref(answer))
    found: dict[str, object] = json.loads(_library.text(answer))
    return found


def close(engine: c_void_p) -> None:
    _library.call("ebb_engine_close", engine)


class Engine(EngineCase):
    def snapshot(self, engine: c_void_p) -> int:
        begun, generation = c_int32(), c_uint64()
        _library.call("ebb_engine_snapshot", engine, byref(begun))
        self.assertEqual(begun.value, 1)
        _library.call("ebb_engine_wait_snapshot", engine, byref(generation))
        return generation.value

    def test_a_step_answers_its_number_and_the_norm_and_moves_the_weights(self) -> None:
        model = SmallModel()
        before = model.values()
        engine = self.opened(model)
        for number in range(LAST):
            result = step(engine, number)
            self.assertEqual((result.step, result.skipped), (number + 1, 0))
            self.assertTrue(math.isfinite(result.norm) and result.norm > 0, result.norm)
        for old, new in zip(before, model.values()):
            self.assertTrue(all(math.isfinite(value) for value in new))
            self.assertNotEqual(old, new)

    def test_it_goes_on_at_the_step_of_its_snapshot_as_if_nothing_had_been(self) -> None:
        model = SmallModel()
        engine = self.opened(model)
        for number in range(LAST):
            step(engine, number)
        self.assertGreater(self.snapshot(engine), 0)
        at_snapshot = model.values()
        step(engine, LAST)
        undisturbed = model.values()
        close(engine)

        resumed = SmallModel()
        engine = self.opened(resumed)
        self.assertEqual(about(engine)["step"], LAST)
        self.assertEqual(resumed.values(), at_snapshot)
        self.assertEqual(step(engine, LAST).step, LAST + 1)
        self.assertEqual(resumed.values(), undisturbed)

    def test_its_state_can_be_read_by_name(self) -> None:
        model = SmallModel()
        engine = self.opened(model)
        step(engine, 0)
        masters = [Matrix() for _ in NAMES]
        numbers = (c_uint32 * len(NAMES))(*range(len(NAMES)))
        _library.call(
            "ebb_engine_read_states", engine, (c_char_p * 1)(b"master"), 1, numbers,
            buffers(masters), len(numbers)
        )
        self.assertEqual([list(master) for master in masters], model.values())

    def test_bytes_of_the_caller_come_back_with_the_snapshot(self) -> None:
        engine = self.opened(SmallModel())
        place = b"batch \x00 7"
        _library.call("ebb_engine_set_blob", engine, b"data", place, len(place))
        step(engine, 0)
        self.snapshot(engine)
        close(engine)

        engine = self.opened(SmallModel())
        room = ctypes.create_string_buffer(64)
        size = c_uint64(len(room))
        _library.call("ebb_engine_blob", engine, b"data", room, byref(size))
        self.assertEqual(room.raw[: size.value], place)

    def test_it_says_what_it_is_made_of(self) -> None:
        engine = self.opened(SmallModel())
        settings = about(engine)["groups"][0]["settings"]  # type: ignore[index]
        self.assertEqual(settings["lr"], "0.05")
        answer = c_void_p()
        _library.call("ebb_engine_stats", engine, byref(answer))
        self.assertIsInstance(json.loads(_library.text(answer)), dict)


if __name__ == "__main__":
    unittest.main()
