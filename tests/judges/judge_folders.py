"""judge_folders.py CKPT_CONVERT [WORD...]: transformers' Trainer, accelerate's load_fsdp_model and load_fsdp_optimizer
(FSDP2, 2 ranks) and DeepSpeed decide about the folders that ckpt-convert writes: a verdict a row. With words: the rows that
have one in their names.

A Trainer trains a small Llama, whose q, k, v and o have one shape: nothing but its name tells one from the other. Each
folder made from its save at step 2 must give it the weights, the states and the next losses that it had, bit for bit.
Environment: tests/judges/setup_trainers."""
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import warnings
from importlib.util import find_spec
from types import SimpleNamespace

warnings.filterwarnings("ignore")
os.environ.update(CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", DS_ACCELERATOR="cpu",
                  OMP_NUM_THREADS="1")
import torch

torch.set_num_threads(1)
STEPS, SAVED, BATCH, RATE, DECAY = 4, 2, 2, 1e-2, 0.1
ROWS = []


def row(label, *needs):
    def add(does):
        ROWS.append((label, ("transformers", *needs), does))
        return does
    return add


def convert(*words, fails=None):
    """What was said. With `fails`: it must be refused with these words."""
    run = subprocess.run([CONVERT, *words], capture_output=True, text=True)
    said = run.stdout + run.stderr
    assert (run.returncode == 0) == (fails is None), said
    assert fails is None or all(word in said for word in fails), said
    return said


# --- Trainer --------------------------------------------------------------------------------------


def llama(tied=False, dropout=0.0):
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=16, tie_word_embeddings=tied, attention_bias=True, attention_dropout=dropout))


def batches():
    made = torch.Generator().manual_seed(1)
    return [torch.randint(0, 32, (12,), generator=made) for _ in range(STEPS * BATCH)]


def states_of(model, optimizer):
    names = {id(p): n for n, p in model.named_parameters()}
    held = {n: p.detach().clone() for n, p in model.named_parameters()}
    for param, states in optimizer.state.items():
        held |= {f"{names[id(param)]}|{k}": torch.as_tensor(v).detach().clone() for k, v in states.items()}
    return held


def trainer_of(folder, tied=False, dropout=0.0, **more):
    from transformers import PrinterCallback, Trainer, TrainingArguments

    class Job(Trainer):
        losses = []
        found = None  # at its first step

        def compute_loss(self, *words, **more):
            if self.found is None:
                self.found = states_of(self.model, self.optimizer.optimizer)
                self.groups = self.optimizer.state_dict()["param_groups"]
            loss = super().compute_loss(*words, **more)
            self.losses.append(loss.item())
            return loss

        def _get_train_sampler(self, *_):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    arguments = TrainingArguments(output_dir=folder, max_steps=STEPS, save_steps=SAVED, per_device_train_batch_size=BATCH,
                                  learning_rate=RATE, weight_decay=DECAY, report_to=[], use_cpu=True, disable_tqdm=True,
                                  logging_strategy="no", max_grad_norm=0, **more)
    job = Job(model=llama(tied, dropout), args=arguments,
              train_dataset=[{"input_ids": x, "labels": x} for x in batches()])
    job.losses = []
    job.remove_callback(PrinterCallback)
    return job


class Original:
    """A Trainer's run, its save at step 2 and what it held there."""

    def __init__(self, name, **kind):
        self.kind = kind
        job = trainer_of(name, **kind)
        job.train()
        self.losses, self.folder = job.losses, f"{name}/checkpoint-{SAVED}"
        again = trainer_of(name + "-again", **kind)
        again.train(resume_from_checkpoint=self.folder)
        assert again.losses == self.losses[SAVED:], "Trainer's own folder gives other losses"
        self.held, self.groups = again.found, again.groups
        self.names = name + ".names"
        job.create_optimizer()
        names = {id(p): n for n, p in job.model.named_parameters()}
        self.lines = [[names[id(p)] for p in g["params"]] for g in job.optimizer.param_groups]
        with open(self.names, "w") as file:
            file.write("\n\n".join("\n".join(group) for group in self.lines))

    def judge(self, folder, settings=True):
        """Trainer goes on from the folder as it did from its own."""
        job = trainer_of(folder + "-resumed", **self.kind)
        job.train(resume_from_checkpoint=folder)
        assert job.found.keys() == self.held.keys(), job.found.keys() ^ self.held.keys()
        for key, value in self.held.items():
            assert torch.equal(job.found[key], value) and job.found[key].dtype == value.dtype, f"{key} differs"
        if settings:
            mine, theirs = ([{k: v for k, v in g.items() if k != "param_names"} for g in groups]
                            for groups in (job.groups, self.groups))
            assert mine == theirs, (mine, theirs)
        assert job.losses == self.losses[SAVED:], (job.losses, self.losses)
        assert job.state.global_step == STEPS
        return f"{len(self.held)} tensors, losses {', '.join(f'{x:.6f}' for x in job.losses)} equal"


def original():
    global ORIGINAL
    if "ORIGINAL" not in globals():
        ORIGINAL = Original("trainer")
    return ORIGINAL


@row("Trainer: its folder written anew, without names")
def as_it_is():
    convert(original().folder, "anew", "--to", "transformers")
    return original().judge("anew")


@row("Trainer: through DCP for 2 ranks, without names")
def through_dcp():
    convert(original().folder, "dcp", "--to", "dcp", "-w", "2")
    convert("dcp", "from-dcp", "--to", "transformers")
    return original().judge("from-dcp")


@row("Trainer: through torch.save with names; the groups record them")
def through_torch():
    convert(original().folder, "one.pt", "--to", "torch", "--names", original().names)
    convert("one.pt", "from-torch", "--to", "transformers", "--names", original().names)
    groups = torch.load("from-torch/optimizer.pt", weights_only=True)["param_groups"]
    assert [group["param_names"] for group in groups] == original().lines, groups
    return original().judge("from-torch")


@row("Trainer: from names alone it is refused; --names and --like say the order")
def through_safetensors():
    convert(original().folder, "plain", "--to", "safetensors", "--names", original().names, "--drop")
    convert("plain", "refused", "--to", "transformers", fails=["--names FILE", "trainer.optimizer", "--like"])
    said = original().judge(named("plain", "by-names", "--names", original().names))
    convert(original().folder, "like", "--to", "transformers", "--names", original().names)
    original().judge(named("plain", "by-like", "--like", "like"))
    with open(original().names) as file:
        text = file.read()
    with open("turned", "w") as file:  # torch's fused AdamW writes beyond states of other shapes
        file.write(text.replace("q_proj", "?").replace("k_proj", "q_proj").replace("?", "k_proj"))
    named("plain", "by-turned", "--names", "turned")
    try:
        original().judge("by-turned")
    except AssertionError:
        return said
    raise AssertionError("a wrong order was not noticed: this judge sees nothing")


def named(source, folder, *words):
    convert(source, folder, "--to", "transformers", *words)
    return folder


@row("Trainer: dropout goes on with the random numbers of the save, through DCP")
def dropout():
    one = Original("dropout", dropout=0.5)
    convert(one.folder, "dropout-dcp", "--to", "dcp")
    convert("dropout-dcp", "dropout-back", "--to", "transformers")
    said = one.judge("dropout-back")
    os.remove("dropout-back/rng_state.pth")
    try:
        one.judge("dropout-back")
    except AssertionError:
        return said
    raise AssertionError("other random numbers gave the same losses: this judge sees nothing")


@row("Trainer: tied weights, files of at most 4 KiB with an index")
def tied():
    one = Original("tied", tied=True)
    convert(one.folder, "tied-dcp", "--to", "dcp", "--names", one.names)
    convert("tied-dcp", "tied-cut", "--to", "transformers", "--shard-size", "4KiB")
    assert os.path.isfile("tied-cut/model.safetensors.index.json"), os.listdir("tied-cut")
    return one.judge("tied-cut")


# --- accelerate -----------------------------------------------------------------------------------


def rank_of_fsdp(rank, port, folder, saved, result, tied):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    import torch.distributed as dist
    from accelerate.utils import fsdp_utils
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict
    from torch.distributed.fsdp import ShardedStateDictConfig, StateDictType, fully_shard

    dist.init_process_group("gloo", rank=rank, world_size=2)
    model = llama(tied)
    with torch.no_grad():
        for param in model.parameters():
            param.fill_(7)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    decays = [n for n, _ in model.named_parameters() if "bias" not in n and "norm" not in n]
    optimizer = torch.optim.AdamW([
        {"params": [p for n, p in model.named_parameters() if (n in decays) == of], "weight_decay": DECAY if of else 0.0}
        for of in (True, False)], lr=1.0)
    fsdp_utils.logger = SimpleNamespace(info=lambda *a, **k: None, warning=lambda *a, **k: None)
    plugin = SimpleNamespace(fsdp_version=2, state_dict_type=StateDictType.SHARDED_STATE_DICT,
                             state_dict_config=ShardedStateDictConfig(offload_to_cpu=True), optim_state_dict_config=None)
    job = SimpleNamespace(process_index=rank, num_processes=2, is_main_process=rank == 0, is_fsdp2=True,
                          wait_for_everyone=dist.barrier)
    fsdp_utils.load_fsdp_model(plugin, job, model, folder, 0)
    fsdp_utils.load_fsdp_optimizer(plugin, job, optimizer, model, folder, 0)
    full = StateDictOptions(full_state_dict=True, cpu_offload=True)
    held, state = get_model_state_dict(model, options=full), get_optimizer_state_dict(model, optimizer, options=full)
    held |= {f"{n}|{s}": v for n, its in state.get("state", {}).items() for s, v in its.items()}
    fsdp_utils.save_fsdp_model(plugin, job, model, saved, 0)
    fsdp_utils.save_fsdp_optimizer(plugin, job, optimizer, model, saved, 0)
    if rank == 0:
        torch.save({"held": held, "groups": state["param_groups"]}, result)
    dist.barrier()
    dist.destroy_process_group()


def through_fsdp(one, name):
    """Loaded by accelerate from a folder for 3 ranks, on 2, and saved: Trainer goes on from that."""
    import torch.multiprocessing as mp
    tied = one.kind.get("tied", False)
    convert(one.folder, "refused", "--to", "accelerate-fsdp", fails=["--names FILE"])
    said = convert(one.folder, name, "--to", "accelerate-fsdp", "--names", one.names, "-w", "3")
    assert ("lm_head.weight = model.embed_tokens.weight" in said) == tied, said
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(rank_of_fsdp, (port, name, f"{name}-saved", f"{name}.pt", tied), nprocs=2, join=True)
    loaded = torch.load(f"{name}.pt", weights_only=True)
    if tied:
        assert torch.equal(loaded["held"].pop("lm_head.weight"), one.held["model.embed_tokens.weight"])
    assert loaded["held"].keys() == one.held.keys(), loaded["held"].keys() ^ one.held.keys()
    for key, value in one.held.items():
        assert torch.equal(loaded["held"][key], value), f"{key} differs"
    assert [group["lr"] for group in loaded["groups"]] == [group["lr"] for group in one.groups]
    for file in ("scheduler.pt", "trainer_state.json"):
        shutil.copy(f"{name}/{file}", f"{name}-saved/{file}")
    convert(f"{name}-saved", f"from-{name}", "--to", "transformers")
    return one.judge(f"from-{name}", settings=False)


@row("accelerate, FSDP2 of 2: loads the folder, saves it, Trainer goes on from that", "accelerate")
def fsdp():
    return through_fsdp(original(), "fsdp")


@row("accelerate, FSDP2 of 2: the same of a model with tied weights", "accelerate")
def tied_fsdp():
    return through_fsdp(Original("tied-job", tied=True), "tied-fsdp")


# --- DeepSpeed ------------------------------------------------------------------------------------


# Gradients that are nothing but rounding are no steps then.
CONSTANT = dict(lr_scheduler_type="constant", adam_epsilon=1e-4)


def engine(folder):
    """Two steps of ZeRO stage 1 in fp32, a save, two more: the losses of all."""
    import deepspeed
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    deepspeed.init_distributed(dist_backend="gloo")
    job = trainer_of("deepspeed-groups", **CONSTANT)
    optimizer = job.create_optimizer()
    run, *_ = deepspeed.initialize(model=job.model, optimizer=optimizer, config={
        "train_micro_batch_size_per_gpu": BATCH, "zero_optimization": {"stage": 1}, "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False, "gradient_clipping": 0.0})
    losses, data = [], batches()
    for step in range(STEPS):
        if step == SAVED:
            run.save_checkpoint(folder)
        x = torch.stack(data[step * BATCH:(step + 1) * BATCH])
        loss = run(input_ids=x, labels=x).loss
        losses.append(loss.item())
        run.backward(loss)
        run.step()
    return losses


@row("DeepSpeed, ZeRO 1: Trainer goes on from its save, with the next losses", "deepspeed")
def from_deepspeed():
    job = subprocess.run([sys.executable, __file__, CONVERT, "--engine", "deepspeed"], capture_output=True, text=True)
    assert job.returncode == 0, job.stdout + job.stderr
    theirs = json.loads(job.stdout.splitlines()[-1])
    convert("deepspeed", "refused", "--to", "transformers", fails=["--names FILE"])
    said = convert("deepspeed", "from-deepspeed", "--to", "transformers", "--names", original().names, "--drop")
    assert "scheduler.pt is not written" in said, said

    def resumed():
        job = trainer_of("from-deepspeed-resumed", **CONSTANT)
        job.train(resume_from_checkpoint="from-deepspeed")
        return job.losses, max(abs(a - b) / b for a, b in zip(job.losses, theirs[SAVED:], strict=True))

    _, anew = resumed()  # without a scheduler Trainer starts a new optimizer
    trainer = trainer_of("from-deepspeed-resumed", **CONSTANT)
    trainer.create_optimizer_and_scheduler(STEPS)
    exec(said.partition("STEPS): ")[2].partition("\n")[0].replace("DST", "from-deepspeed"), {"trainer": trainer, "torch": torch})
    losses, apart = resumed()
    assert apart < 1e-6 < 1e-4 < anew, (losses, theirs, anew)
    return f"losses {', '.join(f'{x:.6f}' for x in losses)}, {apart:.0e} apart; {anew:.0e} with a new optimizer"


def main(words):
    good = bad = 0
    for label, needs, does in ROWS:
        if words and not any(word in label or word in does.__name__ for word in words):
            continue
        if lacks := [need for need in needs if find_spec(need) is None]:
            print(f"{'skip':6} {label:74} {lacks[0]} is not there", flush=True)
            continue
        try:
            word, said = "ok", does()
            good += 1
        except Exception as error:
            text = str(error) or type(error).__name__
            word, said = "FAILED", next((x for x in reversed(text.splitlines()) if x.strip()), "")[:160]
            bad += 1
            print(textwrap.indent(text[-8000:], "    "))
        print(f"{word:6} {label:74} {said}", flush=True)
    return 1 if bad or not good else 0


if __name__ == "__main__":
    CONVERT = os.path.abspath(sys.argv[1])
    if sys.argv[2:3] == ["--engine"]:
        print("\n" + json.dumps(engine(sys.argv[3])))
        sys.exit(0)
    with tempfile.TemporaryDirectory(prefix="ebb-folders-") as work:
        os.chdir(work)
        result = main(sys.argv[2:])
        os.chdir("/")
    sys.exit(result)
