"""transformers' Trainer, unchanged, on a small GPT-2: gradients accumulated, warm-up, clipping,
loader workers.

hf_job.py FOLDER SWAP [WORD...]: trains 40 steps, or goes on from the last checkpoint in FOLDER.
  die: the process is gone at step 23.  save: at step 20.
  alone: without the callback; rank 0 alone asks for a state at step 5, which must fail and harm
    nothing.
  best: saves what an evaluation found best.  epoch: saves at the end of each epoch.
  torch: torch.optim instead, by hand: no Trainer, the same batches."""
import json
import os
import sys
import time
import warnings
from pathlib import Path

import torch
from transformers import (GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments,
                          get_linear_schedule_with_warmup)

STEPS, SAVED, DIES, BATCH, ADDED_UP = 40, 20, 23, 8, 2
MUON, ADAMW = dict(lr=0.01, weight_decay=0.1), dict(lr=1e-3, weight_decay=0.01)
WORLD = int(os.environ.get("WORLD_SIZE", "1"))


class Texts(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 48 if "epoch" in sys.argv else BATCH * ADDED_UP * STEPS

    def __getitem__(self, i: int) -> dict:
        made = torch.Generator().manual_seed(i)
        text = torch.cumsum(torch.randint(0, 5, (32,), generator=made), 0) % 96
        labels = text.clone()
        labels[0] = -100  # nothing foretells it; Trainer would count it all the same
        return dict(input_ids=text, labels=labels)


def make_model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    dropout = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=64, vocab_size=128,
                                      n_positions=32, **dropout))


def torch_optimizers(model) -> list[torch.optim.Optimizer]:
    muon = [(n, p) for n, p in model.named_parameters() if p.ndim == 2 and ".h." in n]
    taken = {id(p) for _, p in muon}
    rest = [(n, p) for n, p in model.named_parameters() if id(p) not in taken]
    return [torch.optim.Muon(muon, **MUON), torch.optim.AdamW(rest, **ADAMW)]


def by_hand(model, optimizers, first: int) -> list[float]:
    """What Trainer does, with nothing of it: the batches are in order."""
    schedules = [get_linear_schedule_with_warmup(o, 5, STEPS) for o in optimizers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(first):
            for schedule in schedules:
                schedule.step()
    data, losses = Texts(), []
    model.train()
    for step in range(first, STEPS):
        of_step = 0.0
        for part in range(ADDED_UP):
            begin = (step * ADDED_UP + part) * BATCH
            texts = torch.stack([data[i]["input_ids"] for i in range(begin, begin + BATCH)])
            labels = torch.stack([data[i]["labels"] for i in range(begin, begin + BATCH)])
            loss = model(input_ids=texts, labels=labels).loss / ADDED_UP
            loss.backward()
            of_step += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for one in [*optimizers, *schedules]:
            one.step()
        model.zero_grad()
        losses.append(of_step)
    return losses


class Steps(TrainerCallback):
    """The row's own part of the run."""
    def __init__(self) -> None:
        self.refused = ""

    def on_step_end(self, args, state, control, optimizer=None, **_):
        if "die" in sys.argv and state.global_step == DIES:
            os._exit(0)
        if "alone" in sys.argv and state.global_step == 5 and args.process_index == 0:
            began = time.monotonic()
            try:
                optimizer.state_dict()
            except RuntimeError as error:
                took = time.monotonic() - began
                self.refused = f"{type(error).__name__} in {took:.3f} s: {error}"
                self.refused += " ".join(getattr(error, "__notes__", []))


def main() -> None:
    torch.set_num_threads(1)
    folder, swap = sys.argv[1:3]
    model = make_model()
    if "torch" in sys.argv:
        print("RESULT", json.dumps({"losses": by_hand(model, torch_optimizers(model), 0)}))
        return
    import ebb.torch.hf
    how = dict(save_strategy="no")
    if "save" in sys.argv:
        how = dict(save_strategy="steps", save_steps=SAVED)
    elif "best" in sys.argv:
        how = dict(save_strategy="best", metric_for_best_model="loss", eval_strategy="steps",
                   eval_steps=SAVED)
    elif "epoch" in sys.argv:
        how = dict(save_strategy="epoch", num_train_epochs=2)
    args = TrainingArguments(
        output_dir=folder, max_steps=-1 if "epoch" in sys.argv else STEPS, logging_steps=1,
        per_device_train_batch_size=BATCH // WORLD, gradient_accumulation_steps=ADDED_UP,
        warmup_steps=5, lr_scheduler_type="linear", max_grad_norm=1.0, dataloader_num_workers=2,
        train_sampling_strategy="sequential", use_cpu=True, report_to=[], disable_tqdm=True,
        seed=7, **how)
    steps = Steps()
    trainer = Trainer(
        model=model, args=args, train_dataset=Texts(),
        eval_dataset=torch.utils.data.Subset(Texts(), range(BATCH)),
        optimizer_cls_and_kwargs=(ebb.torch.hf.Factory, dict(
            swap=swap, budget="least", threads=1, muon=MUON, adamw=ADAMW)),
        callbacks=[steps] if "alone" in sys.argv else [steps, ebb.torch.hf.Callback()])
    there = Path(folder).is_dir() and any(Path(folder).glob("checkpoint-*"))
    trainer.train(resume_from_checkpoint=True if there else None)
    optimizer = trainer.optimizer.optimizer
    if trainer.args.process_index == 0:
        of = [log for log in trainer.state.log_history if "loss" in log]
        print("RESULT", json.dumps({
            "losses": [log["loss"] for log in of], "steps": [log["step"] for log in of],
            "last": of[-1], "counted": optimizer.steps, "refused": steps.refused,
            "saved": sorted(p.parent.name for p in Path(folder).glob("*/optimizer.pt"))}))
    optimizer.close()


if __name__ == "__main__":
    main()
