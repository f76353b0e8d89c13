# Lines "elementwise KIND CORES ELEMS SECONDS CPU" and "step KIND CORES ELEMS SECONDS CPU COMPUTE READ
# WRITTEN SENT PEAK DISK", in rounds.
BEGIN {
  # Bytes an element: what is read and written; a store reads its line first.
  bytes["triad"] = 16; bytes["adamw"] = 28; bytes["momentum"] = 20; bytes["apply"] = 12
  bytes["norm"] = bytes["plain-sum"] = 4
  bytes["torch-adamw"] = bytes["deepspeed-adam"] = 28
}
{
  place = $2 ($1 == "step" ? "-step " : " ") $3
  if (!(place in rounds_of)) { order[++count] = place; what[place] = $1 }
  n = ++rounds_of[place]
  elems[place] = $4
  for (i = 5; i <= NF; ++i) value[place, n, i - 4] = $i
}
function column(place, number,    i, values) {
  for (i = 1; i <= rounds_of[place]; ++i) values[i] = value[place, i, number]
  return median(values, rounds_of[place])
}
function figure(name, middle) {
  body = body (body == "" ? "" : ",\n") sprintf("  \"%s\": {\"value\": %.6g, \"spread\": " \
    "[%.6g, %.6g]}", name, middle, least, most)
}
# How many times the rate, in bytes, of another; `by`: 1 the time, 2 the CPU's.
function rate(name, fast, slow, cores, by,    a, b, i, n, values, middle) {
  a = fast " " cores; b = slow " " cores
  if (!(a in rounds_of) || !(b in rounds_of)) return
  n = rounds_of[a] < rounds_of[b] ? rounds_of[a] : rounds_of[b]
  for (i = 1; i <= n; ++i)
    values[i] = bytes[fast] / value[a, i, by] / (bytes[slow] / value[b, i, by])
  middle = median(values, n)
  printf "  %-44s %5.2f [%.2f-%.2f]\n", name " on " cores (by == 2 ? ", by CPU time" : ""), middle,
    least, most
  figure(name " " cores (by == 2 ? " cpu" : ""), middle)
}
function of_rounds(name, unit, places, number, other, to, scale,    i, n, values, middle) {
  n = rounds_of[places]
  for (i = 1; i <= n; ++i)
    values[i] = value[places, i, number] / (other == "" ? 1 : value[other, i, to]) * scale
  middle = median(values, n)
  printf "  %-44s %8.3f %s [%.3f-%.3f]\n", name, middle, unit, least, most
  figure(name, middle)
}
END {
  print "elementwise, GB/s of what is read and written (a store reads its line first)"
  for (k = 1; k <= count; ++k) {
    place = order[k]
    if (what[place] != "elementwise") continue
    split(place, parts, " ")
    seconds = column(place, 1)
    moved = bytes[parts[1]] * elems[place] / 1e9
    printf "  %-16s on %s %10.2f [%.2f-%.2f]\n", parts[1], parts[2], moved / seconds, moved / most,
      moved / least
    cores[parts[2]] = 1
  }
  for (core in cores)
    for (by = 1; by <= 2; ++by) {
      rate("adamw_vs_triad", "adamw", "triad", core, by)
      rate("momentum_vs_triad", "momentum", "triad", core, by)
      rate("apply_vs_triad", "apply", "triad", core, by)
      rate("norm_vs_plain_sum", "norm", "plain-sum", core, by)
      rate("adamw_vs_torch_fused", "adamw", "torch-adamw", core, by)
      rate("adamw_vs_deepspeed", "adamw", "deepspeed-adam", core, by)
    }
  for (k = 1; k <= count; ++k) {
    place = order[k]
    if (what[place] != "step") continue
    split(place, parts, " ")
    sub(/-step$/, "", parts[1])
    printf "a step of %s, %.1f million parameters, %s cores\n", parts[1], elems[place] / 1e6, parts[2]
    of_rounds(parts[1] "_step_s", "s", place, 1, "", 0, 1)
    of_rounds(parts[1] "_cpu_s", "s", place, 2, "", 0, 1)
    of_rounds(parts[1] "_compute_s", "s", place, 3, "", 0, 1)
    of_rounds(parts[1] "_read_gb", "GB", place, 4, "", 0, 1e-9)
    of_rounds(parts[1] "_written_gb", "GB", place, 5, "", 0, 1e-9)
    of_rounds(parts[1] "_sent_gb", "GB", place, 6, "", 0, 1e-9)
    of_rounds(parts[1] "_peak_gb", "GB", place, 7, "", 0, 1e-9)
    for (i = 1; i <= rounds_of[place]; ++i) {
      value[place, i, 9] = (value[place, i, 4] + value[place, i, 5]) / value[place, i, 8]
      value[place, i, 10] = value[place, i, 3] > value[place, i, 9] ? value[place, i, 3] \
        : value[place, i, 9]
    }
    of_rounds(parts[1] "_disk_alone_s", "s", place, 9, "", 0, 1)
    of_rounds(parts[1] "_of_its_bound", "", place, 10, place, 1, 1)
    bound = column(place, 3) > column(place, 9) ? "compute" : "the disk"
    printf "  bound by %s\n", bound
    if (parts[1] == "muon") muon = place
    else adamw = place
  }
  of_rounds("muon_vs_adamw_time", "", muon, 1, adamw, 1, 1)
  of_rounds("muon_vs_adamw_peak", "", muon, 7, adamw, 7, 1)
  of_rounds("muon_vs_adamw_bytes", "", muon, 4, adamw, 4, 1)
  print "{\n" body "\n}" >json
}
