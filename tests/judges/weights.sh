# shellcheck shell=bash
# The part of ./run that loads what `ckpt-convert --weights` wrote into a torch module, strictly: from every
# framework's own checkpoint, and from Ebb's store of one.

weights_case() {  # LABEL SOURCE EXPECTED
  local label=$1 source=$2 expected=$3
  verdict "$label, weights" convert "$source" out.weights --weights &&
    verdict "$label, load_state_dict takes them" served torch "$here/judge_weights.py" out.weights "$expected"
  verdict "$label, weights in files of 2 KB" convert "$source" out.cut --weights --shard-size 2000 &&
    verdict "$label, load_state_dict takes the files" served torch "$here/judge_weights.py" out.cut "$expected"
  verdict "$label, weights for torch.load" convert "$source" out.torch --weights --to torch &&
    verdict "$label, load_state_dict takes the file" served torch "$here/judge_weights.py" out.torch "$expected"
  rm -rf out.weights out.cut out.torch
}

judge_weights() {
  local case
  for case in deepspeed/{z1_adamw_bf16_w2,z2_muon_bf16_w2,z3_adamw_bf16_w4,z3_muon_bf16_w4,universal_z3_adamw} \
    dcp/{fsdp2_w3_bf16_fp32_master,fsdp2_w2_odd_rows_tied,tp_fsdp_2x2_strided} torch/muon_adamw_state \
    megatron/{muon_layerwise_tp2_dp2,fsdp_uneven_w3_muon}; do
    weights_case "$case" "$fixtures/$case/data" "$fixtures/$case/expected.json"
  done
  case=deepspeed/z3_muon_bf16_w4
  verdict "$case, to ebb" convert "$fixtures/$case/data" out.store --to ebb &&
    weights_case "$case through ebb" out.store "$fixtures/$case/expected.json"
  rm -rf out.store
}
