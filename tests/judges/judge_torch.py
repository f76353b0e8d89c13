#!/usr/bin/env python3
"""Acceptance judge: is a torch.save file of ours what torch's own dcp_to_torch_save makes of the same checkpoint?

  judge_torch.py FILE.pt DCP_DIR     the same nesting, types, values and bytes, leaf by leaf
Exit 0 and one line with counts when all match; exit 1 and one line per difference otherwise.
Dict keys are compared as sets. Never point this at a checkpoint from elsewhere: torch unpickles DCP's values.
"""
import math, os, sys, tempfile, warnings
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

warnings.filterwarnings("ignore")


def raw(t):
    t = t.detach().contiguous()
    if t.dtype.is_complex:
        t = torch.view_as_real(t).contiguous()
    return b"" if t.numel() == 0 else t.reshape(-1).view(torch.uint8).numpy().tobytes()


def differences(ours, theirs, at, count):
    if isinstance(theirs, torch.Tensor):
        if not isinstance(ours, torch.Tensor):
            return [f"{at}: {type(ours).__name__}, not a tensor"]
        count["tensors"] += 1
        same = ours.dtype == theirs.dtype and ours.shape == theirs.shape and raw(ours) == raw(theirs)
        return [] if same else [f"{at}: {ours.dtype} {tuple(ours.shape)} differs from {theirs.dtype} {tuple(theirs.shape)}"]
    if type(ours) is not type(theirs):
        return [f"{at}: {type(ours).__name__}, torch has {type(theirs).__name__}"]
    if isinstance(theirs, dict):
        if at.endswith(".state") and ours and all(type(k) is int for k in ours):
            # torch leaves words for an optimizer's numbers, under which torch.optim finds no states.
            theirs = {int(k) if isinstance(k, str) and k.isdecimal() else k: v for k, v in theirs.items()}
        if ours.keys() != theirs.keys():
            return [f"{at}: keys {sorted(map(repr, ours.keys() ^ theirs.keys()))} are on one side only"]
        return [d for k in theirs for d in differences(ours[k], theirs[k], f"{at}.{k}", count)]
    if isinstance(theirs, (list, tuple)) and not isinstance(theirs, torch.Size):
        if len(ours) != len(theirs):
            return [f"{at}: {len(ours)} items, torch has {len(theirs)}"]
        return [d for i, (a, b) in enumerate(zip(ours, theirs)) for d in differences(a, b, f"{at}.{i}", count)]
    count["values"] += 1
    both_nan = isinstance(theirs, float) and math.isnan(theirs) and math.isnan(ours)
    return [] if both_nan or ours == theirs else [f"{at}: {ours!r}, torch has {theirs!r}"]


def main():
    file, folder = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as work:
        reference = os.path.join(work, "reference.pt")
        dcp_to_torch_save(folder, reference)
        theirs = torch.load(reference, map_location="cpu", weights_only=False)
    ours = torch.load(file, map_location="cpu", weights_only=True)
    count = {"tensors": 0, "values": 0}
    found = differences(ours, theirs, "", count)
    for line in found:
        print("DIFF", line)
    if not found:
        print(f"OK {count['tensors']} tensors, {count['values']} values, nested as dcp_to_torch_save nests them")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
