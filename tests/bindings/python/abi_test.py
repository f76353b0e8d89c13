"""_abi.py beside what the C compiler makes of ebb.h, and what its generator refuses."""

from __future__ import annotations

import ctypes
import inspect
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

from ebb import _abi

BINDINGS = Path(__file__).resolve().parents[3] / "bindings/c"
COMPILER = os.environ.get("EBB_CC", "cc")

SCALARS = {
    ctypes.c_double: "double",
    ctypes.c_int32: "int32_t",
    ctypes.c_int64: "int64_t",
    ctypes.c_uint8: "uint8_t",
    ctypes.c_uint32: "uint32_t",
    ctypes.c_uint64: "uint64_t",
}
# Prints a struct's size, a field's place and type, a constant.
PROGRAM = r"""
#include <stddef.h>
#include <stdio.h>
#include "bindings/c/ebb.h"
#define TYPE(value) _Generic((value), double: "double", int32_t: "int32_t", int64_t: "int64_t", \
  uint8_t: "uint8_t", uint32_t: "uint32_t", uint64_t: "uint64_t", default: "pointer")
#define SIZE(type) printf(#type " %zu\n", sizeof(type))
#define FIELD(type, field) printf(#type "." #field " %zu %zu %s\n", offsetof(type, field), \
  sizeof(((type*)0)->field), TYPE(((type*)0)->field))
#define CONSTANT(name) printf("EBB_" #name " %d\n", EBB_##name)
int main(void) {
"""


def c_name(struct: type[ctypes.Structure]) -> str:
    return "ebb" + re.sub("([A-Z])", lambda capital: "_" + capital[1].lower(), struct.__name__)


def structs() -> list[type[ctypes.Structure]]:
    return [
        one
        for one in vars(_abi).values()
        if inspect.isclass(one) and issubclass(one, ctypes.Structure) and hasattr(one, "_fields_")
    ]


def constants() -> dict[str, int]:
    return {k: v for k, v in vars(_abi).items() if k.isupper() and isinstance(v, int)}


class AsTheCompilerHasIt(unittest.TestCase):
    def test_structs_fields_and_constants_are_those_of_the_header(self) -> None:
        program, known = [PROGRAM], []
        for struct in structs():
            name = c_name(struct)
            program.append(f"SIZE({name});")
            known.append(f"{name} {ctypes.sizeof(struct)}")
            for field, ctype, *_ in struct._fields_:
                place = getattr(struct, field)
                kind = SCALARS.get(ctype, "pointer")
                program.append(f"FIELD({name}, {field});")
                known.append(f"{name}.{field} {place.offset} {place.size} {kind}")
        for constant, value in constants().items():
            program.append(f"CONSTANT({constant});")
            known.append(f"EBB_{constant} {value}")
        self.assertEqual(self.output("\n".join([*program, "}"])).splitlines(), known)

    def output(self, program: str) -> str:
        with tempfile.TemporaryDirectory() as scratch:
            path = str(Path(scratch) / "offsets")
            command = [COMPILER, "-std=c11", "-x", "c", "-", "-o", path]
            command += [f"-I{BINDINGS.parents[1]}"]
            subprocess.run(command, input=program, text=True, check=True)
            return subprocess.run([path], capture_output=True, text=True, check=True).stdout

    # The list that the C tests hold against the library and the header.
    def test_no_function_and_no_struct_is_missing(self) -> None:
        lines = (BINDINGS / "abi.txt").read_text().splitlines()
        functions = {line for line in lines if " " not in line}
        sizes = {line for line in lines[1:] if " " in line}
        self.assertEqual(lines[0], f"EBB_ABI {_abi.ABI}")
        self.assertEqual(set(_abi.FUNCTIONS), functions)
        self.assertEqual({f"{c_name(one)} {ctypes.sizeof(one)}" for one in structs()}, sizes)

    def test_every_constant_of_the_header_is_there(self) -> None:
        text = "".join(header.read_text() for header in BINDINGS.glob("ebb*.h"))
        code = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
        named = set(re.findall(r"\bEBB_(\w+) = ", code))
        self.assertEqual(set(constants()) - {"ABI"}, named)


HEADER = """#ifndef EBB_H
#define EBB_H
#define EBB_ABI 7
#include <stdint.h>
#if defined(__cplusplus)
extern "C" {
#else
#define EBB_API
#endif
%s
#if defined(__cplusplus)
}
#endif
#endif /* EBB_H */
"""
LINE = 10  # of it: where the %s is


class Generator(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.header = Path(scratch.name) / "ebb.h"
        self.output = Path(scratch.name) / "_abi.py"

    def run_on(self, declarations: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run_on_header(HEADER % declarations, *arguments)

    def run_on_header(self, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        self.header.write_text(text)
        return subprocess.run(
            [sys.executable, str(BINDINGS / "generate_abi.py")]
            + ["--header", str(self.header), "--output", str(self.output), *arguments],
            capture_output=True,
            text=True,
        )

    def generated(self, declarations: str) -> dict[str, Any]:
        run = self.run_on(declarations)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        module: dict[str, Any] = {}
        exec(self.output.read_text(), module)
        return module

    def test_each_kind_of_declaration_becomes_what_ctypes_calls_it(self) -> None:
        module = self.generated(
            "typedef int32_t ebb_status;\n"
            "enum { EBB_A = 0, /* EBB_C = 5 */ EBB_B = -100 };\n"
            "typedef struct ebb_two_words {\n  double x;\n  const uint32_t *p, *q;\n"
            "  int32_t *i, j;\n} ebb_two_words;\n"
            "typedef struct ebb_handle ebb_handle;\n"
            "EBB_API ebb_status ebb_f(const ebb_two_words* a, ebb_handle* h, ebb_handle** out,\n"
            "                         const char* s, char** text, const char* const* all,\n"
            "                         const void* bytes, uint64_t* n, const uint8_t* from);\n"
            "EBB_API void ebb_g(void);\n"
            "EBB_API const char* ebb_h(void);"
        )
        pointer, struct = ctypes.POINTER, module["TwoWords"]
        self.assertEqual((module["ABI"], module["A"], module["B"]), (7, 0, -100))
        self.assertNotIn("C", module)
        self.assertEqual(
            struct._fields_,
            [
                ("x", ctypes.c_double),
                ("p", pointer(ctypes.c_uint32)),
                ("q", pointer(ctypes.c_uint32)),
                ("i", pointer(ctypes.c_int32)),
                ("j", ctypes.c_int32),
            ],
        )
        f = (
            ctypes.c_int32,
            [
                pointer(struct),
                ctypes.c_void_p,
                pointer(ctypes.c_void_p),
                ctypes.c_char_p,
                pointer(ctypes.c_void_p),
                pointer(ctypes.c_char_p),
                ctypes.c_void_p,
                pointer(ctypes.c_uint64),
                pointer(ctypes.c_uint8),
            ],
        )
        self.assertEqual(
            module["FUNCTIONS"], {"ebb_f": f, "ebb_g": (None, []), "ebb_h": (ctypes.c_char_p, [])}
        )

    def test_what_it_does_not_understand_is_refused_by_its_line(self) -> None:
        for declaration in (
            "typedef struct ebb_a { uint64_t shape[8]; } ebb_a;",
            "typedef struct ebb_a { int32_t (*sends[2])(void*); } ebb_a;",
            "typedef struct ebb_a { uint32_t bits : 3; } ebb_a;",
            "typedef struct ebb_a { size_t n; } ebb_a;",
            "typedef struct ebb_a { unsigned int n; } ebb_a;",
            "typedef struct ebb_a { char* text; } ebb_a;",
            "typedef struct ebb_a { void nothing; } ebb_a;",
            "typedef struct ebb_a { const ebb_later* b; } ebb_a;",
            "typedef struct ebb_a { struct { int32_t x; } inner; } ebb_a;",
            "typedef struct ebb_a { int32_t x; } ebb_b;",
            "typedef struct { int32_t x; } ebb_a;",
            "typedef struct ebb_a ebb_a; typedef struct ebb_b { ebb_a whole; } ebb_b;",
            "typedef union ebb_a { int32_t x; } ebb_a;",
            "typedef int64_t* ebb_a;",
            "typedef void (*ebb_a)(void);",
            "enum ebb_a { EBB_X = 1 };",
            "enum { EBB_X };",
            "enum { EBB_X = 1 << 2 };",
            "enum { X = 1 };",
            "int32_t ebb_f(int32_t n, ...);",
            "int32_t ebb_f();",
            "int32_t ebb_f(uint32_t);",
            "int32_t other_f(void);",
            "int32_t ebb_f(void) { return 1; }",
            "extern int32_t ebb_x;",
            "#if EBB_ABI > 6\n#endif",
            "#define EBB_F(x) (x)",
            "#include <stddef.h>",
            "#pragma pack(1)",
        ):
            with self.subTest(declaration):
                run = self.run_on("\n" + declaration)
                self.assertEqual((run.returncode, run.stdout), (2, ""))
                self.assertIn(f"{self.header}: line {LINE + 1}: no rule for: ", run.stderr)
                self.assertIn("generate_abi.py", run.stderr)
                self.assertFalse(self.output.exists())

    def test_names_that_python_would_confuse_are_refused(self) -> None:
        for declaration in (
            "enum { EBB_X = 1 }; enum { EBB_X = 2 };",
            "enum { EBB_None = 1 };",
            "typedef struct ebb_a { int32_t from; } ebb_a;",
        ):
            with self.subTest(declaration):
                run = self.run_on(declaration)
                self.assertEqual(run.returncode, 2)
                self.assertIn("would mean two things", run.stderr)

    def test_a_header_of_no_abi_is_refused(self) -> None:
        run = self.run_on_header("#include <stdint.h>\n")
        self.assertEqual(run.returncode, 2)
        self.assertIn("EBB_ABI is not defined", run.stderr)

    def test_check_writes_nothing_and_says_what_to_type(self) -> None:
        first = "enum { EBB_X = 1 };\nint32_t ebb_f(void);"
        self.generated(first)
        self.assertEqual(self.run_on(first, "--check").returncode, 0)
        before = self.output.read_text()
        run = self.run_on(first.replace("1", "2"), "--check")
        self.assertEqual(run.returncode, 1)
        self.assertIn("-X = 1\n+X = 2\n", run.stdout)
        self.assertIn("type: python3 bindings/c/generate_abi.py", run.stdout)
        self.assertEqual(self.output.read_text(), before)


if __name__ == "__main__":
    unittest.main()
