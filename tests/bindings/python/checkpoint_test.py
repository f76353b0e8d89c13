"""ebb.open() on every fixture: the elements that the framework had, boxes, refusals; with python3
alone."""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import os
import random
import shutil
import tempfile
import unittest
from pathlib import Path

import ebb
from ebb import _values

FIXTURES = Path(os.environ["EBB_FIXTURES"])


def bytes_of(ref: ebb.TensorRef) -> bytes:
    room = (ctypes.c_char * max(1, ref.nbytes))()
    place = ref.place([0] * len(ref.shape), ref.shape, ctypes.addressof(room), ref.nbytes)
    ref._checkpoint.read_into([place])
    return bytes(room)[: ref.nbytes]


def fixtures() -> list[tuple[Path, dict]]:
    """Folders that are whole, and what their expected.json says."""
    all_of_them = [
        (path.parent, json.loads(path.read_text(encoding="utf-8")))
        for path in sorted(FIXTURES.glob("*/*/expected.json"))
    ]
    return [(folder, said) for folder, said in all_of_them
            if "tensors" in said and "error" not in said]  # fmt: skip


def check(path: Path) -> None:
    """Raises for what is damaged, wherever that is found."""
    with ebb.open(path) as checkpoint:
        for ref in checkpoint.tensors:
            bytes_of(ref)
        said = checkpoint.verify()
    if not said["sound"]:
        raise ebb.Corrupt(said["problems"][0]["message"])


class Fixtures(unittest.TestCase):
    def test_have_the_elements_that_the_framework_wrote(self) -> None:
        compared = 0
        for folder, said in fixtures():
            with self.subTest(folder.name), ebb.open(folder / "data") as checkpoint:
                digests = {}
                for one in said["tensors"]:
                    digests[one["name"], one["state"]] = one.get("sha256")
                    digests[one.get("key") or one["name"]] = one.get("sha256")
                here = 0
                for ref in checkpoint.tensors:
                    wanted = digests.get((ref.name, ref.state)) or digests.get(ref.key)
                    if wanted is not None:
                        found = hashlib.sha256(bytes_of(ref)).hexdigest()
                        self.assertEqual(found, wanted, ref)
                        here += 1
                self.assertGreater(here, 0, folder)
                compared += here
        print(f"{compared} tensors")

    def test_that_are_damaged_raise_and_end_nobody(self) -> None:
        damaged = [path for path in sorted(FIXTURES.glob("*/bad_*/data"))]
        self.assertGreater(len(damaged), 20)
        for path in damaged:
            with self.subTest(str(path)), self.assertRaisesRegex(ebb.Error, "."):
                check(path)

    def test_with_a_byte_changed_or_cut_off_are_read_or_raise(self) -> None:
        dice = random.Random(20261127)
        sound = [folder for folder, _ in fixtures()]
        raised = 0
        with tempfile.TemporaryDirectory() as scratch:
            for count in range(200):
                there = Path(scratch, str(count))
                shutil.copytree(dice.choice(sound) / "data", there)
                files = [file for file in sorted(there.rglob("*")) if file.is_file()]
                damage(dice.choice(files), dice)
                with self.subTest(count):
                    try:
                        check(there)
                    except ebb.Error as error:
                        self.assertTrue(str(error))
                        raised += 1
        self.assertGreater(raised, 50)


def damage(file: Path, dice: random.Random) -> None:
    there = bytearray(file.read_bytes())
    if not there:
        return
    at = dice.randrange(len(there))
    if dice.random() < 0.3:
        del there[at:]
    else:
        there[at] ^= 1 << dice.randrange(8)
    file.chmod(0o644)
    file.write_bytes(there)


class Values(unittest.TestCase):
    def test_are_pythons_own(self) -> None:
        with ebb.open(FIXTURES / "dcp/zoo_w1/data") as checkpoint:
            found = checkpoint.metadata
        wanted = {
            "values.int": -5, "values.big": 9223372036854775819, "values.float": 0.1,
            "values.inf": -math.inf, "values.str": "\u00fcn\u00ef \u2603",
            "values.bytes": b"\x00\xff\x80abc", "values.none": None, "values.true": True,
            "values.tuple": (1, "x", (2.5, None)), "values.empty_list": [],
            "values.empty_tuple": (), "values.set": {1, 3}, "values.cplx": 1.5 - 2j,
            "values.size": (3, 4), "values.dtype": "bfloat16",
            "lists.nested_ints": [[1, 2], [3, [4]]],
        }  # fmt: skip
        self.assertEqual({key: found[key] for key in wanted}, wanted)
        self.assertEqual({key: type(found[key]) for key in wanted},
                         {key: type(value) for key, value in wanted.items()})  # fmt: skip
        self.assertTrue(math.isnan(found["values.nan"]))
        tensor, text = found["lists.mixed.2"]
        self.assertEqual((tensor.dtype, tensor.shape, text), ("int64", (2,), "in tuple"))

    def test_of_groups_are_pythons_own(self) -> None:
        with ebb.open(FIXTURES / "torch/muon_adamw_state/data") as checkpoint:
            adamw = next(one for one in checkpoint.groups if one.optimizer == "adamw")
        self.assertEqual(adamw.settings["betas"], (0.9, 0.999))

    def test_that_json_spells_with_a_mark(self) -> None:
        for text, wanted in (
            ('{"$dict": [[1, "a"], [{"$tuple": [2]}, "b"]]}', {1: "a", (2,): "b"}),
            ('{"$dict": [["$tuple", [1]]]}', {"$tuple": [1]}),
            ('{"$dict": [["$ebb.tensor", 1]]}', {"$ebb.tensor": 1}),
            ('{"$dict": [["$ebb.tensor", {"dtype": {"$dtype": "U8"}, "shape": [2], '
             '"bytes": {"$bytes": "0102"}}]]}', ("uint8", (2,), b"\x01\x02", None)),
            ('{"$dict": [["$ebb.object", ["a.B", {"$tuple": [1]}, {"x": 2}]]]}',
             ("a.B", (1,), {"x": 2})),
            ('{"$object": "a.B"}', ("a.B", (), None)),
            ('{"$object": {"class": "a.B", "state": {"x": 1}}}', ("a.B", (), {"x": 1})),
            ('{"$set": [{"$object": {"class": "a.B", "state": {}}}]}', [("a.B", (), {})]),
            ('{"$unknown": 1}', {"$unknown": 1}),
            ('{"plain": {"$float": "inf"}}', {"plain": math.inf}),
        ):  # fmt: skip
            with self.subTest(text):
                self.assertEqual(_values.loads(text), wanted)


class Checkpoint(unittest.TestCase):
    def setUp(self) -> None:
        self.checkpoint = ebb.open(FIXTURES / "deepspeed/z2_muon_bf16_w2/data")
        self.addCleanup(self.checkpoint.close)

    def test_is_a_mapping_of_names(self) -> None:
        checkpoint = self.checkpoint
        self.assertEqual(checkpoint.format, "deepspeed")
        self.assertEqual(checkpoint.world, 2)
        self.assertIn("momentum_buffer", checkpoint.states)
        name = next(n for n in checkpoint if (n, "momentum_buffer") in checkpoint)
        momentum = checkpoint[name, "momentum_buffer"]
        self.assertEqual((momentum.name, momentum.state), (name, "momentum_buffer"))
        self.assertEqual(checkpoint[name].state, "master")
        self.assertEqual(checkpoint[name].dtype, "float32")
        self.assertEqual(len(checkpoint), len(list(checkpoint)))
        self.assertNotIn("no such", checkpoint)
        with self.assertRaises(KeyError):
            checkpoint["no such"]
        with self.assertRaises(KeyError):
            checkpoint[name, "exp_avg_of_nobody"]
        self.assertTrue(momentum.chunks)
        self.assertEqual({chunk.rank for chunk in momentum.chunks} - {0, 1}, set())
        self.assertIn("DeepSpeed", repr(checkpoint))
        self.assertIn(name, repr(momentum))
        self.assertTrue(all(group.params for group in checkpoint.groups))

    def test_has_weights_that_outlive_it(self) -> None:
        weights = self.checkpoint.weights()
        self.checkpoint.close()
        self.assertEqual(weights.states, ("param",))
        for ref in weights.values():
            self.assertEqual(len(bytes_of(ref)), ref.nbytes)
        with self.assertRaisesRegex(ebb.UsageError, "is closed"):
            self.checkpoint.weights()

    def test_has_weights_by_the_names_of_what_was_wrapped(self) -> None:
        names = ("a.weight", "b._orig_mod.weight", "module.c")
        two = {"dtype": "U8", "shape": [2]}
        places = {f"module.{name}": {**two, "data_offsets": [2 * i, 2 * i + 2]}
                  for i, name in enumerate(names)}
        header = json.dumps(places).encode()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "model.safetensors")
            file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(range(6)))
            with ebb.open(file) as checkpoint:
                self.assertIn("module.a.weight", checkpoint)
                weights = checkpoint.weights()
                self.assertEqual(list(weights), ["a.weight", "b.weight", "module.c"])
                self.assertEqual(bytes_of(weights["b.weight"]), bytes((2, 3)))

    def test_is_verified_compared_and_explained_by_the_tools(self) -> None:
        self.assertTrue(self.checkpoint.verify()["sound"])
        self.assertTrue(self.checkpoint.explain_resume(2))
        self.assertTrue(self.checkpoint.diff(self.checkpoint))
        with self.assertRaises(ebb.UsageError):
            self.checkpoint.convert(self.checkpoint.path, "no such format")
        with self.assertRaises(ebb.IoError) as caught:
            self.checkpoint.diff("/nowhere")
        self.assertEqual(caught.exception.file, "/nowhere")

    def test_tells_how_far_a_conversion_is(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            there, calls = Path(folder, "there"), []
            self.checkpoint.convert(there, "dcp", progress=lambda *now: calls.append(now))
            self.assertEqual(calls, sorted(calls))
            self.assertEqual(calls[-1][0], calls[-1][1])
            self.assertGreater(calls[-1][1], 0)
            self.assertTrue(self.checkpoint.diff(there))

    def test_stops_converting_where_what_is_told_raises_and_goes_on(self) -> None:
        def stop(done: int, total: int) -> None:
            raise ZeroDivisionError

        with tempfile.TemporaryDirectory() as folder:
            there = Path(folder, "there")
            with self.assertRaises(ZeroDivisionError):
                self.checkpoint.convert(there, "dcp", progress=stop)
            self.checkpoint.convert(there, "dcp", progress=False)
            self.assertTrue(ebb.open(there).verify()["sound"])

    def test_is_shown_in_a_notebook(self) -> None:
        page = self.checkpoint._repr_html_()
        self.assertIn("<pre>", page)
        self.assertIn("DeepSpeed", page)
        self.assertIn('srcdoc="&lt;!DOCTYPE html&gt;', page)
        with tempfile.TemporaryDirectory() as folder:
            there = Path(folder, "there")
            shutil.copytree(self.checkpoint.path, there)
            gone = ebb.open(there)
            shutil.rmtree(there)
            self.assertIsNone(gone._repr_html_())

    def test_is_refused_with_its_place(self) -> None:
        with self.assertRaises(ebb.IoError) as caught:
            ebb.open("/nowhere")
        self.assertIn("/nowhere", str(caught.exception))
        with self.assertRaises(ebb.Incomplete) as torn:
            ebb.open(FIXTURES / "dcp/bad_hole/data")
        self.assertIn("rows 5-8", str(torn.exception))


if __name__ == "__main__":
    unittest.main()
