# shellcheck shell=bash
# Part of ./run: 300 steps of gpt-train beside the same 300 steps of PyTorch, three seeds each.
judge_training() {
  local optimizer
  for optimizer in muon adamw; do
    verdict "gpt-train beside torch, $optimizer" \
      "$python" "$here/judge_training.py" "$bin/gpt-train" "$bin/ckpt-convert" "$optimizer"
  done
}
