// The order of a group's parameters under round_robin_gradients: dealt to the ranks like cards, so
// that the flat buffer begins with those of rank 0. Internal to formats/deepspeed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace ebb::formats::deepspeed {

// Calls visit(from, to) for each parameter: its place in the model's order and in the dealt one.
template <typename Visit>
void deal(std::size_t count, std::uint32_t world, Visit visit) {
  std::size_t to = 0;
  for (std::size_t rank = 0; rank < world && rank < count; ++rank)
    for (std::size_t from = rank; from < count; from += world) visit(from, to++);
}

template <typename T>
std::vector<T> dealt(std::vector<T> params, std::uint32_t world) {
  std::vector<T> out(params.size());
  deal(params.size(), world,
       [&](std::size_t from, std::size_t to) { out[to] = std::move(params[from]); });
  return out;
}
template <typename T>
std::vector<T> dealt_back(std::vector<T> params, std::uint32_t world) {
  std::vector<T> out(params.size());
  deal(params.size(), world,
       [&](std::size_t from, std::size_t to) { out[from] = std::move(params[to]); });
  return out;
}

}  // namespace ebb::formats::deepspeed
