# Of tests/bench/swap's lines (round, kind, seconds, user s, system s, the queue's thread's s, bytes
# read, bytes written): medians, and ratios within a round. With ratios.awk.
function median_of(kind,    i, values) {
  for (i = 1; i <= rounds; ++i) values[i] = seconds[kind, i]
  return median(values, rounds)
}
function write_json(line) { body = body (body == "" ? "" : ",\n") "  " line }
# One of our figures from a value for each round.
function figure(name, values, digits,    middle) {
  middle = median(values, rounds)
  printf "%-32s %8.*f [%.*f-%.*f]\n", name, digits, middle, digits, least, digits, most
  write_json(sprintf("\"%s\": %.6g", name, middle))
  write_json(sprintf("\"%s_spread\": [%.6g, %.6g]", name, least, most))
}
# One that nothing could be divided by.
function no_figure(name) {
  printf "%-32s %8s\n", name, "-"
  write_json("\"" name "\": null")
}
# How many times as fast the first is.
function speed(name, kind, other,    i, values) {
  if (!((other, 1) in seconds) || !((kind, 1) in seconds)) { write_json("\"" name "\": null"); return }
  for (i = 1; i <= rounds; ++i) {
    if (seconds[kind, i] <= 0) { no_figure(name); return }
    values[i] = seconds[other, i] / seconds[kind, i]
  }
  figure(name, values, 2)
}
function per(value, by) { return by > 0 ? value / by : 0 }
function faster(one, other) { return median_of(one) <= median_of(other) ? one : other }
{
  if (!($2 in known)) { known[$2] = 1; kinds[++count] = $2 }
  seconds[$2, $1] = $3; user[$2, $1] = $4; kernel[$2, $1] = $5; queue[$2, $1] = $6
  moved[$2, $1] = $7 + $8
}
END {
  printf "%d bytes of state, %d rounds; median [least-most]\n", bytes, rounds
  printf "%-20s %-24s %6s %10s %10s\n", "", "seconds", "GB/s", "user ns/B", "system"
  for (k = 1; k <= count; ++k) {
    kind = kinds[k]; used = 0; system_ = 0; all = 0
    for (i = 1; i <= rounds; ++i) {
      used += user[kind, i]; system_ += kernel[kind, i]; all += moved[kind, i]
    }
    middle = median_of(kind)
    line = sprintf("%-20s %-24s %6.2f", kind, sprintf("%.3f [%.3f-%.3f]", middle, least, most),
      per(moved[kind, 1], middle) / 1e9)
    if (used + system_ > 0 && all > 0) line = line sprintf(" %10.3f %10.3f", used / all * 1e9, system_ / all * 1e9)
    print line
    times = times (times == "" ? "" : ", ") sprintf("\"%s\": {\"median\": %.6g, \"least\": %.6g, " \
      "\"most\": %.6g}", kind, middle, least, most)
    if (kind ~ /^limit/) limit = limit == "" ? kind : faster(limit, kind)
  }
  print ""
  write_json(sprintf("\"state_bytes\": %d", bytes))
  write_json(sprintf("\"rounds\": %d", rounds))
  write_json("\"limit\": \"" limit "\"")
  speed("step_vs_limit", "step", limit)
  speed("bare_vs_limit", "bare", "bare-limit")
  speed("step_vs_deepspeed_default", "step", "ds-default")
  tuned = "ds-tuned"
  if ((tuned, 1) in seconds) {
    tuned = faster(faster(tuned, "ds-tuned-huge"), "ds-default-huge")
    write_json("\"deepspeed_tuned\": \"" tuned "\"")
  }
  speed("step_vs_deepspeed_tuned", "step", tuned)
  speed("resident25_vs_deepspeed_default", "resident25", "ds-default")
  speed("resident25_vs_deepspeed_tuned", "resident25", tuned)
  speed("resident25_vs_mlp_offload", "resident25", "ds-mlp")
  speed("deepspeed_default_vs_limit", "ds-default", limit)
  speed("threads_vs_step", "threads", "step")
  speed("predicted_vs_step", "step", "probe")
  for (i = 1; i <= rounds; ++i) {
    if (seconds["unchecked", i] <= 0 || moved["step", i] <= 0) divides = "no"
    cost[i] = per(seconds["step", i], seconds["unchecked", i]) - 1
    thread[i] = per(queue["step", i], moved["step", i] / 1e9)
    own += user["bare", i]
  }
  if (divides == "no") {
    no_figure("checksum_cost"); no_figure("io_thread_cores_per_gb_per_s")
  } else {
    figure("checksum_cost", cost, 3)
    figure("io_thread_cores_per_gb_per_s", thread, 4)
  }
  # User time is counted in clock ticks: of one round it says little.
  own = own / rounds / (bytes / 4194304) * 1e6
  printf "%-32s %8.1f\n", "own_user_us_per_tile", own
  write_json(sprintf("\"own_user_us_per_tile\": %.6g", own))
  write_json("\"left_out\": " (left_out == "" ? "null" : "\"" left_out "\""))
  print "{\n" body ",\n  \"seconds\": {" times "}\n}" >json
}
