# For the benchmarks' tables.
function sorted_into(list, count, from,    i, j, held) {
  for (i = 1; i <= count; ++i) list[i] = from[i]
  for (i = 2; i <= count; ++i) {
    held = list[i]
    for (j = i - 1; j >= 1 && list[j] > held; --j) list[j + 1] = list[j]
    list[j + 1] = held
  }
}
# Sets least and most.
function median(values, count,    list) {
  sorted_into(list, count, values)
  least = list[1]; most = list[count]
  return count % 2 ? list[(count + 1) / 2] : (list[count / 2] + list[count / 2 + 1]) / 2
}
