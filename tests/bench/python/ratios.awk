# Of tests/bench/python/run's lines "PART ORDER PROCESS-WORD NUMBER...": figures and verdicts.
# Orders are there and back; the best of each kind in each counts.
{
  key = $1 " " $3
  if (!((key, $2) in seen)) {
    seen[key, $2] = 1
    for (i = 4; i <= NF; ++i) best[key, $2, i - 3] = $i
  }
  for (i = 4; i <= NF; ++i) if ($i + 0 < best[key, $2, i - 3] + 0) best[key, $2, i - 3] = $i
  if (!(key in known)) { known[key] = 1; kinds[++count] = key }
}
function there(key) { return (key, "there") in seen && (key, "back") in seen }
function number(text) { return text == "" ? "null" : sprintf("%.6g", text) }
# way: "at most" or "at least"; without a goal: printed. A goal of "" is none.
function verdict(name, found, way, goal, spread,    word, sign) {
  if (found == "") word = goal == "" ? "-" : "not measured"
  else if (goal == "") word = "-"
  else if (small) word = "not judged"
  else if (way == "at most" ? found <= goal : found >= goal) word = "ok"
  else { word = "FAILED"; ++failures }
  sign = way == "at most" ? "<= " : ">= "
  printf "%-12s %-62s %9s %9s  %s\n", word, name, found == "" ? "" : sprintf("%.4g", found),
    goal == "" ? "" : sign goal, spread
  body = body (body == "" ? "" : ",\n") sprintf("    \"%s\": {\"found\": %s, \"goal\": %s, " \
    "\"way\": \"%s\", \"met\": %s}", name, number(found), number(goal), way,
    word == "ok" ? "true" : word == "FAILED" ? "false" : "null")
}
# The worse of both orders; values[there], values[back].
function of_orders(name, values, way, goal,    worse) {
  worse = values["there"]
  if (way == "at most" ? values["back"] > worse : values["back"] < worse) worse = values["back"]
  verdict(name, worse, way, goal, sprintf("[%.4g, %.4g]", values["there"], values["back"]))
}
# A column of one over that of another.
function ratio(name, one, a, other, b, way, goal,    values, order) {
  if (!there(one) || !there(other)) { verdict(name, "", way, goal, ""); return }
  for (order in orders) {
    if (best[other, order, b] <= 0) { verdict(name, "", way, goal, ""); return }
    values[order] = best[one, order, a] / best[other, order, b]
  }
  of_orders(name, values, way, goal)
}
# How far apart ours and a baseline are. A baseline that computes something else is none.
function agrees(name, key) {
  if ((key, "check") in seen) verdict(name, best[key, "check", 1], "at most", 1e-5, "")
}
function has(part,    k) {
  for (k = 1; k <= count; ++k) if (index(kinds[k], part " ") == 1) return 1
  return 0
}
function binding(what, narrow, wide,    key, values, order) {
  key = "binding " narrow "-step"
  for (order in orders) values[order] = best[key, order, 1] / best[key, order, 3] * 1e6
  of_orders("binding, " what ": us a parameter", values, "at most", what == "plain" ? 3 : 8)
  key = "binding " wide "-step"
  ratio("binding, " what ", 512 x 512: of the step", key, 1, key, 2, "at most", 0.01)
}
function muon(    k, key, shape, what, goal) {
  for (k = 1; k <= count; ++k) {
    key = kinds[k]
    if (key !~ /^muon ours-(fp32|bf16)-/) continue
    what = substr(key, 11, 4); shape = substr(key, 16)
    goal = what == (bf16 == "none" ? "fp32" : "bf16") && bf16 != "amx" ? 0.95 : ""
    ratio("Muon resident, " what " " shape ": of torch.optim.Muon", key, 1,
      "muon torch-" what "-" shape, 1, "at most", goal)
  }
  agrees("Muon: weights beside torch.optim.Muon in fp32", "muon ours-check-" checked)
}
function gpt(    same) {
  ratio("paged through Python: rate of the C++ engine's", "gpt cpp-step", 1, "gpt python-step", 1,
    "at least", 0.98)
  ratio("checkpoint=reference: of a snapshot from C++", "gpt python-snapshot", 1,
    "gpt cpp-snapshot", 1, "at most", 1.1)
  same = best["gpt python-sum", "check", 1] == best["gpt cpp-sum", "check", 1]
  verdict("paged through Python: weights' bits are the C++ engine's", same, "at least", 1, "")
}
# The disk's: the best of its mixes moves as many bytes as a step does.
function adamw(    order, k, disk, rate, cpu, values, step, bytes) {
  for (order in orders) {
    disk = 0
    for (k = 1; k <= count; ++k) if (kinds[k] ~ /^adamw disk-/ && (kinds[k], order) in seen) {
      rate = (best[kinds[k], order, 5] + best[kinds[k], order, 6]) / best[kinds[k], order, 1]
      if (rate > disk) disk = rate
    }
    step = best["adamw ours-paged", order, 1]
    bytes = best["adamw ours-paged", order, 2] + best["adamw ours-paged", order, 3]
    cpu = best["adamw ours-resident", order, 1]
    of_disk[order] = bytes / disk / step
    of_cpu[order] = cpu / step
    values[order] = of_disk[order] > of_cpu[order] ? of_disk[order] : of_cpu[order]
  }
  of_orders("AdamW paged: of its bound", values, "at least", 0.9)
  of_orders("  the disk alone, of a step", of_disk, "at least", "")
  of_orders("  the processors alone (state resident), of a step", of_cpu, "at least", "")
  ratio("AdamW paged: times DeepSpeed's speed, default aio", "adamw deepspeed-default", 1,
    "adamw ours-paged", 1, "at least", 1.6)
  ratio("AdamW paged: times DeepSpeed's speed, tuned aio", "adamw deepspeed-tuned", 1,
    "adamw ours-paged", 1, "at least", "")
  ratio("AdamW resident: of torch.optim.AdamW(fused=True)", "adamw ours-resident", 1,
    "adamw torch-fused", 1, "at most", 1.5)
  agrees("AdamW: weights beside torch.optim.AdamW", "adamw ours-check")
  agrees("AdamW: DeepSpeed's weights beside torch.optim.AdamW", "adamw deepspeed-check")
}
function save() {
  ratio("state_dict() and dcp.save: of torch's time", "save ours-save", 1, "save torch-save", 1,
    "at most", 2.5)
  ratio("state_dict() and dcp.save: of torch's memory", "save ours-save", 2, "save torch-save", 2,
    "at most", 0.1)
}
function load() {
  ratio("load_into() of 1 GiB from the disk: rate of safetensors'", "load both-theirs", 1,
    "load both-ours", 1, "at least", 0.9)
  ratio("load_into() of 1 GiB from the disk: of fio's rate", "load both-disk", 1,
    "load both-ours", 1, "at least", 0.9)
  verdict("load_into(): the bits that safetensors loads", best["load both-same", "check", 1],
    "at least", 1, "")
}
function memory(    key, used, gradients, budget, state) {
  key = "memory run-run"
  used = best[key, "once", 1]; gradients = best[key, "once", 2]
  budget = best[key, "once", 3]; state = best[key, "once", 4]
  verdict("memory of a run: of budget + 64 MiB + gradients",
    used / (budget + 64 * 1048576 + gradients), "at most", 1,
    sprintf("%.0f MiB beside the budget and gradients", (used - budget - gradients) / 1048576))
  verdict("memory saved, of the state", (state - used + gradients) / state, "at least", "",
    sprintf("plan() promised %.4g", (state - best[key, "once", 5]) / state))
  used = best["memory torch-torch", "once", 1]
  verdict("memory of a run, state resident: of torch.optim.AdamW's",
    used > 0 ? best["memory resident-resident", "once", 1] / used : "", "at most", 1.05, "")
}
BEGIN { orders["there"] = 1; orders["back"] = 1 }
END {
  for (k = 1; k <= count; ++k) if (sub(/^muon ours-check-/, "", kinds[k])) checked = kinds[k]
  printf "%d rounds in each order; the worse of [there, back]\n", rounds
  if (has("binding")) {
    binding("plain", "plain", "wide-plain")
    binding("DTensor", "dtensor", "wide-dtensor")
  }
  if (has("muon")) muon()
  if (has("gpt")) gpt()
  if (has("adamw")) adamw()
  if (has("save")) save()
  if (has("load")) load()
  if (has("memory")) memory()
  for (k = 1; k <= count; ++k) {
    if (!there(kinds[k])) continue
    if (kinds[k] ~ /^binding /) continue
    times = times (times == "" ? "" : ",\n") sprintf("    \"%s\": [%.6g, %.6g]", kinds[k],
      best[kinds[k], "there", 1], best[kinds[k], "back", 1])
  }
  print "{\n  \"rounds\": " rounds ",\n  \"bf16\": \"" bf16 "\",\n  \"goals\": {\n" body \
    "\n  },\n  \"seconds\": {\n" times "\n  }\n}" >json
  exit failures > 0
}
