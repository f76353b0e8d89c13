"""Without Ebb: an optimizer.pt of transformers' Trainer goes on under torch.optim, by hand.

load_in_torch.py CHECKPOINT"""
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from hf_job import SAVED, by_hand, make_model

torch.set_num_threads(1)
folder = Path(sys.argv[1])
model = make_model()
missing, unknown = model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
assert missing == ["lm_head.weight"] and not unknown, (missing, unknown)  # tied
saved = torch.load(folder / "optimizer.pt", weights_only=True)
params, optimizers = dict(model.named_parameters()), []
for group in saved["param_groups"]:
    named = [(name, params[name]) for name in group["param_names"]]
    kind = {"muon": torch.optim.Muon, "adamw": torch.optim.AdamW}[group["algorithm"]]
    optimizer = kind(named, weight_decay=group["weight_decay"], lr=group["initial_lr"])
    mine = optimizer.state_dict()
    mine["state"] = {i: saved["state"][number] for i, number in enumerate(group["params"])}
    optimizer.load_state_dict(mine)
    optimizers.append(optimizer)
losses = by_hand(model, optimizers, SAVED)
assert not [name for name in sys.modules if name.split(".")[0] == "ebb"]
print("RESULT", json.dumps({"losses": losses}))
