#include "tests/libmuon/covering/rank_run.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <thread>

#include "ebb/formats/core/bf16.h"
#include "ebb/libswap/queue/io_queue.h"
#include "tests/libmuon/covering/runs.h"
#include "tests/libmuon/support/world.h"

namespace ebb::test {
namespace {

using formats::bf16_to_f32;
using formats::f32_to_bf16;
using libmuon::Communicator;
using libmuon::Engine;
using libmuon::StatePlan;

constexpr libmuon::StepArgs kArgs{.inv_scale = 0.5, .max_norm = 20};
constexpr std::byte kPoison{0xff};  // four of them are a NaN in fp32, two in bf16

float number_of(DType dtype, float value) {
  return dtype == DType::bf16 ? bf16_to_f32(f32_to_bf16(value)) : value;
}

// A rank's pieces of all parameters, with NaN between them: what is not a piece stays as it is.
class Bucket {
 public:
  void add(std::uint64_t elems, DType dtype) {
    places_.push_back({bytes_.size() + kGap, elems, dtype});
    bytes_.resize(formats::align_up(bytes_.size() + kGap + elems * bytes_of(dtype), kGap), kPoison);
  }
  libswap::Buffer piece(std::size_t param) {
    const Place& place = places_[param];
    const auto bytes = std::span(bytes_).subspan(place.first, place.elems * bytes_of(place.dtype));
    return libswap::buffer_of(bytes).as(place.dtype);
  }
  float at(std::size_t param, std::uint64_t i) {
    const libswap::Buffer buffer = piece(param);
    return buffer.dtype == DType::bf16 ? bf16_to_f32(buffer.bf16s()[i]) : buffer.floats()[i];
  }
  void set(std::size_t param, std::uint64_t i, float value) {
    const libswap::Buffer buffer = piece(param);
    if (buffer.dtype == DType::bf16)
      buffer.bf16s()[i] = f32_to_bf16(value);
    else
      buffer.floats()[i] = value;
  }
  bool padding_is_poison() const {
    std::uint64_t end = 0;
    for (const Place& place : places_) {
      const auto gap = std::span(bytes_).subspan(end, place.first - end);
      if (std::ranges::any_of(gap, [](std::byte byte) { return byte != kPoison; })) return false;
      end = place.first + place.elems * bytes_of(place.dtype);
    }
    return true;
  }

 private:
  static constexpr std::uint64_t kGap = 64;
  struct Place {
    std::uint64_t first = 0;  // in bytes
    std::uint64_t elems = 0;
    DType dtype = DType::f32;
  };
  std::vector<Place> places_;
  std::vector<std::byte> bytes_;
};

class CoveringRank {
 public:
  CoveringRank(const Leg& leg, const Run& run, Communicator& ranks, libswap::FaultPlan& faults)
      : leg_(leg), run_(run), ranks_(ranks), faults_(faults) {}

  Result<> run(libswap::IoQueue& io, libswap::SwapDirectory& swap) {
    EBB_TRY_ASSIGN(engine_, Engine::open(run_.config, ranks_, io, swap, noisy_weights, nullptr));
    for (std::uint32_t param = 0; param < params(); ++param) {
      const auto& spec = run_.config.model.params[param];
      gradients_.add(plan().gradients().local_elems(param, ranks_.rank()), spec.gradient);
      weights_.add(plan().weights().local_elems(param, ranks_.rank()), spec.weight);
    }
    for (std::uint32_t param = 0; param < params(); ++param)
      if (plan().here(param)) EBB_TRY(engine_->bind_weights(param, weights_.piece(param)));
    EBB_TRY(engine_->install_weights());
    while (engine_->step_count() < leg_.until) {
      const bool stops = leg_.trouble == Trouble::stop && engine_->step_count() + 1 == leg_.until;
      EBB_TRY(stops ? step_that_stops() : step());
    }
    EBB_TRY_ASSIGN(const bool begun, engine_->snapshot());
    if (!begun) return Error{Code::busy, "no snapshot was begun"};
    EBB_TRY(engine_->wait_snapshot());
    if (leg_.trouble == Trouble::kill) return die();
    return compare();
  }

 private:
  std::uint32_t params() const {
    return static_cast<std::uint32_t>(run_.config.model.params.size());
  }
  const StatePlan& plan() const { return engine_->state_plan(); }
  bool unlucky() const { return index_of(ranks_.rank()) == leg_.draw % ranks_.world(); }

  // The halves of what is added, and the parts of a sum, make what is handed in otherwise: exactly,
  // also in bf16.
  Result<> hand_in(std::uint64_t step) {
    const bool added = run_.config.partition.hand_in == libmuon::HandIn::added;
    for (std::uint32_t batch = 0; batch < (added ? 2u : 1u); ++batch)
      for (std::uint32_t i = 0; i < params(); ++i) {
        const std::uint32_t param = batch == 0 ? params() - 1 - i : i;
        if (!plan().here(param)) continue;
        if (const auto how = absent(param, step)) {
          if (batch == 0) EBB_TRY(engine_->no_gradient(param, *how));
          continue;
        }
        fill(param, step, added ? 0.5f : part_of_sum());
        if (added && (batch == 0 || param % 2 == 0)) {
          EBB_TRY_ASSIGN(const auto there, engine_->add_gradient(param, gradients_.piece(param)));
          there.wait();
        } else {
          EBB_TRY(engine_->gradient_ready(param, gradients_.piece(param)));
        }
      }
    return {};
  }
  // As a router leaves out experts: other parameters in each step, of any optimizer, and the first
  // one of all from the first step on.
  static std::optional<libmuon::WithoutGradient> absent(std::uint32_t param, std::uint64_t step) {
    const std::uint64_t turn = 5 * step + param;
    if (step < 3 ? turn % 5 != 0 : turn % 7 != 3) return std::nullopt;
    return turn % 2 == 0 ? libmuon::WithoutGradient::untouched : libmuon::WithoutGradient::zero;
  }
  // Of copies: 1, then 1 and -1 by turns, and 0 where that would not add up to 1.
  float part_of_sum() const {
    const std::uint32_t copy = index_of(ranks_.rank()) / (run_.ranks / run_.copies);
    if (run_.config.partition.hand_in != libmuon::HandIn::partial || copy == 0) return 1;
    if (copy % 2 == 0) return -1;
    return copy + 1 < run_.copies ? 1 : 0;
  }
  void fill(std::uint32_t param, std::uint64_t step, float scale) {
    const FlatRange held = plan().gradients().held(param, ranks_.rank());
    const DType dtype = run_.config.model.params[param].gradient;
    for (std::uint64_t i = 0; i < held.count; ++i)
      gradients_.set(param, i, scale * number_of(dtype, noise(param, step, held.first + i)));
  }

  Result<> step() {
    EBB_TRY(hand_in(engine_->step_count() + 1));
    EBB_TRY(engine_->step(kArgs));
    return {};
  }

  // No rank's disk can be read until all have stopped; where nothing is paged, none does.
  Result<> step_that_stops() {
    EBB_TRY(hand_in(engine_->step_count() + 1));
    EBB_TRY(ranks_.agree(0));
    faults_.add({.on = libswap::FaultOn::read,
                 .count = libswap::FaultPlan::kForEver,
                 .path_part = compose("rank-0000{}-of", index_of(ranks_.rank()))});
    EBB_TRY(ranks_.agree(0));
    const auto stopped = engine_->step(kArgs);
    EBB_TRY(ranks_.agree(0));
    faults_.clear();
    EBB_TRY(ranks_.agree(0));
    if (stopped) return {};
    if (unlucky()) std::ofstream(leg_.directory / "stopped") << stopped.error().message;
    EBB_TRY(engine_->continue_step());
    return {};
  }

  // In the middle of a step: of all ranks where they are threads, else of one.
  Result<> die() {
    EBB_TRY(hand_in(engine_->step_count() + 1));
    EBB_TRY(engine_->begin_step(kArgs));
    if (unlucky()) {
      ::usleep(static_cast<useconds_t>(leg_.draw / 8 % 2000));
      ::raise(SIGKILL);
    }
    EBB_TRY(engine_->wait_step());
    EBB_TRY(ranks_.agree(0));
    return Error{Code::state, "a rank was to die and did not"};
  }

  // What this rank holds is what the store says; one of the ranks tells its hash.
  Result<> compare() {
    EBB_TRY_ASSIGN(const auto pinned, engine_->open_export());
    EBB_TRY_ASSIGN(const auto checkpoint, pinned.describe());
    const auto tensors = tensors_of(*checkpoint);
    for (std::uint32_t param = 0; param < params(); ++param) {
      const auto& spec = run_.config.model.params[param];
      const auto& master = tensors.at(spec.name + " master");
      const FlatRange held = plan().weights().held(param, ranks_.rank());
      for (std::uint64_t i = 0; i < held.count; ++i)
        if (weights_.at(param, i) != number_of(spec.weight, master[held.first + i]))
          return Error{Code::state,
                       compose("element {} of {} is not its master's", held.first + i, spec.name)};
    }
    if (!gradients_.padding_is_poison() || !weights_.padding_is_poison())
      return Error{Code::state, "what lies between pieces was written"};
    if (ranks_.rank() == Rank{0}) std::ofstream(leg_.directory / "hash") << hash_of(tensors);
    return {};
  }

  // FNV-1a over names and bits; by parameter and state, wherever they lie.
  static std::string hash_of(const std::map<std::string, std::vector<float>>& tensors) {
    std::uint64_t hash = 0xcbf29ce484222325;
    const auto take = [&](std::uint32_t bits) { hash = (hash ^ bits) * 0x100000001b3; };
    for (const auto& [name, values] : tensors) {
      for (const char letter : name) take(static_cast<unsigned char>(letter));
      for (const float value : values) take(std::bit_cast<std::uint32_t>(value));
    }
    return compose("{} of {} states", hash, tensors.size());
  }

  const Leg& leg_;
  const Run& run_;
  Communicator& ranks_;
  libswap::FaultPlan& faults_;
  std::unique_ptr<Engine> engine_;
  Bucket gradients_, weights_;
};

Exit tell(const Result<>& done, Rank rank) {
  if (done) return Exit::well;
  const bool peer = done.error().code == Code::peer;
  if (!peer) std::fprintf(stderr, "rank %u: %s\n", index_of(rank), done.error().message.c_str());
  return peer ? Exit::peer : Exit::error;
}

Result<std::unique_ptr<libswap::IoQueue>> open_queue(
    const std::shared_ptr<libswap::FaultPlan>& faults) {
  EBB_TRY_ASSIGN(auto chosen, libswap::open_backend(libswap::BackendChoice::automatic));
  return libswap::IoQueue::start(libswap::make_fault_backend(std::move(chosen.backend), faults),
                                 {});
}

}  // namespace

std::vector<std::string> Leg::words() const {
  std::vector<std::string> all = {directory.string(), std::to_string(until),
                                  std::to_string(static_cast<int>(trouble)), std::to_string(draw)};
  for (const std::uint32_t value : row) all.push_back(std::to_string(value));
  return all;
}

Leg Leg::from(const std::vector<std::string>& words) {
  Leg leg{.until = std::stoull(words.at(1)),
          .trouble = static_cast<Trouble>(std::stoi(words.at(2))),
          .draw = std::stoull(words.at(3)),
          .directory = words.at(0)};
  for (std::size_t i = 4; i < words.size(); ++i)
    leg.row.push_back(static_cast<std::uint32_t>(std::stoul(words[i])));
  return leg;
}

Exit run_process(const Leg& leg, Communicator& ranks) {
  const auto all = [&]() -> Result<> {
    const auto faults = std::make_shared<libswap::FaultPlan>();
    EBB_TRY_ASSIGN(const auto io, open_queue(faults));
    EBB_TRY_ASSIGN(const auto swap,
                   libswap::SwapDirectory::open(*io, leg.directory / "swap", ranks));
    const Run run = run_of(leg.row);
    return CoveringRank(leg, run, ranks, *faults).run(*io, *swap);
  };
  return tell(all(), ranks.rank());
}

Exit run_threads(const Leg& leg) {
  const Run run = run_of(leg.row);
  const auto faults = std::make_shared<libswap::FaultPlan>();
  auto chosen = libswap::open_backend(libswap::BackendChoice::automatic);
  if (!chosen) return tell(chosen.error(), Rank{0});
  World world(libswap::make_fault_backend(std::move(chosen->backend), faults),
              leg.directory / "swap", run.ranks);
  const auto answers = world.run([&](Communicator& ranks) {
    return CoveringRank(leg, run, ranks, *faults).run(world.io(), world.swap());
  });
  Exit worst = Exit::well;
  for (std::uint32_t rank = 0; rank < run.ranks; ++rank) {
    const Exit exit = tell(answers[rank], Rank{rank});
    if (worst != Exit::error && exit != Exit::well) worst = exit;
  }
  return worst;
}

}  // namespace ebb::test
