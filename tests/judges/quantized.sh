#!/usr/bin/env bash
# quantized.sh BIN PYTHON: torchao loads what ckpt-convert writes of its tensors, in torch.save files
# and in DCP; a verdict a row.
set -euo pipefail
bin=$1 python=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
fixtures=$here/../fixtures/quantized
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if ! "$python" -c 'import torchao' 2>/dev/null; then
  echo "skip   quantized tensors: there is no torchao"
  exit 0
fi
failed=0 number=0
judge() {  # SOURCE FORMAT
  local out=$scratch/$((++number)) said
  if said=$("$bin/ckpt-convert" "$fixtures/$1" "$out" --to "$2" 2>&1) &&
    said=$("$python" "$here/judge_quantized.py" "$out" "$fixtures/states_truth.pt" 2>&1); then
    printf 'ok     %-16s to %-6s %s\n' "$1" "$2" "${said##*$'\n'}"
  else
    printf 'FAILED %-16s to %-6s %s\n' "$1" "$2" "$said"
    failed=1
  fi
}
for source in states.pt dcp_w2/data; do
  judge $source torch
  judge $source dcp
done
exit $failed
