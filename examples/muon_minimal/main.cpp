// Two ranks train 32 matrices with Muon; most of their state is paged to the folder of the first
// argument. Run it again, or kill it and run it again: it goes on at its last snapshot.
#include <algorithm>
#include <cstdio>
#include <thread>

#include "ebb/libmuon/step/engine.h"

namespace formats = ebb::formats;
namespace libmuon = ebb::libmuon;
namespace libswap = ebb::libswap;
using Matrices = std::vector<std::vector<float>>;
constexpr std::uint32_t kMatrices = 32;

formats::Result<> train(libmuon::Communicator& rank, libswap::IoQueue& io,
                        libswap::SwapDirectory& swap) {
  const formats::Layout::Spec whole{.policy = formats::Policy::replicated, .mesh = {2, 1}};
  libmuon::EngineConfig config{.model = {}, .partition = {.gradients = whole, .weights = whole}};
  config.model.groups = {libmuon::MuonSpec::keller()};
  for (std::uint32_t i = 0; i < kMatrices; ++i)
    config.model.params.push_back({std::to_string(i), {256, 256}, 0});
  config.budget_bytes = 4 << 20;  // all that a rank allocates; its share of the state is 8 MiB
  config.tile_bytes = 64 << 10;
  const auto zeros = [](auto, auto, std::span<float> into) { std::ranges::fill(into, 0.0f); };
  EBB_TRY_ASSIGN(auto engine, libmuon::Engine::open(config, rank, io, swap, {.initial = zeros}));
  Matrices weights(kMatrices, std::vector<float>(256 * 256)), gradients = weights;
  for (std::uint32_t i = 0; i < kMatrices; ++i) EBB_TRY(engine->bind_weights(i, weights[i]));
  EBB_TRY(engine->install_weights());
  for (const std::uint64_t last = engine->step_count() + 10; engine->step_count() < last;) {
    for (std::uint32_t i = 0; i < kMatrices; ++i) {  // towards the identity
      for (std::size_t k = 0; k < weights[i].size(); ++k)
        gradients[i][k] = weights[i][k] - (k % 257 == 0 ? 1.0f : 0.0f);
      EBB_TRY(engine->gradient_ready(i, gradients[i]));
    }
    EBB_TRY_ASSIGN(const auto step, engine->step({}));
    const auto count = static_cast<unsigned long long>(engine->step_count());
    if (rank.rank() == formats::Rank{0}) std::printf("step %llu: %.4f\n", count, step.norm);
  }
  EBB_TRY(engine->snapshot());
  EBB_TRY(engine->wait_snapshot());
  return {};
}

formats::Result<> run(const char* folder) {
  EBB_TRY_ASSIGN(auto disk, libswap::open_backend(libswap::BackendChoice::automatic));
  EBB_TRY_ASSIGN(const auto io, libswap::IoQueue::start(std::move(disk.backend), {}));
  EBB_TRY_ASSIGN(const auto swap, libswap::SwapDirectory::open(*io, folder));
  const auto ranks = libmuon::make_thread_ranks(2);
  formats::Result<> other;
  std::thread peer([&] { other = train(*ranks[1], *io, *swap); });
  const auto mine = train(*ranks[0], *io, *swap);
  peer.join();
  return mine ? other : mine;
}

int main(int argc, char** argv) {
  const auto done = run(argc > 1 ? argv[1] : "swap");
  if (!done) std::fprintf(stderr, "%s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
