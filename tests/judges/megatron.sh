# Part of `run`, which sources it: what ckpt-convert makes of Megatron checkpoints, and Megatron
# checkpoints it makes of others, read by megatron-core and torch. Its judge is started once for all
# of them: importing megatron-core takes longer than judging.

# meg_case SOURCE FORMAT RANKS FLAGS...: converts, and puts the result on the judge's list.
meg_case() {
  local source=$1 format=$2 ranks=$3 folder names=()
  shift 3
  folder=$work/meg/${source//\//_}-$format-$ranks
  # What its job numbers, nothing names: torch's optimizers number in the order of the model.
  [[ $source != */z0_adam_fp32* ]] || names=(--names order)
  convert "$fixtures/$source/data" "$folder" --to "$format" --world-size "$ranks" --drop "${names[@]}" \
    >"$folder.said" 2>&1 || {
    bad=$((bad + 1))
    printf '%-6s %-64s %s\n' FAILED "$source, to $format" "$(tail -n 1 "$folder.said")"
    return 0
  }
  echo "$folder $fixtures/$source/expected.json $*" >>"$work/meg.list"
}

is_whole() { ! grep -q '^ *"error": "' "$fixtures/$1/expected.json"; }

judge_megatron() {  # MEGATRON: a folder with megatron-core, for PYTHONPATH
  local case format line
  if [ ! -d "$1/megatron/core" ]; then
    skipped=$((skipped + 1))
    printf '%-6s %-64s %s\n' skip Megatron "no megatron-core in '$1'"
    return 0
  fi
  mkdir -p "$work/meg"
  for case in "$fixtures"/megatron/*/; do
    case=megatron/$(basename "$case")
    is_whole "$case" || continue
    format=megatron
    [[ $case != */fsdp_* ]] || format=megatron-fsdp
    meg_case "$case" $format 1 --objects
    meg_case "$case" $format 3 --objects
    # Flat buckets stay in their format: nothing stored says whose elements they are.
    ! grep -q '"param_state_sharding_type": "dp_reshardable"' "$fixtures/$case/expected.json" || continue
    meg_case "$case" dcp 2 --names
    if [ $format = megatron ]; then
      meg_case "$case" megatron-fsdp 3 --names
    else
      meg_case "$case" megatron 3 --names
    fi
  done
  for case in "$fixtures"/deepspeed/z*/ "$fixtures"/dcp/{fsdp,hsdp,tp}*/; do
    case=$(basename "$(dirname "$case")")/$(basename "$case")
    is_whole "$case" || continue
    # Its expected.json has the keys that the optimizer flattened; here they are states of parameters.
    [[ $case != *flat_optim* ]] || continue
    meg_case "$case" megatron 3 --names
    meg_case "$case" megatron-fsdp 3 --names
  done
  while read -r line; do
    [[ $line = ok* ]] && good=$((good + 1)) || bad=$((bad + 1))
    printf '%-6s %s\n' "${line%% *}" "${line##*/}"
  done < <(PYTHONPATH=$1 "$python" "$here/judge_meg.py" --batch <"$work/meg.list" 2>&1)
  rm -rf "$work/meg" "$work/meg.list"
}
