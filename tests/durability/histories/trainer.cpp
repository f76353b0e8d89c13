#include "tests/durability/histories/trainer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdio>
#include <numeric>
#include <thread>

#include "ebb/formats/core/bf16.h"
#include "tests/durability/histories/configuration.h"
#include "tests/libmuon/support/bound_masters.h"
#include "tests/libmuon/support/by_name.h"
#include "tests/libmuon/support/elements.h"

namespace ebb::test {
namespace {

using formats::bf16_to_f32;
using formats::f32_to_bf16;
using libmuon::HandIn;
using libmuon::WithoutGradient;

}  // namespace

std::string exactly(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.17g", value);
  return text.data();
}

Masters initial_masters(const libmuon::ModelSpec& model) {
  Masters all;
  for (std::uint32_t param = 0; param < model.params.size(); ++param) {
    auto& values = all.emplace_back(formats::volume(model.params[param].shape));
    noisy_bf16_weights(param, {0, values.size()}, values);
  }
  return all;
}

HistoryTrainer::HistoryTrainer(const Meaning& meaning, const Start& start,
                               const libmuon::EngineConfig& config, libmuon::Communicator& ranks)
    : meaning_(meaning), start_(start), config_(config), ranks_(ranks) {}

bool HistoryTrainer::keeps(std::uint32_t param) const {
  return out_of(config_.model, param) == libmuon::Out::update;
}

Result<> HistoryTrainer::open(libswap::IoQueue& io, libswap::SwapDirectory& swap) {
  EBB_TRY_ASSIGN(
      const auto plan,
      libmuon::StatePlan::make(config_.model, config_.partition, config_.tile_bytes, ranks_.rank(),
                               config_.chunk_bytes, config_.dtypes, config_.stream_above_bytes));
  for (std::uint32_t param = 0; param < params(); ++param) {
    const auto& spec = config_.model.params[param];
    gradients_.emplace_back(nullptr, plan.gradients().local_elems(param, ranks_.rank()),
                            spec.gradient);
    const std::uint64_t elems = plan.weights().local_elems(param, ranks_.rank());
    bound_.emplace_back(nullptr, elems, spec.weight);
    kept_.emplace_back(keeps(param) ? elems : 0);
  }
  EBB_TRY(begin(plan, io, swap));
  return engine_->install_weights();
}

Result<> HistoryTrainer::begin(const libmuon::StatePlan& plan, libswap::IoQueue& io,
                               libswap::SwapDirectory& swap) {
  using libmuon::Engine;
  if (!start_.bound) {
    EBB_TRY_ASSIGN(engine_,
                   Engine::open(config_, ranks_, io, swap, {.initial = noisy_bf16_weights}));
    for (std::uint32_t param = 0; param < params(); ++param)
      if (here(param)) EBB_TRY(engine_->bind_weights(param, bound_[param].buffer()));
    return {};
  }
  std::vector<libswap::Buffer> bound;
  for (std::uint32_t param = 0; param < params(); ++param) {
    fill_weights(plan, param, [param](std::uint64_t element) {
      float value = 0;
      noisy_bf16_weights(param, {element, 1}, {&value, 1});
      return value;
    });
    bound.push_back(bound_[param].buffer());
  }
  EBB_TRY_ASSIGN(engine_, Engine::open(config_, ranks_, io, swap, {.weights = bound}));
  return {};
}

template <typename Value>
void HistoryTrainer::fill_weights(const libmuon::StatePlan& plan, std::uint32_t param,
                                  const Value& value) {
  const std::span<float> into = keeps(param) ? std::span(kept_[param]) : bound_[param].values();
  for_elements(plan.weights(), param, ranks_.rank(),
               [&](std::uint64_t element, std::uint64_t place) { into[place] = value(element); });
  if (!keeps(param)) bound_[param].send().wait();
}

bool HistoryTrainer::write(std::uint64_t step) {
  bool any = false;
  for (std::uint32_t param = 0; param < params(); ++param) {
    if (!is_written(meaning_, param, step)) continue;
    any = true;
    fill_weights(engine_->state_plan(), param,
                 [&](std::uint64_t element) { return written(meaning_, param, step, element); });
  }
  return any;
}

Result<> HistoryTrainer::take_written() {
  std::vector<std::uint32_t> taken;
  for (std::uint32_t param = 0; param < params(); ++param)
    if (!keeps(param)) taken.push_back(param);
  return engine_->take_weights(taken);
}

Result<> HistoryTrainer::read(const std::string& state,
                              const std::map<std::string, std::vector<float>>& wanted,
                              std::string& differing) {
  std::vector<std::uint32_t> have;
  for (std::uint32_t param = 0; param < params(); ++param)
    if (wanted.contains(name_of(param) + " " + state) && !(state == "master" && keeps(param)))
      have.push_back(param);
  ByName found(engine_->state_plan(), have);
  EBB_TRY(engine_->read_state(state, found.buffers()));
  found.for_all([&](std::uint32_t param, std::uint64_t element, float value) {
    const float want = wanted.at(name_of(param) + " " + state)[element];
    if (differing.empty() && value != want)
      differing = compose("{} {}[{}] is {} on rank {}, not {}", name_of(param), state, element,
                          exactly(value), index_of(ranks_.rank()), exactly(want));
  });
  return {};
}

// Of the ranks that the gradients' layout gives the same elements.
Part HistoryTrainer::part_of_sum() const {
  if (start_.hand_in != HandIn::partial) return {};
  if (start_.gradients == Policy::replicated)
    return {.number = index_of(ranks_.rank()), .parts = start_.ranks};
  return {.number = index_of(ranks_.rank()) / (start_.ranks / start_.gradient_copies),
          .parts = start_.gradient_copies};
}

void HistoryTrainer::fill(std::uint32_t param, std::uint64_t step, Part part) {
  const auto values = gradients_[param].values();
  for_elements(engine_->state_plan().gradients(), param, ranks_.rank(),
               [&](std::uint64_t element, std::uint64_t place) {
                 values[place] = gradient_of(meaning_, param, step, element, part);
               });
}

// The last one may be said to be that.
Result<> HistoryTrainer::add_micro_batches(std::uint32_t param, std::uint64_t step) {
  for (std::uint32_t batch = 0; batch < start_.micro_batches; ++batch) {
    fill(param, step, {.number = batch, .parts = start_.micro_batches});
    const libswap::Event there = gradients_[param].send();
    if (batch + 1 == start_.micro_batches && (step + param) % 2 == 0)
      return engine_->gradient_ready(param, gradients_[param].buffer(), there);
    EBB_TRY_ASSIGN(const libswap::Event added,
                   engine_->add_gradient(param, gradients_[param].buffer(), there));
    added.wait();
  }
  return {};
}

Result<> HistoryTrainer::hand_in_one(std::uint32_t param) {
  const std::uint64_t step = engine_->step_count() + 1;
  const Given what = given(meaning_, param, step);
  if (what == Given::untouched) return engine_->no_gradient(param, WithoutGradient::untouched);
  // The same on all ranks of a start, and not in all starts.
  if (what == Given::zero && (step + start_.seed) % 2 == 0)
    return engine_->no_gradient(param, WithoutGradient::zero);
  if (start_.hand_in == HandIn::added) return add_micro_batches(param, step);
  fill(param, step, part_of_sum());
  return engine_->gradient_ready(param, gradients_[param].buffer(), gradients_[param].send());
}

Result<> HistoryTrainer::hand_in(Draws& mine) {
  std::vector<std::uint32_t> order(params());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::reverse(order);  // as backward does
  std::erase_if(order, [this](std::uint32_t param) { return !here(param); });
  if (mine.below(2) == 0)
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[mine.below(i)]);
  std::atomic<std::size_t> next = 0;
  const auto some = [&]() -> Result<> {
    for (std::size_t i = next++; i < order.size(); i = next++) EBB_TRY(hand_in_one(order[i]));
    return {};
  };
  if (start_.hand_in_threads == 1) return some();
  Result<> there;
  std::thread other([&] { there = some(); });
  const Result<> here = some();
  other.join();
  EBB_TRY(there);
  return here;
}

void HistoryTrainer::take_masters(const Masters& of_step) {
  for (std::uint32_t param = 0; param < params(); ++param)
    if (keeps(param))
      for_elements(engine_->state_plan().weights(), param, ranks_.rank(),
                   [&](std::uint64_t element, std::uint64_t place) {
                     kept_[param][place] = of_step[param][element];
                   });
}

void HistoryTrainer::add_updates(std::uint64_t step) {
  for (std::uint32_t param = 0; param < params(); ++param) {
    if (!keeps(param) || given(meaning_, param, step) == Given::untouched) continue;
    const auto updates = bound_[param].fetch();
    for (std::size_t i = 0; i < updates.size(); ++i) kept_[param][i] += updates[i];
  }
}

std::string HistoryTrainer::differing(std::uint32_t param, const Masters& wanted) {
  const auto& spec = config_.model.params[param];
  const std::span<const float> mine =
      keeps(param) ? std::span<const float>(kept_[param]) : bound_[param].fetch();
  const auto as_bound = [&](float master) {
    if (keeps(param) || spec.weight == DType::f32) return master;
    return start_.masters == libmuon::Masters::halves ? away(master)
                                                      : bf16_to_f32(f32_to_bf16(master));
  };
  std::string found;
  for_elements(engine_->state_plan().weights(), param, ranks_.rank(),
               [&](std::uint64_t element, std::uint64_t place) {
                 const float want = as_bound(wanted[param][element]);
                 if (found.empty() && std::bit_cast<std::uint32_t>(mine[place]) !=
                                          std::bit_cast<std::uint32_t>(want))
                   found = compose("{}[{}] is {} on rank {}, not {}", spec.name, element,
                                   exactly(mine[place]), index_of(ranks_.rank()), exactly(want));
               });
  return found;
}

std::string HistoryTrainer::differing(const Masters& wanted) {
  for (std::uint32_t param = 0; param < params(); ++param)
    if (std::string found = differing(param, wanted); !found.empty()) return found;
  return {};
}

}  // namespace ebb::test
