"""Where the library is found, and which ones are refused."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path
from unittest import mock

import ebb
from ebb import _abi, _library

PACKAGE = Path(ebb.__file__).parent
REAL = os.environ["EBB_LIBRARY"]
COMPILER = os.environ.get("EBB_CC", "cc")


class Library(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = Path(scratch.name).resolve()

    def python(self, program: str, package: Path = PACKAGE, **environment: str) -> str:
        """What a Python says that has this package, and whose environment has no EBB_LIBRARY."""
        inherited = {k: v for k, v in os.environ.items() if k != "EBB_LIBRARY"}
        run = subprocess.run(
            [sys.executable, "-c", program],
            env={**inherited, "PYTHONPATH": str(package.parent), **environment},
            capture_output=True,
            text=True,
        )
        return run.stdout + run.stderr

    def loaded_from(self, package: Path = PACKAGE, **environment: str) -> str:
        """The path of the library that a call was made in."""
        return self.python("import ebb; print(ebb.about()['library'])", package, **environment)

    def compiled(self, source: str) -> str:
        path = self.scratch / "other.so"
        command = [COMPILER, "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
        subprocess.run(command, input=source, text=True, check=True)
        return str(path)

    def refused(self, path: str) -> str:
        """The sentence of the ImportError."""
        said = self.python("import ebb; ebb.about()", EBB_LIBRARY=path)
        self.assertIn("ImportError: ", said)
        return said.split("ImportError: ")[-1]

    def copied(self, place: str) -> Path:
        return Path(shutil.copytree(PACKAGE, self.scratch / place / "ebb"))

    def linked(self, place: str) -> str:
        """The library at that place."""
        path = self.scratch / place / _library.NAME
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(REAL)
        return str(path)

    def test_ebb_library_outranks_all_others(self) -> None:
        package = self.copied("site-packages")
        self.linked("site-packages/ebb/lib")
        self.assertEqual(self.loaded_from(package, EBB_LIBRARY=REAL), f"{REAL}\n")

    def test_a_wheel_has_it_in_the_package(self) -> None:
        package = self.copied("bindings/python/src")
        header = self.scratch / "bindings/c/ebb.h"
        header.parent.mkdir(parents=True)
        header.touch()
        self.linked("build/release/lib")
        path = self.linked("bindings/python/src/ebb/lib")
        self.assertEqual(self.loaded_from(package), f"{path}\n")

    def test_a_source_tree_has_it_in_its_release_build(self) -> None:
        package = self.copied("bindings/python/src")
        path = self.linked("build/release/lib")
        self.assertNotIn(path, self.loaded_from(package))  # a tree of somebody else's
        header = self.scratch / "bindings/c/ebb.h"
        header.parent.mkdir(parents=True)
        header.touch()
        self.assertEqual(self.loaded_from(package), f"{path}\n")

    def test_near_the_root_it_lies_in_no_source_tree(self) -> None:
        self.assertEqual(_library._builds(Path("/w/ebb")), [])

    def test_else_the_loader_looks_for_it(self) -> None:
        package = self.copied("site-packages")
        folder = str(Path(self.linked("lib")).parent)
        found = self.loaded_from(package, LD_LIBRARY_PATH=folder)
        self.assertEqual(found, f"{_library.NAME}\n")

    def test_none_is_an_import_error_that_says_what_to_do(self) -> None:
        path = str(self.scratch / "none.so")
        said = self.refused(path)
        self.assertIn(path, said)
        self.assertIn("./dev build", said)
        self.assertIn("EBB_LIBRARY", said)

    def test_another_abi_is_an_import_error_that_names_both_and_the_path(self) -> None:
        path = self.compiled("unsigned ebb_abi(void) { return 4321; }")
        said = self.refused(path)
        self.assertIn(f"{path} has ABI 4321", said)
        self.assertRegex(said, rf"wants {_abi.ABI}\b")
        self.assertIn("install both from one version", said)

    def test_an_older_one_is_an_import_error_that_names_what_it_lacks(self) -> None:
        source = f"unsigned ebb_abi(void) {{ return {_abi.ABI}; }} void ebb_version(void) {{}}"
        path = self.compiled(source)
        self.assertIn(f"{path} has no ebb_last_error", self.refused(path))

    def test_another_library_is_an_import_error(self) -> None:
        path = self.compiled("int something;")
        self.assertIn(f"{path} has no ebb_abi", self.refused(path))

    def test_importing_ebb_loads_neither_it_nor_any_package(self) -> None:
        said = self.python(
            "import sys, ebb; print(ebb._library._loaded, {'torch', 'numpy'} & set(sys.modules))",
            EBB_LIBRARY="/nonexistent",
        )
        self.assertEqual(said, "None set()\n")

    def test_the_version_is_the_librarys(self) -> None:
        self.assertEqual(ebb.__version__, ebb.about()["version"])
        self.assertRegex(ebb.__version__, r"^\d+\.\d+\.\d+$")
        with self.assertRaisesRegex(AttributeError, "no attribute 'nothing'"):
            getattr(ebb, "nothing")

    def test_threads_that_ask_at_once_get_one(self) -> None:
        loads: list[str] = []

        def slow(path: str) -> object:
            loads.append(path)
            time.sleep(0.05)  # the others come meanwhile
            return object()

        got: list[object] = []
        with mock.patch.multiple(_library, _loaded=None, _load=slow):
            threads = [
                threading.Thread(target=lambda: got.append(_library.library())) for _ in range(8)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual((len(loads), len(got), len(set(map(id, got)))), (1, 8, 1))

    def test_a_failed_load_is_tried_again(self) -> None:
        with mock.patch.object(_library, "_loaded", None):
            with mock.patch.dict(os.environ, EBB_LIBRARY="/nonexistent"):
                with self.assertRaises(ImportError) as caught:
                    _library.library()
                self.assertEqual(caught.exception.path, "/nonexistent")
            self.assertEqual(_library.library()._name, REAL)

    def test_a_text_is_freed_once(self) -> None:
        answer = ctypes.c_void_p()
        _library.call("ebb_about", ctypes.byref(answer))
        address, free, freed = answer.value, _library.library().ebb_free, []

        def counted(pointer: ctypes.c_void_p) -> None:
            freed.append(pointer.value)
            free(pointer)

        with mock.patch.object(_library.library(), "ebb_free", counted):
            self.assertTrue(_library.text(answer).startswith("{"))
            self.assertIsNone(answer.value)
            self.assertEqual(_library.text(answer), "")
        self.assertEqual(freed, [address, None])

    def test_each_function_has_its_types(self) -> None:
        for name, (result, arguments) in _abi.FUNCTIONS.items():
            function = getattr(_library.library(), name)
            self.assertEqual((function.restype, function.argtypes), (result, arguments), name)
        with self.assertRaises(ctypes.ArgumentError):
            _library.call("ebb_engine_set", None, 0, "text, where bytes belong", 0.1)


if __name__ == "__main__":
    unittest.main()
