# KIND ROWS COLS CORES SECONDS CPU, in rounds: a table, and the ratios that docs/performance.md states.
{
  place = $2 "x" $3 " " $4
  if (!(place in known)) { known[place] = 1; places[++count] = place }
  if (!(($1, place) in rounds_of) && !($1 in seen)) { seen[$1] = 1; kinds[++all] = $1 }
  took[$1, place, ++rounds_of[$1, place]] = $5
  worked[$1, place, rounds_of[$1, place]] = $6
  short = $2 < $3 ? $2 : $3; long = $2 < $3 ? $3 : $2
  # Of the standard form, nothing left out; peaks are given for 10^9 of them.
  gflop[place] = 5 * (4 * short * short * long + 2 * short * short * short) / 1e9
}
function has(kind, place) { return (kind, place) in rounds_of }
function middle(kind, place,    i, values) {
  for (i = 1; i <= rounds_of[kind, place]; ++i) values[i] = took[kind, place, i]
  return median(values, rounds_of[kind, place])
}
# The kind with the least median; "" where there is none.
function best(list, place,    names, i, n, found) {
  n = split(list, names, " ")
  found = ""
  for (i = 1; i <= n; ++i)
    if (has(names[i], place) && (found == "" || middle(names[i], place) < middle(found, place)))
      found = names[i]
  return found
}
# How often faster than another, round by round.
function ratio(name, slow, fast, place,    i, n, values, value) {
  if (slow == "" || fast == "") return
  n = rounds_of[slow, place]
  if (rounds_of[fast, place] < n) n = rounds_of[fast, place]
  for (i = 1; i <= n; ++i) values[i] = took[slow, place, i] / took[fast, place, i]
  value = median(values, n)
  tell(name " (" fast " to " slow ")", name, place, value)
  # Of threads that wait by spinning it says nothing.
  if (place !~ / 1$/) return
  for (i = 1; i <= n; ++i) values[i] = worked[slow, place, i] / worked[fast, place, i]
  value = median(values, n)
  tell("  by CPU time", name "_by_cpu", place, value)
}
function tell(text, name, place, value) {
  printf "  %-66s %5.2f [%.2f-%.2f]\n", text, value, least, most
  body = body (body == "" ? "" : ",\n") sprintf("  \"%s %s\": {\"ratio\": %.6g, \"spread\": " \
    "[%.6g, %.6g]}", name, place, value, least, most)
}
END {
  ours = "standard-fp32 gram-fp32 standard-real gram-real standard-emulated gram-emulated"
  for (p = 1; p <= count; ++p) {
    place = places[p]
    split(place, parts, " ")
    printf "%s on %s core%s, %.1f GFLOP in standard form\n", parts[1], parts[2],
      (parts[2] == 1 ? "" : "s"), gflop[place]
    for (k = 1; k <= all; ++k) {
      kind = kinds[k]
      if (!has(kind, place)) continue
      seconds = middle(kind, place)
      if (kind ~ /^peak/) {
        printf "  %-22s %38.0f GFLOP/s\n", kind, 1 / seconds
        body = body (body == "" ? "" : ",\n") sprintf("  \"%s %s\": {\"gflops\": %.6g}", kind,
          place, 1 / seconds)
        continue
      }
      printf "  %-22s %9.1f ms [%.1f-%.1f] %8.0f GFLOP/s\n", kind, seconds * 1e3, least * 1e3,
        most * 1e3, gflop[place] / seconds
      body = body (body == "" ? "" : ",\n") sprintf("  \"%s %s\": {\"seconds\": %.6g, " \
        "\"spread\": [%.6g, %.6g]}", kind, place, seconds, least, most)
    }
    fastest = best(ours, place)
    libraries = best("onednn-fp32 openblas-fp32", place)
    ratio("vs_standard_fp32", libraries, fastest, place)
    ratio("fp32_vs_standard_fp32", libraries, best("standard-fp32 gram-fp32", place), place)
    ratio("same_form_vs_standard_fp32", libraries, "standard-fp32", place)
    ratio("vs_torch_muon", best("torch-muon", place), fastest, place)
    ratio("as_torch_means_it_vs_torch_muon", best("torch-muon", place),
      best("standard-real standard-emulated", place), place)
    ratio("vs_gram", best("deepspeed-gram torch-gram-fp32 torch-gram-bf16", place), fastest, place)
    for (k = split(ours, names, " "); k > 0; --k) {
      kind = names[k]
      peak = kind ~ /-real$/ ? "peak-real" : "peak-fp32"
      if (!has(kind, place) || !has(peak, place) || kind !~ /^standard/) continue
      value = gflop[place] / middle(kind, place) * middle(peak, place)
      least = most = value
      tell("of_peak_" kind ", operations of the plain form counted", "of_peak_" kind, place, value)
    }
  }
  for (p = 1; p <= count; ++p) {
    split(places[p], parts, " ")
    two = parts[1] " 2"
    if (parts[2] != 1 || !(two in known)) continue
    for (k = split(ours, names, " "); k > 0; --k) {
      if (!has(names[k], places[p]) || !has(names[k], two)) continue
      n = rounds_of[names[k], two]
      for (i = 1; i <= n; ++i) values[i] = took[names[k], places[p], i] / took[names[k], two, i]
      value = median(values, n)
      tell("two_cores " names[k] " " parts[1], "two_cores_" names[k], parts[1], value)
    }
  }
  print "{\n" body "\n}" >json
}
