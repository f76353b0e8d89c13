# shellcheck shell=bash
# The part of ./run that opens the tools' pictures in a real headless Chromium, where one is
# installed. Screenshots are kept beside the programs.

judge_pictures() {
  local case
  command -v chromium >/dev/null || { skipped=$((skipped + 1)); return 0; }
  for case in map{,-padding,-stacked,-hole,-overlap,-hostile,-large} plan{,-one} norms{,-stacked} \
    rates; do
    verdict "picture: $case" "$python" "$here/judge_pictures.py" "$bin" "$fixtures" \
      "$bin/../pictures" "$case"
  done
}
