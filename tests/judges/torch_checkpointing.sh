# shellcheck shell=bash
# ./run's part for torch_checkpointing: fixtures of its own and of DCP, cut by rows, loaded by the package
# on as many ranks and on others. Skipped where the package is missing.

judge_torch_checkpointing() {
  "$python" -c 'import torch_checkpointing' 2>/dev/null || return 0
  local expected case
  for expected in "$fixtures"/torch_checkpointing/*/expected.json \
    "$fixtures"/dcp/{fsdp2,hsdp,layout,numbers,tp}_*/expected.json "$fixtures"/dcp/torch2.15*/expected.json; do
    case=$(basename "$(dirname "$expected")")
    # Its optimizer lies at the top, in entries that can be called by no file's name: refused.
    [ "$case" != layout_titan ] || continue
    verdict "$case, to torch_checkpointing of 2 ranks" \
      convert "$(dirname "$expected")/data" two.tck --to torch-checkpointing --world-size 2 &&
      verdict "$case, torch_checkpointing loads it on 2 ranks" \
        "$python" "$here/judge_tck.py" two.tck "$expected" 2 --same &&
      verdict "$case, torch_checkpointing loads it on 4 ranks" \
        "$python" "$here/judge_tck.py" two.tck "$expected" 4
    rm -rf two.tck
  done
}
