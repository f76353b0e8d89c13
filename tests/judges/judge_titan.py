"""judge_titan.py CKPT_CONVERT: torchtitan's own llama3 model and its checkpointer decide about what
examples/python/hf_to_titan.py makes of a Trainer's save, as docs/recipes/trainer-to-torchtitan.md
tells it: one forward pass on the weights, then steps on the moments, beside transformers.
Environment: tests/judges/setup_trainers; EBB_LIBRARY and PYTHONPATH lead to Ebb."""
import contextlib
import io
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
SAVED, STEPS, RATE, DECAY = 3, 6, 1e-3, 0.1
WIDTH, LAYERS, HEADS, KV_HEADS, WORDS, LONG = 64, 2, 8, 4, 128, 16


def batch(step):
    made = torch.Generator().manual_seed(step)
    return torch.randint(0, WORDS, (2, LONG), generator=made)


def loss_of(logits, x):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), x[:, 1:].flatten())


def transformers_llama():
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=96, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, rms_norm_eps=1e-5,
        max_position_embeddings=64, rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        tie_word_embeddings=False))


def trained_by_trainer(folder):
    """Trainer's save at SAVED, its order of parameters, the model's logits and the next losses."""
    from transformers import Trainer, TrainingArguments
    model = transformers_llama()
    data = [dict(input_ids=x, labels=x) for step in range(SAVED) for x in batch(step)]
    trainer = Trainer(model=model, train_dataset=data, args=TrainingArguments(
        str(folder), max_steps=SAVED, save_steps=SAVED, per_device_train_batch_size=2, use_cpu=True,
        report_to=[], learning_rate=RATE, lr_scheduler_type="constant", weight_decay=DECAY,
        max_grad_norm=1e9, disable_tqdm=True, logging_strategy="no"))
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train()
    n = {id(p): n for n, p in model.named_parameters()}
    Path("names").write_text("\n\n".join(
        "\n".join(n[id(p)] for p in g["params"]) for g in trainer.optimizer.param_groups))
    model.train()
    with torch.no_grad():
        logits = model(batch(SAVED)).logits
    losses, optimizer = [], trainer.optimizer
    for step in range(SAVED, STEPS):
        optimizer.zero_grad()
        loss = loss_of(model(batch(step)).logits, batch(step))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return logits, losses


def titan_llama():
    import torchtitan.tools.utils
    torchtitan.tools.utils.device_type = "cpu"  # it says "cuda" where there is no accelerator
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
        attn_backend="flex")  # replaced below: it has no gradients on CPUs
    for layer in config.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    model = config.build()
    model.init_states()
    return model


class Counted:
    step = 0

    def state_dict(self):
        return {"step": torch.tensor(self.step)}

    def load_state_dict(self, state_dict):
        self.step = int(state_dict["step"])


def resumed_by_titan(folder, moments_moved=0):
    """Its logits and losses behind CheckpointManager.load(). `moments_moved`: by so many rows."""
    from torchtitan.components.checkpointer.dcp import CheckpointManager
    from torchtitan.components.optimizer import (LRSchedulersContainer, OptimizersContainer,
                                                 ParamGroupConfig)
    model = titan_llama()
    group = ParamGroupConfig(pattern=".*", optimizer_name="AdamW",
                             optimizer_kwargs=dict(lr=1.0, betas=(0.1, 0.2), weight_decay=0.5))
    optimizers = OptimizersContainer.Config(
        param_groups=[group], implementation="for-loop").build(model_parts=[model])
    schedules = LRSchedulersContainer.Config(warmup_steps=0).build(
        optimizers=optimizers, training_steps=STEPS)
    counted = Counted()
    manager = CheckpointManager.Config(
        enable=True, folder=str(folder), exclude_from_loading=["lr_scheduler", "dataloader"]).build(
        dataloader=None, model_parts=[model], optimizers=optimizers, lr_schedulers=schedules,
        states={"train_state": counted}, sd_adapter=None)
    assert manager.load(SAVED), "no checkpoint found"
    assert counted.step == SAVED, counted.step
    for name, parameter in model.named_parameters():
        state = optimizers.optimizers[0].state[parameter]
        if "wqkv" in name and moments_moved:
            for moment in (state["exp_avg"], state["exp_avg_sq"]):
                moment.copy_(moment.roll(moments_moved, 0))
    with torch.no_grad():
        logits = model(batch(SAVED))
    losses = []
    for step in range(SAVED, STEPS):
        optimizers.zero_grad()
        loss = loss_of(model(batch(step)), batch(step))
        loss.backward()
        optimizers.step()
        losses.append(loss.item())
    return logits, losses


def main(convert):
    if find_spec("torchtitan") is None:
        return print("skip  torchtitan is not there")
    with tempfile.TemporaryDirectory() as work:
        os.chdir(work)
        logits, losses = trained_by_trainer(Path("run"))
        save = f"run/checkpoint-{SAVED}"
        run = [convert, save, "named", "--to", "safetensors", "--names", "names"]
        subprocess.run(run, check=True, stdout=subprocess.DEVNULL)
        script = TREE / "examples/python/hf_to_titan.py"
        run = [sys.executable, script, "named", f"{save}/config.json", f"titan/step-{SAVED}"]
        subprocess.run(run, check=True)
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        titan_logits, titan_losses = resumed_by_titan(Path("titan").absolute())
        moved = resumed_by_titan(Path("titan").absolute(), 1)[1]
        os.chdir("/")
    apart = (logits - titan_logits).abs().max().item()
    assert apart < 1e-5, f"logits are {apart:.1e} apart"
    by, wrong = distance(titan_losses, losses), distance(moved, losses)
    assert by < 1e-5, f"losses are {by:.1e} apart: {losses} {titan_losses}"
    assert wrong > 10 * by, f"moments of other rows are not seen: {wrong:.1e} against {by:.1e}"
    print(f"OK  logits {apart:.0e} apart, {len(losses)} losses {by:.0e}, "
          f"with moments of other rows {wrong:.0e}")


def distance(mine, other):
    return max(abs(a - b) / b for a, b in zip(mine, other))


if __name__ == "__main__":
    main(sys.argv[1])
