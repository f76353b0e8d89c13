"""`python -m ebb`, as a user types it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import unittest

import ebb


def typed(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ebb", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


class Main(unittest.TestCase):
    def test_it_says_what_was_found(self) -> None:
        run = typed()
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        words = " ".join(run.stdout.split())
        found = ebb.about()
        self.assertIn(
            f"library {found['library']}, version {ebb.__version__}, ABI {found['abi']} ", words
        )
        self.assertIn(f"I/O {found['io_backend']}", words)
        self.assertRegex(words, r"torch (not installed|\d+\.)")
        for name in ("keller", "moonlight", "dcp", "deepspeed"):
            self.assertRegex(words, rf"\b{name}\b")
        self.assertLessEqual(max(map(len, run.stdout.splitlines())), 100)

    def test_presets_are_told_with_all_that_they_set(self) -> None:
        run = typed("presets")
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        told = {part.split(":")[0]: part for part in run.stdout.split("\n\n")}
        self.assertEqual(list(told), [preset["name"] for preset in ebb.about()["presets"]])
        self.assertRegex(told["moonlight"], r"\n  scale +match_rms_adamw\n")
        self.assertRegex(told["keller"], r"\n  ns\.1 +3\.4445,-4\.775,2\.0315\n")
        for preset in ebb.about()["presets"]:
            for name, value in preset["settings"].items():
                first = re.escape(value.split()[0])
                self.assertRegex(told[preset["name"]], rf"\n  {name} +{first}")

    def test_without_a_library_it_says_so_in_a_line(self) -> None:
        run = typed(EBB_LIBRARY="/nonexistent/libebb.so.0")
        self.assertEqual((run.returncode, run.stdout), (1, ""))
        self.assertRegex(run.stderr, r"\Aebb: .*/nonexistent/libebb\.so\.0.*\n\Z")

    def test_what_it_does_not_know_is_refused(self) -> None:
        self.assertEqual(typed("nothing").returncode, 2)


if __name__ == "__main__":
    unittest.main()
