# shellcheck shell=bash
# ./run's part for torch_checkpointing: every fixture of its own and of DCP, cut by rows, loaded by the
# package on as many ranks and on others. Skipped where the package is missing.

judge_torch_checkpointing() {
  "$python" -c 'import torch_checkpointing' 2>/dev/null || return 0
  local expected case
  for expected in "$fixtures"/{torch_checkpointing,dcp}/*/expected.json; do
    ! grep -q '^ *"error": "' "$expected" || continue
    case=$(basename "$(dirname "$expected")")
    verdict "$case, to torch_checkpointing of 2 ranks" \
      convert "$(dirname "$expected")/data" two.tck --to torch-checkpointing --world-size 2 &&
      verdict "$case, torch_checkpointing loads it on 2 ranks" \
        "$python" "$here/judge_tck.py" two.tck "$expected" 2 --same &&
      verdict "$case, torch_checkpointing loads it on 4 ranks" \
        "$python" "$here/judge_tck.py" two.tck "$expected" 4
    rm -rf two.tck
  done
}
