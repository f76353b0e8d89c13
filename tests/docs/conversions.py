"""conversions.py BIN [--check]: the table of docs/conversions.md, by converting a checkpoint of each
framework into every format that is written, and comparing. BIN is a build's folder of programs."""
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from blocks import TREE
from generated import put, table

NAME = "tests/docs/conversions.py"
FIXTURES = TREE / "tests/fixtures"

# Label: a fixture that its framework wrote.
SOURCES = {
    "DCP, FSDP2": "dcp/fsdp2_w2_odd_rows_tied",
    "DCP, torchtitan": "dcp/layout_titan",
    "DeepSpeed ZeRO-1": "deepspeed/z1_muon_groups_w2",
    "DeepSpeed ZeRO-2": "deepspeed/z2_muon_bf16_w2",
    "DeepSpeed ZeRO-3": "deepspeed/z3_muon_bf16_w4",
    "DeepSpeed, pipeline": "deepspeed/pp_z1_bf16_w4",
    "DeepSpeed, AutoTP": "deepspeed/autotp_z1_bf16_w4",
    "DeepSpeed, MoE": "deepspeed/moe_z1_bf16_w2",
    "DeepSpeed universal": "deepspeed/universal_z1_adamw",
    "universal of a pipeline": "deepspeed/universal_pipeline",
    "Megatron torch_dist": "megatron/muon_distopt_tp2_dp2",
    "Megatron-FSDP": "megatron/fsdp_uneven_w3_muon",
    "Megatron, files of ranks": "megatron_torch/muon_tp2_dp2",
    "torch.save": "torch/muon_adamw_state",
    "torch_checkpointing": "torch_checkpointing/trained_w3",
    "transformers' Trainer": "folders/trainer",
    "accelerate, FSDP2": "folders/fsdp_sharded",
    "accelerate, save_state": "folders/accelerate",
    "Lightning": "folders/lightning",
    "OLMo-core": "folders/olmo",
    "NeMo AutoModel": "folders/automodel",
    "prime-rl": "folders/prime_rl",
    "nanochat, 2 ranks": "folders/nanochat_w2",
    "torchao, 8-bit states": "quantized/dcp_w2",
    "bitsandbytes, 8-bit states": "quantized/bnb_nested_dcp",
    "Ebb's store": "ebb/hsdp_2x2",
}
TARGETS = ["dcp", "deepspeed", "deepspeed-universal", "megatron", "megatron-fsdp", "torch",
           "torch-checkpointing", "transformers", "accelerate-fsdp", "safetensors", "hdf5", "ebb"]

# Where ./dev judge or ./dev judge trainers has the target's own framework load such a conversion:
# tests/judges/run and the scripts that it sources, judge_folders.py, judge_titan.py.
DEEPSPEED = ["DeepSpeed ZeRO-1", "DeepSpeed ZeRO-2", "DeepSpeed ZeRO-3"]
JUDGED = {
    "dcp": ["DCP, FSDP2", "DCP, torchtitan", "Megatron torch_dist", "Megatron-FSDP"],
    "deepspeed": [*DEEPSPEED, "DeepSpeed universal"],
    "deepspeed-universal": DEEPSPEED,
    "megatron": ["Megatron torch_dist", "Megatron-FSDP", *DEEPSPEED, "DCP, FSDP2"],
    "megatron-fsdp": ["Megatron torch_dist", "Megatron-FSDP", *DEEPSPEED, "DCP, FSDP2"],
    "torch": ["DCP, FSDP2", "DCP, torchtitan", "torch.save", "transformers' Trainer"],
    "torch-checkpointing": ["DCP, FSDP2", "torch_checkpointing"],
    "transformers": ["transformers' Trainer", "accelerate, FSDP2", "DeepSpeed ZeRO-1"],
    "accelerate-fsdp": ["transformers' Trainer", "accelerate, FSDP2"],
    "safetensors": ["DCP, FSDP2", "DCP, torchtitan"],
    "hdf5": ["DCP, FSDP2", "DCP, torchtitan"],
    "ebb": [],
}


class Tools:
    def __init__(self, bin_folder):
        self.bin = Path(bin_folder).resolve()

    def run(self, tool, *words):
        environment = {**os.environ, "LC_ALL": "C.UTF-8"}
        done = subprocess.run([self.bin / tool, *words, "--json"], env=environment, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True)  # fmt: skip
        return done.returncode, json.loads(done.stdout)


def names_file(tools, source, folder):
    """The optimizer's order: what the Trainer's job writes, else the order of the source's groups."""
    own = FIXTURES / source / "names"
    if own.exists():
        return own
    groups = tools.run("ckpt-inspect", FIXTURES / source / "data", "--groups")[1].get("groups", [])
    made = Path(folder, source.replace("/", "-") + ".names")
    made.write_text("\n\n".join("\n".join(group["params"]) for group in groups))
    return made


def converted(tools, source, target, out, names):
    """The flags beyond --to that it takes, or None."""
    for flags in ([], ["--drop"], ["--names", names], ["--names", names, "--drop"]):
        words = [FIXTURES / source / "data", out, "--to", target, *flags]
        if tools.run("ckpt-convert", *words)[0] == 0:
            return {str(flag) for flag in flags} & {"--drop", "--names"}
    return None


def cell(tools, label, target, folder, names):
    source = SOURCES[label]
    out = Path(folder, f"{source.replace('/', '-')}-to-{target}")
    flags = converted(tools, source, target, out, names)
    if flags is None:
        return "-"
    reference = FIXTURES / source / "data"
    if "--names" in flags:  # what were numbers has names in both
        reference = Path(folder, out.name + ".named")
        words = [FIXTURES / source / "data", reference, "--to", "safetensors", "--names", names]
        if tools.run("ckpt-convert", *words)[0] != 0:
            reference = FIXTURES / source / "data"
    differs = tools.run("ckpt-inspect", reference, "--diff", out)[1]["tensors"]
    states = {side["state"] for one in differs for side in (one["left"],) if side}
    letters = "" if states & {"param", "master"} else "W"
    letters += "" if states - {"param", "master", "tensor"} else "S"
    resumes = tools.run("ckpt-inspect", out, "--explain-resume", "1")[1]
    letters += "R" if resumes.get("resumable") else ""
    text = f"**{letters}**" if label in JUDGED[target] else letters
    return text + "".join({"--drop": " d", "--names": " n"}[flag] for flag in sorted(flags))


def main(bin_folder, check):
    tools, rows = Tools(bin_folder), []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        for label in SOURCES:
            names = names_file(tools, SOURCES[label], folder)  # once: two cells at a time read it
            cells = pool.map(lambda target: cell(tools, label, target, folder, names), TARGETS)  # noqa: B023
            rows.append([label, *cells])
    head = ["from \\ to", *(f"`{target}`" for target in TARGETS)]
    return 0 if put("docs/conversions.md", NAME, table(head, rows), check) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], "--check" in sys.argv[2:]))
