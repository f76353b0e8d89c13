"""What an installed wheel must do, with the Python that it is installed for and nothing else."""

import json
import subprocess
import sys
import sysconfig
import unittest
from pathlib import Path

import ebb

FIXTURES = Path(sys.argv.pop())
PROGRAMS = ("ckpt-inspect", "ckpt-convert", "swap-bench", "ebb-hdf5-reader")
SCRIPTS = Path(sysconfig.get_path("scripts"))


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Wheel(unittest.TestCase):
    def test_has_its_library_and_its_tools_of_one_version(self) -> None:
        package = Path(ebb.__file__).parent
        self.assertEqual(Path(ebb.about()["library"]), package / "lib/libebb.so.0")
        self.assertTrue((package / "py.typed").exists())
        for program in PROGRAMS[:3]:
            self.assertIn(ebb.__version__, run(str(SCRIPTS / program), "--version"))
        self.assertTrue((SCRIPTS / PROGRAMS[3]).exists())
        self.assertIn("io_uring", run(sys.executable, "-m", "ebb"))

    def test_reads_every_format_by_itself_and_by_its_tools(self) -> None:
        seen = set()
        for said in sorted(FIXTURES.glob("*/*/expected.json")):
            if said.parent.parent.name in seen or said.parent.name.startswith("bad_"):
                continue
            expected = json.loads(said.read_text())
            if "tensors" not in expected or "error" in expected:
                continue
            with ebb.open(said.parent / "data") as checkpoint:
                self.assertTrue(checkpoint.tensors, said)
                self.assertTrue(checkpoint.verify()["sound"], said)
            seen.add(said.parent.parent.name)
        self.assertLessEqual({"dcp", "deepspeed", "hdf5", "megatron", "safetensors"}, seen)
        print("read:", ", ".join(sorted(seen)))


if __name__ == "__main__":
    unittest.main()
