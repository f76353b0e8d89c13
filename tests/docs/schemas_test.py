"""schemas_test.py BIN: what the tools print with --json is what docs/schemas says, of every mode and
every kind of fixture; a field that no schema has is an error, too.
"""
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from blocks import TREE

SCHEMAS = {path.stem: json.loads(path.read_text())
           for path in sorted((TREE / "docs/schemas").glob("*.json"))}
FIXTURES = TREE / "tests/fixtures"
TYPES = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None),
         "array": list, "object": dict}
MODES = {"summary": [], "shards": ["--shards"], "groups": ["--groups"], "verify": ["--verify"],
         "stats": ["--stats"], "explain-resume": ["--explain-resume", "3"], "raw": ["--raw"],
         "diff": ["--diff", "dcp/hsdp_2x2/data"], "tensors": ["--tensors", "--digest"]}


def is_a(value, name):
    return isinstance(value, TYPES[name]) and not (
        isinstance(value, bool) and name in ("integer", "number"))


def faults(value, schema, root, at="$"):
    """Of the words that docs/schemas uses, all; fields that `schema` does not have are faults."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    if "const" in schema and value != schema["const"]:
        return [f"{at} is {value!r}, not {schema['const']!r}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{at} is {value!r}, none of {schema['enum']}"]
    for word in ("oneOf", "anyOf"):
        if word in schema:
            tried = [faults(value, one, root, at) for one in schema[word]]
            return [] if [] in tried else min(tried, key=len)
    names = schema.get("type", [])
    names = [names] if isinstance(names, str) else names
    if names and not any(is_a(value, name) for name in names):
        return [f"{at} is {value!r}, no {' or '.join(names)}"]
    if isinstance(value, list) and "items" in schema:
        return [fault for i, one in enumerate(value)
                for fault in faults(one, schema["items"], root, f"{at}[{i}]")]
    if not isinstance(value, dict) or "object" not in names:
        return []
    known = schema.get("properties", {})
    found = [f"{at}.{name} is missing" for name in schema.get("required", []) if name not in value]
    for name, one in value.items():
        if name in known:
            found += faults(one, known[name], root, f"{at}.{name}")
        elif "additionalProperties" in schema:
            found += faults(one, schema["additionalProperties"], root, f"{at}.{name}")
        else:
            found.append(f"{at}.{name} is in no schema")
    return found


def schema_of(document):
    return document.get("schema", "ckpt.tensors/1").replace("/", "-")


class Checked:
    def __init__(self, bin_folder):
        self.bin, self.seen, self.wrong = Path(bin_folder).resolve(), Counter(), []

    def document(self, text, command):
        document = json.loads(text)
        name = schema_of(document)
        self.seen[name, document.get("mode")] += 1
        schema = SCHEMAS.get(name)
        wrong = faults(document, schema, schema) if schema else [f"no schema {name}"]
        self.wrong += [f"{' '.join(command)}: {fault}" for fault in wrong]

    def run(self, *command):
        said = subprocess.run([self.bin / command[0], *command[1:], "--json"], cwd=FIXTURES,
                              text=True, capture_output=True, timeout=120)
        self.document(said.stdout, command)
        for line in said.stderr.splitlines():
            if line.startswith('{"schema"'):
                self.document(line, command)


def main():
    checked = Checked(sys.argv[1])
    fixtures = sorted(str(path.relative_to(FIXTURES)) for path in FIXTURES.glob("*/*/data"))
    for number, fixture in enumerate(fixtures):
        for i, flags in enumerate(MODES.values()):
            if (number + i) % 3 == 0:
                checked.run("ckpt-inspect", fixture, *flags)
    with tempfile.TemporaryDirectory() as scratch:
        source = "dcp/hsdp_2x2/data"
        checked.run("ckpt-inspect", source, "--map", f"{scratch}/map.html")
        checked.run("ckpt-inspect", source, "--stats", "--picture", f"{scratch}/stats.html")
        checked.run("ckpt-inspect", source, "-k", "*.weight")
        checked.run("ckpt-inspect", "no such folder")
        checked.run("ckpt-convert", source, f"{scratch}/a", "--to", "dcp")
        checked.run("ckpt-convert", source, f"{scratch}/b", "--to", "dcp", "--compress", "zstd", "-n")
        checked.run("ckpt-convert", source, f"{scratch}/b", "--to", "dcp", "-w", "2", "-n", "--plan",
                    f"{scratch}/plan.html")
        checked.run("ckpt-convert", source, f"{scratch}/c", "--to", "hdf5", "--compress", "zstd")
        checked.run("swap-bench", scratch, "--size", "32MiB", "--seconds", "1", "--state", "1GiB",
                    "--picture", f"{scratch}/rates.html")
    for fault in checked.wrong[:40]:
        print(fault)
    wanted = {(name, mode) for name in SCHEMAS for mode in [None]} - {("ckpt.inspect-1", None)}
    wanted |= {("ckpt.inspect-1", mode) for mode in [*MODES, "map"] if mode != "tensors"}
    unseen = wanted - set(checked.seen)
    for name, mode in sorted(unseen, key=str):
        print(f"no document of {name} {mode or ''} was seen")
    print(f"{sum(checked.seen.values())} documents, {len(checked.wrong)} faults")
    return 1 if checked.wrong or unseen else 0


if __name__ == "__main__":
    sys.exit(main())
