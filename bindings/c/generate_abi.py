#!/usr/bin/env python3
"""Writes bindings/python/src/ebb/_abi.py, what ctypes must know of ebb.h: `generate_abi.py`.

    generate_abi.py            writes it
    generate_abi.py --check    says whether it is what would be written; exits with 1 if not

`--header` and `--output` name other files. The header is read as a C compiler reads it that has
defined nothing. What this program does not understand ends it with a sentence and exit code 2:
a struct that ctypes has wrong reads memory that is another field's.
"""

from __future__ import annotations

import argparse
import difflib
import keyword
import re
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple, NoReturn

HERE = Path(__file__).resolve().parent
OUTPUT = HERE.parent / "python/src/ebb/_abi.py"

SCALARS = {
    "double": "c_double",
    "int32_t": "c_int32",
    "int64_t": "c_int64",
    "uint8_t": "c_uint8",
    "uint32_t": "c_uint32",
    "uint64_t": "c_uint64",
}

# How a declaration begins, and what is done with it.
ENUM = re.compile(r"enum\s*\{([^{}]*)\}\s*;")
STRUCT = re.compile(r"typedef\s+struct\s+(\w+)\s*\{([^{}]*)\}\s*(\w+)\s*;")
HANDLE = re.compile(r"typedef\s+struct\s+(\w+)\s+(\w+)\s*;")
ALIAS = re.compile(r"typedef\s+(\w+)\s+(\w+)\s*;")
FUNCTION = re.compile(r"([\w\s*]+)\(([^(){};]*)\)\s*;")
CALLBACK = re.compile(r"\w+ \(\*(\w+)\)\([^()]*\)")
# `const char* const* addresses`: what is pointed to, and declarators behind it.
DECLARATION = re.compile(r"(const\s+)?(\w+)\b\s*(.*)", re.DOTALL)
DECLARATOR = re.compile(r"((?:\*\s*(?:const\b\s*)?)*)(\w*)")


class NotUnderstood(Exception):
    """A place of the header that this program has no rule for."""


class Field(NamedTuple):
    name: str
    ctype: str


class Struct(NamedTuple):
    name: str
    fields: list[Field]


class Function(NamedTuple):
    name: str
    result: str
    arguments: list[str]


def blank(match: re.Match[str]) -> str:
    """Nothing, on as many lines, so that what follows keeps its line."""
    return "\n" * match[0].count("\n")


def whole(header: Path, seen: set[Path]) -> str:
    """With the headers beside it that it includes, each once."""
    seen.add(header)

    def included(line: re.Match[str]) -> str:
        other = header.parent / line[1]
        return "" if other in seen else whole(other, seen)

    return re.sub(r'^#include "(\w+\.h)"$', included, header.read_text(), flags=re.MULTILINE)


def preprocess(text: str) -> tuple[str, dict[str, str]]:
    """The text that a C compiler sees, line by line, and the macros it has at the end."""
    macros: dict[str, str] = {}
    taken = [True]  # by each #if that is open
    lines = re.sub(r"/\*.*?\*/", blank, text, flags=re.DOTALL).split("\n")
    for at, line in enumerate(lines):
        if line.startswith("#"):
            lines[at] = ""
            directive(line.rstrip(), at + 1, macros, taken)
        elif not all(taken):
            lines[at] = ""
    if len(taken) != 1:
        refuse(len(lines), "an #if that no #endif ends")
    names = "|".join(map(re.escape, macros)) or "(?!)"
    return re.sub(rf"\b({names})\b", lambda name: macros[name[0]], "\n".join(lines)), macros


def directive(line: str, at: int, macros: dict[str, str], taken: list[bool]) -> None:
    """Does what a line that begins with # says."""
    if match := re.fullmatch(r"#ifndef (\w+)|#if defined\((\w+)\)", line):
        taken.append(match[1] not in macros if match[1] else match[2] in macros)
    elif line == "#else" and len(taken) > 1:
        taken[-1] = not taken[-1]
    elif re.fullmatch(r"#endif\s*", line) and len(taken) > 1:
        taken.pop()
    elif match := re.fullmatch(r"#define (\w+)(?: (\S.*))?", line):
        if all(taken):
            macros[match[1]] = match[2] or ""
    elif line != "#include <stdint.h>":
        refuse(at, line)


def refuse(line: int, what: str) -> NoReturn:
    raise NotUnderstood(f"line {line}: no rule for: {' '.join(what.split())[:100]}")


class Header:
    """What a header declares, in its order."""

    def __init__(self, text: str) -> None:
        self.constants: list[tuple[str, int]] = []
        self.structs: list[Struct] = []
        self.functions: list[Function] = []
        self._handles: set[str] = set()
        self._aliases: dict[str, str] = {}
        self._text, macros = preprocess(text)
        self._at = 0
        if not macros.get("EBB_ABI", "").isdigit():
            raise NotUnderstood("EBB_ABI is not defined as a number")
        self.abi = int(macros["EBB_ABI"])
        self._read()
        self._look_for_clashes()

    def _read(self) -> None:
        rules = [
            (ENUM, self._enum),
            (STRUCT, self._struct),
            (HANDLE, self._handle),
            (ALIAS, self._alias),
            (FUNCTION, self._function),
        ]
        while True:
            self._at += len(self._text[self._at :]) - len(self._text[self._at :].lstrip())
            if self._at == len(self._text):
                return
            for pattern, rule in rules:
                if match := pattern.match(self._text, self._at):
                    rule(match)
                    self._at = match.end()
                    break
            else:
                self._refuse(self._text[self._at :])

    def _refuse(self, what: str) -> NoReturn:
        refuse(self._text.count("\n", 0, self._at) + 1, what)

    def _enum(self, match: re.Match[str]) -> None:
        for item in match[1].rstrip().rstrip(",").split(","):
            constant = re.fullmatch(r"EBB_(\w+) = (-?\d+)", item.strip())
            if not constant:
                self._refuse(f"the constant {item}")
            self.constants.append((constant[1], int(constant[2])))

    def _struct(self, match: re.Match[str]) -> None:
        self._check_tag(match[1], match[3])
        fields: list[Field] = []
        for declaration in match[2].strip().rstrip(";").split(";"):
            # A function of the caller's, which no caller of this package has: its address.
            if function := CALLBACK.fullmatch(declaration.strip()):
                fields.append(Field(function[1], "c_void_p"))
            else:
                fields += self._declared(declaration)
        self.structs.append(Struct(match[1], fields))

    def _handle(self, match: re.Match[str]) -> None:
        self._check_tag(match[1], match[2])
        self._handles.add(match[1])

    def _check_tag(self, tag: str, name: str) -> None:
        if tag != name or not name.startswith("ebb_"):
            self._refuse(f"struct {tag} with the name {name}")

    def _alias(self, match: re.Match[str]) -> None:
        if match[1] not in SCALARS:
            self._refuse(match[0])
        self._aliases[match[2]] = SCALARS[match[1]]

    def _function(self, match: re.Match[str]) -> None:
        declared = self._declared(match[1], result=True)
        if len(declared) != 1 or not declared[0].name.startswith("ebb_"):
            self._refuse(match[0])
        arguments: list[str] = []
        if match[2].strip() != "void":
            for argument in match[2].split(","):
                arguments += [one.ctype for one in self._declared(argument)]
        self.functions.append(Function(declared[0].name, declared[0].ctype, arguments))

    def _declared(self, text: str, result: bool = False) -> list[Field]:
        """`const T *a, *b` as its names and their types."""
        match = DECLARATION.fullmatch(text.strip())
        if not match:
            self._refuse(text)
        declared: list[Field] = []
        for item in match[3].split(","):
            one = DECLARATOR.fullmatch(item.strip())
            if not one or not one[2]:
                self._refuse(text)
            ctype = self._ctype(match[2], bool(match[1]), one[1].count("*"), result)
            declared.append(Field(one[2], ctype or self._refuse(text)))
        return declared

    def _ctype(self, base: str, constant: bool, stars: int, result: bool) -> str | None:
        """As ctypes has it; None where this program does not know."""
        if base == "void":
            return pointers("c_void_p", stars - 1) if stars else "None" if result else None
        if base == "char":
            # A text of the caller's. One that a function gives is freed by its address, which
            # c_char_p would lose.
            if constant and stars:
                return pointers("c_char_p", stars - 1)
            return pointers("c_void_p", stars - 1) if stars == 2 else None
        if base in self._handles:
            return pointers("c_void_p", stars - 1) if stars else None
        if any(struct.name == base for struct in self.structs):
            return pointers(class_name(base), stars)
        scalar = SCALARS.get(base) or self._aliases.get(base)
        return pointers(scalar, stars) if scalar else None

    def _look_for_clashes(self) -> None:
        names = [name for name, _ in self.constants]
        names += [class_name(struct.name) for struct in self.structs]
        fields = [field.name for struct in self.structs for field in struct.fields]
        for name in names + fields:
            if names.count(name) > 1 or keyword.iskeyword(name):
                raise NotUnderstood(f"in Python {name} would mean two things")


def pointers(ctype: str, stars: int) -> str:
    return "POINTER(" * stars + ctype + ")" * stars


def class_name(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_")[1:])


def python(header: Header) -> str:
    """The module that says so."""
    body: list[str] = [f"ABI = {header.abi}", ""]
    body += [f"{name} = {value}" for name, value in header.constants]
    for struct in header.structs:
        body += ["", "", f"class {class_name(struct.name)}(Structure):", "    _fields_ = ["]
        body += [f'        ("{field.name}", {field.ctype}),' for field in struct.fields]
        body += ["    ]"]
    body += ["", "", "# What each answers, and what it takes."]
    body += ["FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {"]
    for function in header.functions:
        entry = f'"{function.name}": ({function.result}, [{", ".join(function.arguments)}]),'
        indent = " " * 4
        body += textwrap.wrap(entry, 100, initial_indent=indent, subsequent_indent=indent * 2)
    body += ["}", ""]
    text = "\n".join(body)
    used = sorted(set(re.findall(r"\b(?:c_\w+|POINTER|Structure)\b", text)))
    return "\n".join(
        [
            '"""ebb.h for ctypes. Generated by bindings/c/generate_abi.py: change it there."""',
            "",
            "from __future__ import annotations",
            "",
            "from ctypes import (",
            *[f"    {name}," for name in used],
            ")",
            "from typing import Any",
            "",
            text,
        ]
    )


def check(output: Path, wanted: str) -> int:
    found = output.read_text() if output.exists() else ""
    if found == wanted:
        return 0
    difference = difflib.unified_diff(
        found.splitlines(), wanted.splitlines(), str(output), "what ebb.h says", lineterm="", n=1
    )
    print("\n".join(difference))
    print(f"{output} is not what ebb.h says; type: python3 bindings/c/generate_abi.py")
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes _abi.py, what ctypes must know of ebb.h.")
    parser.add_argument("--header", type=Path, default=HERE / "ebb.h")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if it differs")
    arguments = parser.parse_args()
    try:
        wanted = python(Header(whole(arguments.header, set())))
    except NotUnderstood as why:
        print(f"{arguments.header}: {why}", file=sys.stderr)
        print("give bindings/c/generate_abi.py a rule for it", file=sys.stderr)
        return 2
    if arguments.check:
        return check(arguments.output, wanted)
    arguments.output.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
