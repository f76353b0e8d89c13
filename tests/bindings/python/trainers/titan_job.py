"""torchtitan's own llama3 debug model, its fully_shard, its containers of optimizers and schedules
and its DCP checkpoints, in a loop as its Trainer's (which itself needs a GPU).

titan_job.py KIND FIRST LAST FOLDER SWAP: KIND is "ebb", or "torch": torch.optim's Muon and AdamW in
the base class. Goes on at FIRST from the checkpoint in FOLDER, saves there at LAST."""
import json
import os
import sys
import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F
import torchtitan.tools.utils
from torch.distributed.fsdp import FSDPModule

torchtitan.tools.utils.device_type = "cpu"  # it says "cuda" where there is no accelerator
from torchtitan.components.checkpointer.dcp import CheckpointManager
from torchtitan.components.optimizer import LRSchedulersContainer, ParamGroupConfig
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.utils import clip_grad_norm_
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import model_registry
from torchtitan.models.llama3.sharding import set_llama3_sharding_config

from torch_muon import TorchMuon

WORDS, LONG, BATCH, STEPS = 2048, 32, 6, 12


class Counted:
    """The trainer's own state, which torchtitan stores beside the others."""
    def __init__(self):
        self.step = 0

    def state_dict(self):
        return {"step": torch.tensor(self.step)}

    def load_state_dict(self, state_dict):
        self.step = int(state_dict["step"])


def batch(step: int, rank: int, world: int):
    made = torch.Generator().manual_seed(1000 + step)
    x = torch.cumsum(torch.randint(0, 7, (BATCH, LONG), generator=made), 1) % WORDS
    x = x[rank::world]
    return x, torch.roll(x, -1, 1)


def groups() -> list[ParamGroupConfig]:
    return [
        ParamGroupConfig(pattern=r"layers\..*(attention|feed_forward)\..*weight$",
                         optimizer_name="Muon",
                         optimizer_kwargs=dict(lr=0.02, weight_decay=0.1)),
        ParamGroupConfig(pattern=".*", optimizer_name="AdamW",
                         optimizer_kwargs=dict(lr=3e-3, weight_decay=0.01, betas=(0.9, 0.95))),
    ]


def main() -> None:
    kind, first, last, folder, swap = sys.argv[1], *map(int, sys.argv[2:4]), *sys.argv[4:6]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    parallelism = ParallelismConfig(spmd_backend=os.environ.get("SPMD", "partial_dtensor"))
    dims = ParallelDims.from_config(parallelism, world)
    dims.build_mesh()
    spec = model_registry("debugmodel")
    spec.model.layers = spec.model.layers[:2]
    for layer in spec.model.layers:  # FlexAttention has no gradients on CPUs
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    set_llama3_sharding_config(spec.model, enable_sp=parallelism.enable_sequence_parallel)
    torch.manual_seed(0)
    model = spec.model.build()
    model.init_states()
    training = TrainingConfig(mixed_precision_param="float32", mixed_precision_reduce="float32")
    model = spec.parallelize_fn(
        model, parallel_dims=dims, training=training, parallelism=parallelism,
        compile_config=CompileConfig(), ac_config=None, dump_folder="")
    for module in model.modules():
        if isinstance(module, FSDPModule):  # gloo can sum and no more
            module.set_force_sum_reduction_for_comms(True)
    if kind == "ebb":
        import ebb.torch.titan
        config = ebb.torch.titan.Optimizers.Config(
            param_groups=groups(), swap=swap, budget="least", options=dict(threads=1))
    else:
        config = TorchMuon.Config(param_groups=groups(), implementation="for-loop")
    optimizers = config.build(model_parts=[model])
    schedules = LRSchedulersContainer.Config(warmup_steps=3).build(
        optimizers=optimizers, training_steps=STEPS)
    counted = Counted()
    saved = CheckpointManager.Config(
        enable=True, folder=folder, interval=6, keep_latest_k=0,
                                     last_save_model_only=False)
    manager = saved.build(
        dataloader=None, model_parts=[model], optimizers=optimizers, lr_schedulers=schedules,
        states={"train_state": counted}, sd_adapter=None)
    if first:
        assert manager.load(first), "no checkpoint found"
        assert counted.step == first, counted.step
    losses = []
    while counted.step < last:
        x, y = batch(counted.step, rank, world)
        optimizers.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, 1).float(), y.flatten()) / world
        loss.backward()  # torchtitan's gradients are sums over ranks
        clip_grad_norm_([p for p in model.parameters()], 1.0)
        optimizers.step()
        schedules.step()
        counted.step += 1
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item())
        manager.save(counted.step)
    if rank == 0:
        print("RESULT", json.dumps({"losses": losses, "keys": sorted(
            {key.rpartition(".")[2] for key in optimizers.state_dict()}) if world == 1 else []}))
    if kind == "ebb":
        steps = optimizers.optimizers[0].steps
        assert steps == last, f"the engine counts {steps} steps"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            optimizers.close()
    manager.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
