"""judge_titan.py CKPT_CONVERT: torchtitan's own llama3 model and its checkpointer decide about what
examples/python/hf_to_titan.py makes of a Llama of transformers, as
docs/recipes/trainer-to-torchtitan.md tells it: one forward pass on the weights, then steps on the
optimizer's states, beside transformers. AdamW through a real Trainer, q, k and v joined;
torch.optim.Muon in a loop by hand, q, k and v apart.
Environment: tests/judges/setup_trainers; EBB_LIBRARY and PYTHONPATH lead to Ebb."""
import contextlib
import inspect
import io
import json
import os
import subprocess
import sys
import tempfile
import warnings
from importlib.util import find_spec
from pathlib import Path

warnings.filterwarnings("ignore")
os.environ.update(CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
import torch
import torch.distributed as dist
import torch.nn.functional as F

torch.set_num_threads(1)
TREE = Path(__file__).resolve().parents[2]
sys.path.append(str(TREE / "tests/bindings/python/trainers"))
SAVED, STEPS, RATE, MUON_RATE, DECAY = 3, 6, 1e-3, 5e-2, 0.1
WIDTH, LAYERS, HEADS, KV_HEADS, WORDS, LONG = 64, 2, 8, 4, 128, 16
MATRICES = r"layers\..*(attention|feed_forward)\..*weight$"  # torchtitan's names


def batch(step):
    made = torch.Generator().manual_seed(step)
    return torch.randint(0, WORDS, (2, LONG), generator=made)


def loss_of(logits, x):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), x[:, 1:].flatten())


def steps(first, last, logits_of, optimizers):
    losses = []
    for step in range(first, last):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = loss_of(logits_of(batch(step)), batch(step))
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    return losses


def muon_in_fp32():
    """torch's own Newton-Schulz without its cast: bf16 rounds away what other rows would change."""
    import torch.optim._muon as theirs
    source = inspect.getsource(theirs._zeropower_via_newtonschulz)
    assert "grad.bfloat16()" in source, "torch.optim.Muon casts in another way"
    exec(source.replace("grad.bfloat16()", "grad"), theirs.__dict__)


# --- transformers -------------------------------------------------------------------------------


def transformers_llama():
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=96, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, rms_norm_eps=1e-5,
        max_position_embeddings=64, rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        tie_word_embeddings=False))


def write_names(model, optimizers):
    n = {id(p): n for n, p in model.named_parameters()}
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    Path("names").write_text("\n\n".join("\n".join(n[id(p)] for p in g["params"]) for g in groups))


def goes_on(model, optimizers):
    """The logits behind the save, and the losses of the steps that follow."""
    with torch.no_grad():
        logits = model(batch(SAVED)).logits
    return logits, steps(SAVED, STEPS, lambda x: model(x).logits, optimizers)


def trained_by_trainer():
    from transformers import Trainer, TrainingArguments
    model = transformers_llama()
    data = [dict(input_ids=x, labels=x) for step in range(SAVED) for x in batch(step)]
    trainer = Trainer(model=model, train_dataset=data, args=TrainingArguments(
        "run", max_steps=SAVED, save_steps=SAVED, per_device_train_batch_size=2, use_cpu=True,
        report_to=[], learning_rate=RATE, lr_scheduler_type="constant", weight_decay=DECAY,
        max_grad_norm=1e9, disable_tqdm=True, logging_strategy="no"))
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train()
    write_names(model, [trainer.optimizer])
    model.train()
    return f"run/checkpoint-{SAVED}", goes_on(model, [trainer.optimizer])


def trained_with_muon():
    model = transformers_llama()
    matrices = [p for n, p in model.named_parameters() if "proj" in n]
    others = [p for n, p in model.named_parameters() if "proj" not in n]
    muon = torch.optim.Muon(matrices, lr=MUON_RATE, weight_decay=DECAY)
    optimizers = [muon, torch.optim.AdamW(others, lr=RATE, weight_decay=DECAY)]
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        # What torchtitan's container and its schedule keep in each group; without it DCP stops.
        group.update(initial_lr=group["lr"], foreach=False, fused=False)
    steps(0, SAVED, lambda x: model(x).logits, optimizers)
    torch.save({"model": model.state_dict(), "muon": muon.state_dict(),
                "adamw": optimizers[1].state_dict(), "step": SAVED}, "muon.pt")
    write_names(model, optimizers)
    return "muon.pt", goes_on(model, optimizers)


# --- torchtitan ---------------------------------------------------------------------------------


def titan_llama(fuse_qkv):
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.common.rope import ComplexRoPE
    from torchtitan.models.llama3 import _build_llama3_layers, model_registry
    config = model_registry("debugmodel").model
    config.dim, config.vocab_size = WIDTH, WORDS
    config.tok_embeddings.num_embeddings, config.tok_embeddings.embedding_dim = WORDS, WIDTH
    config.norm.normalized_shape = WIDTH
    config.lm_head.in_features, config.lm_head.out_features = WIDTH, WORDS
    rope = ComplexRoPE.Config(dim=WIDTH // HEADS, max_seq_len=64, theta=1e4, scaling="none")
    config.layers = _build_llama3_layers(
        n_layers=LAYERS, dim=WIDTH, n_heads=HEADS, n_kv_heads=KV_HEADS, hidden_dim=96, rope=rope,
        fuse_qkv=fuse_qkv, attn_backend="flex")
    for layer in config.layers:  # FlexAttention has no gradients on CPUs
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    model = config.build()
    model.init_states()
    return model


def titan_optimizers(model, muon):
    """With settings that the checkpoint has to replace."""
    from torch_muon import TorchMuon
    from torchtitan.components.optimizer import ParamGroupConfig

    groups = [ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs=dict(
        lr=1.0, betas=(0.1, 0.2), weight_decay=0.5))]
    if muon:
        groups.insert(0, ParamGroupConfig(pattern=MATRICES, optimizer_name="Muon",
                                          optimizer_kwargs=dict(lr=1.0, weight_decay=0.5)))
    config = TorchMuon.Config(param_groups=groups, implementation="for-loop")
    return config.build(model_parts=[model])


class Counted:
    step = 0

    def state_dict(self):
        return {"step": torch.tensor(self.step)}

    def load_state_dict(self, state_dict):
        self.step = int(state_dict["step"])


def resumed_by_titan(muon, rows_moved=0):
    """Logits and losses behind CheckpointManager.load(). `rows_moved`: of what q and k have of
    the optimizer's states."""
    from torchtitan.components.checkpointer.dcp import CheckpointManager
    from torchtitan.components.optimizer import LRSchedulersContainer
    model = titan_llama(fuse_qkv=not muon)
    optimizers = titan_optimizers(model, muon)
    schedules = LRSchedulersContainer.Config(warmup_steps=0).build(
        optimizers=optimizers, training_steps=STEPS)
    counted = Counted()
    manager = CheckpointManager.Config(
        enable=True, folder=str(Path("titan").absolute()),
        exclude_from_loading=["lr_scheduler", "dataloader"]).build(
        dataloader=None, model_parts=[model], optimizers=optimizers, lr_schedulers=schedules,
        states={"train_state": counted}, sd_adapter=None)
    assert manager.load(SAVED), "no checkpoint found"
    assert counted.step == SAVED, counted.step
    states = [(n, o.state[p]) for n, p in model.named_parameters() for o in optimizers.optimizers
              if p in o.state and any(w in n for w in ("wqkv", "wq.", "wk."))]
    assert states, "no states of q and k"
    for _, state in states:
        for moment in (value for key, value in state.items() if key != "step" and rows_moved):
            moment.copy_(moment.roll(rows_moved, 0))
    with torch.no_grad():
        logits = model(batch(SAVED))
    return logits, steps(SAVED, STEPS, model, [optimizers])


# --- verdicts -----------------------------------------------------------------------------------


def distance(mine, other):
    return max(abs(a - b) / b for a, b in zip(mine, other))


def judge(convert, trained, muon, most):
    source, (logits, losses) = trained()
    config = json.dumps(dict(num_attention_heads=HEADS, num_key_value_heads=KV_HEADS))
    Path("config.json").write_text(config)
    convert = [convert, source, "named", "--to", "safetensors", "--names", "names"]
    subprocess.run(convert, check=True, stdout=subprocess.DEVNULL)
    script = [sys.executable, TREE / "examples/python/hf_to_titan.py", "named", "config.json",
              f"titan/step-{SAVED}", *(["separate"] if muon else [])]
    subprocess.run(script, check=True)
    titan_logits, titan_losses = resumed_by_titan(muon)
    apart = (logits - titan_logits).abs().max().item()
    assert apart < 1e-5, f"logits are {apart:.1e} apart"
    by = distance(titan_losses, losses)
    wrong = distance(resumed_by_titan(muon, 1)[1], losses)
    assert by < most, f"losses are {by:.1e} apart: {losses} {titan_losses}"
    assert wrong > 10 * by, f"states of other rows are not seen: {wrong:.1e} against {by:.1e}"
    return f"logits {apart:.0e} apart, losses {by:.0e}; with states of other rows {wrong:.0e}"


def main(convert):
    if find_spec("torchtitan") is None:
        print("skip   torchtitan is not there")
        return 0
    import torchtitan.tools.utils
    torchtitan.tools.utils.device_type = "cpu"  # it says "cuda" where there is no accelerator
    muon_in_fp32()
    failed = 0
    for label, trained, muon, most in (
        ("Trainer's AdamW to torchtitan, q, k and v joined", trained_by_trainer, False, 1e-5),
        ("torch.optim.Muon to torchtitan, q, k and v apart", trained_with_muon, True, 1e-4),
    ):
        with tempfile.TemporaryDirectory() as work, contextlib.chdir(work):
            try:
                word, said = "ok", judge(convert, trained, muon, most)
            except Exception as error:
                failed, word, said = 1, "FAILED", str(error)
        print(f"{word:6} {label:60} {said}", flush=True)
    return failed


if __name__ == "__main__":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    sys.exit(main(sys.argv[1]))
