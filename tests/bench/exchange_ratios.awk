# Of tests/bench/exchange's lines (ranks, bytes a rank, kind, seconds), in rounds: medians, and how
# many times as fast as gloo, within a round. With ratios.awk.
{
  place = $1 " " $2
  if (!(place in seen)) { seen[place] = 1; order[++places] = place }
  n = ++rounds[place, $3]
  seconds[place, $3, n] = $4
}
function show(place, kind,    i, values, n, middle) {
  n = rounds[place, kind]
  if (n == 0) return
  for (i = 1; i <= n; ++i) values[i] = seconds[place, kind, i]
  middle = median(values, n)
  printf "  %-8s %10.3f ms [%.3f-%.3f]", kind, middle * 1e3, least * 1e3, most * 1e3
  if (kind != "gloo" && rounds[place, "gloo"] == n) {
    for (i = 1; i <= n; ++i) values[i] = seconds[place, "gloo", i] / seconds[place, kind, i]
    middle = median(values, n)
    printf "   %.2f x gloo's speed [%.2f-%.2f]", middle, least, most
  }
  print ""
}
END {
  for (k = 1; k <= places; ++k) {
    split(order[k], parts, " ")
    printf "%d ranks, each with %.3f MiB for all\n", parts[1], parts[2] / 1048576
    show(order[k], "memory")
    show(order[k], "network")
    show(order[k], "gloo")
  }
}
