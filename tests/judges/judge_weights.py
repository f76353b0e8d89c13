#!/usr/bin/env python3
"""Acceptance judge: does a torch model take the weights that `ckpt-convert --weights` wrote?

  judge_weights.py FOLDER EXPECTED_JSON     FOLDER holds safetensors (one file, or several and an index) or checkpoint.pt
A module is built with the parameters, buffers and ties that the framework itself noted in expected.json, filled with
something else, and loaded with strict=True; then every tensor is compared with what was noted, the most exact copy of each.
Exit 0 and one line with counts, or exit 1 and one line per difference.
"""
import glob, hashlib, json, os, sys
import torch
from safetensors.torch import load_file

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
          "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool}
RANK = {"buffer": 0, "param": 1, "tensor": 1, "master": 2}


def raw(t):
    t = t.detach().contiguous()
    return b"" if t.numel() == 0 else t.reshape(-1).view(torch.uint8).numpy().tobytes()


def weights_in(expected):
    """{name: entry} of the most exact copy; names of a torch.save file without the key that leads to its model."""
    best = {}
    for entry in expected["tensors"]:
        name, state = entry["name"], entry["state"]
        if expected["format"] == "torch-save":
            if not name.startswith("model."):
                continue
            name = name[len("model."):]
        if expected["format"] == "megatron-fsdp" and name.startswith("module."):
            name = name[len("module."):]
        if state not in RANK or (state == "tensor" and expected["format"] != "torch-save"):
            continue
        if name not in best or RANK[state] > RANK[best[name]["state"]]:
            best[name] = entry
    return best


def module_of(best, tied):
    root = torch.nn.Module()
    def place(path):
        at = root
        for part in path:
            if part not in at._modules:
                at.add_module(part, torch.nn.Module())
            at = at._modules[part]
        return at
    for name, entry in best.items():
        *path, last = name.split(".")
        value = torch.full(entry["shape"], 7).to(DTYPES[entry["dtype"]])
        if entry["state"] == "buffer" or not value.is_floating_point():
            place(path).register_buffer(last, value)
        else:
            place(path).register_parameter(last, torch.nn.Parameter(value))
    for alias, owner in tied.items():
        *path, last = alias.split(".")
        place(path).register_parameter(last, root.get_parameter(owner))
    return root


def load(folder):
    file = os.path.join(folder, "checkpoint.pt")
    if os.path.exists(file):
        return torch.load(file, map_location="cpu", weights_only=True)
    index = os.path.join(folder, "model.safetensors.index.json")
    files = sorted(glob.glob(os.path.join(folder, "*.safetensors")))
    if os.path.exists(index):
        files = [os.path.join(folder, f) for f in sorted(set(json.load(open(index))["weight_map"].values()))]
    out = {}
    for one in files:
        out.update(load_file(one))
    return out


def main():
    folder, expected = sys.argv[1], json.load(open(sys.argv[2]))
    best = weights_in(expected)
    values = expected.get("values", {})
    tied = {a: o for a, o in (values.get("tied") or {}).items() if o in best and a not in best}
    model = module_of(best, tied)
    found = []
    try:
        model.load_state_dict(load(folder), strict=True)
    except RuntimeError as error:
        found.append(str(error))
    state = model.state_dict()
    for name, entry in [] if found else best.items():
        if hashlib.sha256(raw(state[name])).hexdigest() != entry["sha256"]:
            found.append(f"{name}: not the {entry['state']} that {expected['format']} noted")
    for line in found:
        print("DIFF", line)
    if not found:
        print(f"OK strict: {len(best)} parameters and buffers, {len(tied)} tied, bit for bit")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
