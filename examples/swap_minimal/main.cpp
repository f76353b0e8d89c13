// An optimizer of one's own, SGD with momentum, on state that is mostly on disk, in the folder of
// the first argument. Run it again, or kill it and run it again: it goes on at its last snapshot.
#include <algorithm>
#include <cstdio>

#include "ebb/libswap/space/state_store.h"

using ebb::StateStore;
constexpr std::size_t kMatrices = 32, kElems = 256 * 256;

ebb::Result<> train(const char* folder) {
  std::vector<ebb::libswap::StoredTensor> tensors;
  for (std::size_t i = 0; i < kMatrices; ++i)
    tensors.push_back({"w" + std::to_string(i), {256, 256}, {{"master"}, {"momentum_buffer"}}});
  const auto initial = [](const StateStore::Visit& visit) -> ebb::Result<> {
    EBB_TRY_ASSIGN(const auto w, visit.state<float>("master"));
    std::ranges::fill(w, 1.0f + static_cast<float>(visit.tensor()));
    return {};  // the momentum is zero
  };
  // 4 MiB of memory for 16 MiB of state.
  EBB_TRY_ASSIGN(const auto store, StateStore::open({folder, 4 << 20}, tensors, initial));
  std::printf("%s\n", store->origin().c_str());

  std::vector<std::vector<float>> weights(kMatrices, std::vector<float>(kElems));
  const auto take_weights = [&](const StateStore::Visit& visit) -> ebb::Result<> {
    EBB_TRY_ASSIGN(const auto w, visit.state<float>("master"));
    std::ranges::copy(w, weights[visit.tensor()].begin());
    return {};
  };
  EBB_TRY(store->read_each(take_weights));

  for (const std::uint64_t last = store->step() + 10; store->step() < last;) {
    const auto& gradients = weights;  // of the loss |w|^2 / 2
    const auto update = [&](const StateStore::Visit& visit) -> ebb::Result<> {
      EBB_TRY_ASSIGN(const auto w, visit.state<float>("master"));
      EBB_TRY_ASSIGN(const auto m, visit.state<float>("momentum_buffer"));
      for (std::size_t k = 0; k < w.size(); ++k) {
        m[k] = 0.9f * m[k] + gradients[visit.tensor()][k];
        w[k] -= 0.02f * m[k];
      }
      return take_weights(visit);
    };
    EBB_TRY(store->for_each(store->step() + 1, update));
    const auto step = static_cast<unsigned long long>(store->step());
    std::printf("step %llu: %.4f\n", step, static_cast<double>(weights.back().front()));
  }
  EBB_TRY(store->snapshot());
  EBB_TRY(store->wait_snapshot());
  return {};
}

int main(int argc, char** argv) {
  const auto done = train(argc > 1 ? argv[1] : "swap");
  if (!done) std::fprintf(stderr, "%s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
