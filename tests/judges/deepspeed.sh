# shellcheck shell=bash
# DeepSpeed's part of ./run, which sources it: real engines load what ckpt-convert wrote, hold the
# expected tensors and values, and take two more steps with the losses of the uninterrupted run.

ds_cases=$fixtures/deepspeed

# What the Python lacks, "" when it can judge.
deepspeed_lacks() {
  DS_ACCELERATOR=cpu "$python" - 2>/dev/null <<'END' | tail -n 1 || echo "this Python cannot even say what it lacks"
try:
    import deepspeed
    print("" if deepspeed.__version__ == "0.19.8" else f"DeepSpeed is {deepspeed.__version__}, not 0.19.8")
except ImportError as error:
    print(f"{error}; ./dev judge installs it")
END
}

# The verdict's lines of judge_ds.py without what engines print. Rank 0 has heard all ranks when it
# says OK; how the others end after that does not matter.
engine_loads() {  # FOLDER CASE ARGUMENT...
  local said
  said=$(served deepspeed "$here/judge_ds.py" "$1" "$ds_cases/$2/expected.json" "${@:3}" 2>&1 |
    grep -E '^(OK|FAIL|  [(a-z]|[A-Za-z]*Error)' | grep -v '^  return ' | head -n 20)
  printf '%s\n' "$said"
  [[ $said == OK* ]]
}

# LABEL CASE "CONVERT-ARGUMENTS" "JUDGE-ARGUMENTS" [CASE-WITH-THE-SOURCE]
deepspeed_case() {
  local label=$1 case=$2 source=${5:-$2} convert_arguments judge_arguments
  read -ra convert_arguments <<<"$3"
  read -ra judge_arguments <<<"$4"
  rm -rf one.ds
  verdict "deepspeed/$source, $label" \
    convert "$ds_cases/$source/data" one.ds "${convert_arguments[@]}" &&
    verdict "deepspeed/$source, DeepSpeed trains on" \
      engine_loads one.ds "$case" "${judge_arguments[@]}"
  rm -rf one.ds
}

deepspeed_ranks() {
  local to='--to deepspeed -p'
  deepspeed_case "to 3 ranks" z1_adamw_bf16_w2 "$to zero12 -w 3" '--ranks 3'
  deepspeed_case "written again" z2_adam_fp32_w3 "$to zero12 -w 3" ''
  deepspeed_case "to 3 ranks" z2_adamw_fp16_w2 "$to zero12 -w 3" '--ranks 3'
  deepspeed_case "to 3 ranks" z3_adamw_bf16_w4 "$to zero3 -w 3" '--ranks 3'
  deepspeed_case "to 3 ranks" z3_adam_cpuoffload_w2 "$to zero3 -w 3" '--ranks 3'
  deepspeed_case "to stage 3 on 3 ranks" z2_muon_bf16_w2 "$to zero3 -w 3" '--ranks 3 --stage 3'
  deepspeed_case "to stage 2 on 3 ranks" z3_muon_bf16_w4 "$to zero12 -w 3" '--ranks 3 --stage 2'
  deepspeed_case "to 3 ranks" z1_muon_bf16opt_w2 "$to zero12 -w 3" '--ranks 3'
  deepspeed_case "out of NVMe" z3_muon_nvme_w2 "$to zero3 -w 2" '--plain'
}

# Through another format and back, in the stage of the source.
deepspeed_through() {  # CASE FORMAT RANKS [JUDGE-ARGUMENT...]
  local case=$1 format=$2 ranks=$3
  rm -rf hop one.ds
  verdict "deepspeed/$case, to $format" convert "$ds_cases/$case/data" hop --to "$format" &&
    verdict "deepspeed/$case, from $format" convert hop one.ds --to deepspeed -w "$ranks" &&
    verdict "deepspeed/$case, DeepSpeed trains on" engine_loads one.ds "$case" --ranks "$ranks" "${@:4}"
  rm -rf hop one.ds
}

# Cases in which groups and parameters have equal sizes: in a wrong order they load without an error,
# and only their values and losses are others.
deepspeed_order() {
  local format
  for format in dcp torch hdf5 safetensors megatron megatron-fsdp ebb deepspeed-universal; do
    deepspeed_through z3_muon_groups_w2 "$format" 2
    deepspeed_through z2_muon_dealt_w3 "$format" 3
  done
  for format in dcp ebb deepspeed-universal; do
    deepspeed_through z2_muon_groups_w2 "$format" 2
    deepspeed_through z1_muon_groups_w2 "$format" 3
  done
  deepspeed_through z2_muon_dealt_w3 dcp 2
  deepspeed_through z2_sgd_w2 dcp 3
  deepspeed_through z3_muon_experts_w2 dcp 3
  local to='--to deepspeed'
  deepspeed_case "to 3 ranks" z3_muon_groups_w2 "$to -w 3" '--ranks 3'
  deepspeed_case "to stage 2" z3_muon_groups_w2 "$to -p zero12 -w 2" '--stage 2'
  deepspeed_case "to 3 ranks" z2_muon_groups_w2 "$to -w 3" '--ranks 3'
  deepspeed_case "to 2 ranks" z2_muon_dealt_w3 "$to -w 2" '--ranks 2'
  deepspeed_case "to stage 2" z3_muon_experts_w2 "$to -p zero12 -w 3" '--ranks 3 --stage 2'
  deepspeed_case "universal" z1_muon_groups_w2 "$to-universal" '--universal --ranks 3'
  deepspeed_case "to stage 2" z0_adamw_bf16_w2 "$to -p zero12 -w 2" '--stage 2'
  deepspeed_case "to stage 3" z0_torch_adam_bf16_w2 "$to -w 3" '--ranks 3 --stage 3'
  deepspeed_case "to stage 2" z0_adam_fp32_w2 "$to -p zero12 -w 2 --names order" '--stage 2'
}

deepspeed_universal() {
  local to='--to deepspeed-universal'
  deepspeed_case "universal" z1_adamw_bf16_w2 "$to" '--universal --ranks 3 --stage 2'
  deepspeed_case "universal" z1_adamw_bf16_w2 "$to" '--universal --ranks 3 --stage 3'
  deepspeed_case "universal" z3_adamw_bf16_w4 "$to" '--universal --ranks 3 --stage 2'
  deepspeed_case "universal" z3_adamw_bf16_w4 "$to" '--universal --ranks 2'
  deepspeed_case "universal" z1_muon_bf16opt_w2 "$to" '--universal --ranks 3'
  deepspeed_case "universal" z2_muon_bf16_w2 "$to" '--universal --ranks 1'
  deepspeed_case "universal" z3_muon_bf16_w4 "$to" '--universal --ranks 1 --stage 2'
  # Back from what DeepSpeed's own converter wrote.
  deepspeed_case "to 3 ranks" z1_adamw_bf16_w2 '--to deepspeed -p zero12 -w 3' '--ranks 3' \
    universal_z1_adamw
}

# The verdict's line of make_parallel.py.
parallel_loads() {  # FOLDER CASE RANKS [STAGES]
  local said
  said=$("$python" -B "$ds_cases/make_parallel.py" --load "$@" 2>&1 |
    grep -E '^(OK|FAIL|[A-Za-z]*Error)' | head -n 5)
  printf '%s\n' "$said"
  [[ $said == OK* ]]
}

# Pipelines and what AutoTP cut, on other numbers of stages and data-parallel ranks.
deepspeed_parallel() {
  local row case rest arguments
  for row in "pp_z1_bf16_w4 2 2" "pp_z1_bf16_w4 3 3" "pp_z1_bf16opt_w4 4 2" "autotp_z1_bf16_w4 2"; do
    read -r case rest <<<"$row"
    read -ra arguments <<<"$rest"
    if [[ $case == autotp* ]] && ! "$python" -c 'import transformers' 2>/dev/null; then
      skipped=$((skipped + 1))
      printf '%-6s %-64s %s\n' skip "deepspeed/$case" "there is no transformers"
      continue
    fi
    rm -rf one.ds
    verdict "deepspeed/$case, universal" \
      convert "$ds_cases/$case/data" one.ds --to deepspeed-universal &&
      verdict "deepspeed/$case, DeepSpeed trains on (${arguments[*]})" \
        parallel_loads one.ds "$case" "${arguments[@]}"
    rm -rf one.ds
  done
}

judge_deepspeed() {
  local lacks
  lacks=$(deepspeed_lacks)
  if [ -n "$lacks" ]; then
    skipped=$((skipped + 1))
    printf '%-6s %-64s %s\n' skip deepspeed "$lacks"
    return 0
  fi
  export DS_ACCELERATOR=cpu PATH="$(dirname "$python"):$PATH"
  OMP_NUM_THREADS=1 TORCHDYNAMO_DISABLE=1 serve deepspeed deepspeed
  deepspeed_order
  deepspeed_ranks
  deepspeed_universal
  deepspeed_parallel
}
