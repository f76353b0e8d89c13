"""Lightning's Trainer, unchanged, on 2 gloo ranks; it starts the second one itself.

lightning_job.py STRATEGY LAST FOLDER SWAP [WIDE]: trains to step LAST, or goes on from FOLDER's
checkpoint where there is one, and saves at the end. STRATEGY: "fsdp2" (ModelParallelStrategy) or
"ddp"; "torch": torch.optim instead, by hand, both ranks' batches in one process. WIDE: of the
model's layers, for the memory that a save takes."""
import json
import sys
import threading
import time
import warnings
from pathlib import Path

import lightning
import torch
import torch.nn.functional as F
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch.distributed.fsdp import fully_shard

import ebb.torch

strategy, last, folder, swap = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
wide = int(sys.argv[5]) if len(sys.argv) > 5 else 48
warnings.filterwarnings("ignore")
ADAMW = dict(lr=1e-3, weight_decay=0.01)


class Net(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(wide, wide) for _ in range(3))
        self.head = torch.nn.Linear(wide, 10)
        self.losses: list[float] = []

    def configure_model(self) -> None:
        if strategy == "fsdp2" and not hasattr(self.head.weight, "placements"):
            mesh = self.device_mesh["data_parallel"]
            for layer in [*self.layers, self.head]:
                fully_shard(layer, mesh=mesh)

    def training_step(self, *_) -> torch.Tensor:
        # By the step, since Lightning begins a loader anew where a run goes on within an epoch.
        loss = self.loss(self.trainer.global_step, self.global_rank)
        self.losses.append(loss.item())
        return loss

    def loss(self, step: int, rank: int) -> torch.Tensor:
        made = torch.Generator().manual_seed(100 * step + rank)
        x = torch.randn(8, wide, generator=made)
        y = (x[:, :10] + x[:, 10:20]).argmax(1)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return F.cross_entropy(self.head(x), y)

    def configure_optimizers(self):
        groups = ebb.torch.groups(self, muon=dict(lr=0.01), adamw=ADAMW)
        # A wide model is for the memory of a save: of as much state as there can be.
        optimizer = ebb.torch.Muon(
            groups, swap=swap, budget="least", threads=1, tile="256KiB", resume="discard",
            masters="engine" if wide > 48 else "auto")
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 5))
        return {"optimizer": optimizer,
                "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Memory(threading.Thread):
    """The most anonymous memory of this process while it runs, in MiB."""
    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self.going = self.now(), True

    @staticmethod
    def now() -> float:
        line = next(x for x in open("/proc/self/status") if x.startswith("RssAnon"))
        return int(line.split()[1]) / 1024

    def run(self) -> None:
        while self.going:
            self.most = max(self.most, self.now())
            time.sleep(0.002)


def by_hand() -> list[float]:
    """Rank 0's losses."""
    model = Net()
    matrices = [(n, p) for n, p in model.named_parameters() if p.ndim == 2]
    vectors = [(n, p) for n, p in model.named_parameters() if p.ndim < 2]
    both = [torch.optim.Muon(matrices, lr=0.01), torch.optim.AdamW(vectors, **ADAMW)]
    for step in range(last):
        for optimizer, lr in zip(both, (0.01, 1e-3)):
            optimizer.param_groups[0]["lr"] = lr * min(1, (step + 1) / 5)
        losses = [model.loss(step, rank) for rank in (0, 1)]
        (sum(losses) / 2).backward()
        for optimizer in both:
            optimizer.step()
            optimizer.zero_grad()
        model.losses.append(losses[0].item())
    return model.losses


def main() -> None:
    torch.set_num_threads(1)
    if strategy == "torch":
        print("RESULT", json.dumps({"losses": by_hand()}))
        return
    kind = DDPStrategy()
    if strategy == "fsdp2":  # without sizes Lightning means tensor parallelism by all ranks
        kind = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
    trainer = lightning.Trainer(
        max_steps=last, accelerator="cpu", devices=2, strategy=kind, logger=False,
        enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False,
        gradient_clip_val=None, default_root_dir=folder)
    model = Net()
    checkpoint = folder / "last.ckpt"
    begin = checkpoint if checkpoint.exists() else None
    trainer.fit(model, torch.utils.data.DataLoader(range(64)), ckpt_path=begin)
    optimizer = trainer.optimizers[0]
    began, memory = Memory.now(), Memory()
    memory.start()
    trainer.save_checkpoint(checkpoint)
    memory.going = False
    memory.join()
    plan = optimizer.plan()
    if trainer.global_rank == 0:
        print("RESULT", json.dumps({
            "losses": model.losses, "counted": optimizer.steps, "step": trainer.global_step,
            "kind": type(model.head.weight).__name__, "grew_mib": memory.most - began,
            "state_mib": plan.state / 2**20, "budget_mib": plan.memory / 2**20}))
    optimizer.close()


if __name__ == "__main__":
    main()
