#!/usr/bin/env python3
"""Acceptance judge: does h5py read from our HDF5 files, bit for bit, what the source held?

  judge_hdf5.py FILE.h5 EXPECTED_JSON   every tensor of expected.json, by parameter and state; the step
A dataset is found at /state/<parameter>/<state>, at its key, or by its attributes "name" and "state".
Bytes are read through the library in the file's own type, virtual datasets included.
Exit 0 and one line with counts when all match; exit 1 and one line per difference otherwise.
"""
import hashlib, json, sys
import h5py
import hdf5plugin  # registers the zstd filter
import numpy as np


def raw(dataset):
    kind = dataset.id.get_type()
    if dataset.size == 0:
        return b""
    into = np.empty(dataset.shape, dtype=f"V{kind.get_size()}")
    dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, into, kind)
    return into.tobytes()


def main():
    file, expected = sys.argv[1:3]
    expected = json.load(open(expected))
    diffs, tensors, seen = [], 0, set()
    with h5py.File(file) as f:
        found = {}

        def visit(path, item):
            if isinstance(item, h5py.Dataset) and "dtype" in item.attrs:
                parts = path.split("/")
                name = item.attrs.get("name", "/".join(parts[1:-1]))
                found[(name, item.attrs.get("state", parts[-1]))] = item
                found.setdefault(("/" + path, None), item)

        f.visititems(visit)
        for t in expected["tensors"]:
            item = found.get((t["name"], t["state"]))
            if item is None and t["state"] == "tensor":  # nothing but tensors: taken for a model
                item = found.get((t["name"], "param"))
            if item is None and t["key"] is not None:
                item = found.get((t["key"], None)) or found.get((t["key"], t["state"]))
            if item is None and t["name"] == t["key"] and ".state." in t["key"]:  # flattened by the optimizer
                item = found.get(tuple(t["key"].split(".state.", 1)[1].rsplit(".", 1)))
            if item is None:
                if "derived" not in t:
                    diffs.append(f"{t['name']} ({t['state']}): missing")
                continue
            seen.add(item.name)
            got = {"dtype": item.attrs["dtype"], "shape": list(item.shape), "sha256": hashlib.sha256(raw(item)).hexdigest()}
            wrong = [k for k in got if got[k] != t[k]]
            if wrong:
                diffs.append(f"{item.name}: {wrong[0]} is {got[wrong[0]]}, expected {t[wrong[0]]}")
            tensors += not wrong
        extra = {i.name for i in found.values()} - seen
        diffs += [f"{name}: not expected" for name in sorted(extra)]
        step = expected.get("values", {}).get("step")
        if isinstance(step, int) and f.attrs.get("step") != step:
            diffs.append(f"step is {f.attrs.get('step')!r}, expected {step}")
    for line in diffs:
        print("DIFF", line)
    if not diffs:
        print(f"OK {tensors} tensors read by h5py {h5py.__version__}, HDF5 {h5py.version.hdf5_version}")
    sys.exit(1 if diffs else 0)


if __name__ == "__main__":
    main()
