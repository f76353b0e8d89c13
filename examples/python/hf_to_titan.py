"""A Llama that transformers trained, as a checkpoint that torchtitan 0.3 resumes: weights, Adam's
moments or Muon's momentum, step counters. Names are mapped, rows of q and k are permuted for its
RoPE, and q, k and v of each state are joined as torchtitan joins them.

python hf_to_titan.py CHECKPOINT CONFIG.json OUT/step-N [separate]
CHECKPOINT: of any format that has names. separate: for a model with fuse_qkv=False."""
import json
import re
import sys

import torch
import torch.distributed.checkpoint as dcp

import ebb

NAMES = {
    "model.embed_tokens": "tok_embeddings", "model.norm": "norm", "model.layers": "layers",
    "self_attn.q_proj": "attention.qkv_linear.wq", "self_attn.k_proj": "attention.qkv_linear.wk",
    "self_attn.v_proj": "attention.qkv_linear.wv", "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1", "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3", "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
}


def titan_name(name):
    return re.sub("|".join(map(re.escape, NAMES)), lambda found: NAMES[found[0]], name)


def titan_rows(name, tensor, heads):
    """transformers rotates the two halves of a head, torchtitan neighbouring rows."""
    for letter, count in heads.items():
        if f"{letter}_proj" in name:
            pairs = tensor.view(count, 2, tensor.shape[0] // count // 2, -1)
            return pairs.transpose(1, 2).reshape(tensor.shape)
    return tensor


def main(source, config, out, qkv="joined"):
    with open(config) as file:
        config = json.load(file)
    kv_heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    heads = {"q": config["num_attention_heads"], "k": kv_heads}
    checkpoint = ebb.open(source)

    def state_of(name, state):
        tensor = checkpoint[name, state].torch()
        return titan_rows(name, tensor, heads) if tensor.dim() else tensor

    content = {"train_state.step": torch.tensor(checkpoint.step)}
    for name, weight in checkpoint.weights().items():  # wq, wk and wv lie apart
        content[titan_name(name)] = titan_rows(name, weight.torch(), heads)
    for group in checkpoint.groups:
        for name in group.params:
            ours, together = titan_name(name), [name]
            if qkv == "joined" and re.search("[qkv]_proj", name):
                if "q_proj" not in name:
                    continue  # with q: torchtitan's optimizer has one parameter for the three
                ours = ours.replace(".wq.", ".wqkv.")
                together = [name.replace("q_proj", f"{letter}_proj") for letter in "qkv"]
            for state in checkpoint.states:
                if state in ("param", "master") or (name, state) not in checkpoint:
                    continue
                tensors = [state_of(each, state) for each in together]
                if len(tensors) > 1 and tensors[0].dim():  # of each group of heads: q, k, v
                    tensors = [each.unflatten(0, (kv_heads, -1)) for each in tensors]
                    tensors = [torch.cat(tensors, 1).flatten(0, 1)]
                content[f"optimizer.state.{ours}.{state}"] = tensors[0]
            for setting, value in group.settings.items():
                if isinstance(value, dict):
                    value = tuple(value["$tuple"])
                content[f"optimizer.param_groups.{ours}.{setting}"] = value
    dcp.save(content, checkpoint_id=out)


if __name__ == "__main__":
    main(*sys.argv[1:])
