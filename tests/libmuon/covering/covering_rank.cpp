#include "tests/libmuon/covering/covering_rank.h"

#include <unistd.h>

#include <bit>
#include <csignal>
#include <fstream>

#include "tests/durability/draws.h"
#include "tests/libmuon/support/bound_masters.h"
#include "tests/libmuon/support/by_name.h"
#include "tests/libmuon/support/elements.h"
#include "tests/libmuon/support/world.h"

namespace ebb::test {
namespace {

using libmuon::Engine;
using libmuon::HandIn;
using libmuon::Out;
using libmuon::WithoutGradient;
using libswap::FaultOn;

constexpr libmuon::StepArgs kArgs{.inv_scale = 0.5, .max_norm = 20};

float in_bf16(float value) { return formats::bf16_to_f32(formats::f32_to_bf16(value)); }

// FNV-1a over names and bits; by parameter and state, wherever they lie.
std::string hash_of(const std::map<std::string, std::vector<float>>& tensors) {
  std::uint64_t hash = 0xcbf29ce484222325;
  const auto take = [&](std::uint32_t bits) { hash = (hash ^ bits) * 0x100000001b3; };
  for (const auto& [name, values] : tensors) {
    for (const char letter : name) take(static_cast<unsigned char>(letter));
    for (const float value : values) take(std::bit_cast<std::uint32_t>(value));
  }
  return compose("{} of {} states", hash, tensors.size());
}

}  // namespace

Result<> CoveringRank::run(libswap::IoQueue& io, libswap::SwapDirectory& swap) {
  EBB_TRY(open(io, swap));
  while (engine_->step_count() < leg_.until)
    EBB_TRY(leg_.trouble == Trouble::stop ? step_that_stops() : step());
  EBB_TRY(engine_->wait_snapshot());
  EBB_TRY_ASSIGN(const bool begun, engine_->snapshot());
  if (!begun) return Error{Code::busy, "no snapshot was begun"};
  EBB_TRY(engine_->wait_snapshot());
  EBB_TRY(masters_->save());
  EBB_TRY(ranks_.agree(0));
  if (leg_.trouble == Trouble::kill) return die();
  return compare();
}

Result<> CoveringRank::open(libswap::IoQueue& io, libswap::SwapDirectory& swap) {
  const libmuon::EngineConfig& config = run_.config;
  EBB_TRY_ASSIGN(said_, Engine::plan(config, ranks_.rank(), run_.wire()));
  EBB_TRY_ASSIGN(
      const auto layouts,
      libmuon::StatePlan::make(config.model, config.partition, config.tile_bytes, ranks_.rank(),
                               config.chunk_bytes, config.dtypes, config.stream_above_bytes));
  for (std::uint32_t param = 0; param < params(); ++param) {
    const auto& spec = config.model.params[param];
    gradients_.add(layouts.gradients().local_elems(param, ranks_.rank()), spec.gradient);
    weights_.add(layouts.weights().local_elems(param, ranks_.rank()), spec.weight);
  }
  const auto device = [&](libmuon::Side side) {
    return side == libmuon::Side::device && config.accelerator != nullptr
               ? &config.accelerator->device()
               : nullptr;
  };
  EBB_TRY(gradients_.lay_on(device(config.gradients_on)));
  EBB_TRY(weights_.lay_on(device(config.weights_on)));
  EBB_TRY(begin(layouts, io, swap));
  masters_.emplace(config.model, plan(), leg_.directory);
  return engine_->install_weights();
}

Result<> CoveringRank::begin(const libmuon::StatePlan& layouts, libswap::IoQueue& io,
                             libswap::SwapDirectory& swap) {
  if (run_.begins == Begins::initial) {
    EBB_TRY_ASSIGN(engine_,
                   Engine::open(run_.config, ranks_, io, swap, {.initial = noisy_bf16_weights}));
    for (std::uint32_t param = 0; param < params(); ++param)
      if (plan().here(param)) EBB_TRY(engine_->bind_weights(param, weights_.piece(param)));
    return {};
  }
  std::vector<libswap::Buffer> bound;
  for (std::uint32_t param = 0; param < params(); ++param) {
    for_elements(layouts.weights(), param, ranks_.rank(),
                 [&](std::uint64_t element, std::uint64_t place) {
                   float value = 0;
                   noisy_bf16_weights(param, {element, 1}, {&value, 1});
                   weights_.set(param, place, value);
                 });
    weights_.send(param).wait();
    bound.push_back(weights_.piece(param));
  }
  EBB_TRY_ASSIGN(engine_, Engine::open(run_.config, ranks_, io, swap, {.weights = bound}));
  return {};
}

// --- gradients ---

// The halves of what is added, and the parts of a sum, make what is handed in otherwise: exactly,
// also in bf16.
Result<> CoveringRank::hand_in() {
  const std::uint64_t step = engine_->step_count() + 1;
  const bool added = run_.config.partition.hand_in == HandIn::added;
  for (std::uint32_t batch = 0; batch < (added ? 2u : 1u); ++batch) {
    coming_.clear();  // of the batch before
    std::vector<libswap::Event> adding;
    for (std::uint32_t i = 0; i < params(); ++i) {
      const std::uint32_t param = batch == 0 ? params() - 1 - i : i;
      if (!plan().here(param)) continue;
      if (const auto how = absent(param, step)) {
        if (batch == 0) EBB_TRY(engine_->no_gradient(param, *how));
        continue;
      }
      const auto there = make(param, step, added ? 0.5f : part_of_sum(param));
      if (added && (batch == 0 || param % 2 == 0)) {
        EBB_TRY_ASSIGN(const auto taken,
                       engine_->add_gradient(param, gradients_.piece(param), there));
        adding.push_back(taken);
      } else {
        EBB_TRY(engine_->gradient_ready(param, gradients_.piece(param), there));
      }
    }
    for (const libswap::Event& taken : adding) taken.wait();
  }
  return {};
}

libswap::Event CoveringRank::make(std::uint32_t param, std::uint64_t step, float scale) {
  if (run_.come == Come::handed_in) {
    fill(param, step, scale);
    return gradients_.send(param);
  }
  gradients_.spoil(param);
  gradients_.send(param).wait();
  const libswap::EventSource there;
  coming_.emplace_back([this, param, step, scale, there] {
    ::usleep(300);
    fill(param, step, scale);
    gradients_.send(param).wait();
    there.pass();
  });
  return there.event();
}

void CoveringRank::fill(std::uint32_t param, std::uint64_t step, float scale) {
  for_elements(plan().gradients(), param, ranks_.rank(),
               [&](std::uint64_t element, std::uint64_t place) {
                 gradients_.set(param, place, scale * in_bf16(noise(param, step, element)));
               });
}

// As a router leaves out experts: other parameters in each step, of any optimizer, and the first
// one of all from the first step on. Or all but a few, others in each step.
std::optional<WithoutGradient> CoveringRank::absent(std::uint32_t param, std::uint64_t step) const {
  const std::uint64_t turn = 5 * step + param;
  bool none = false;
  if (run_.absent == Absent::some) none = step < 3 ? turn % 5 == 0 : turn % 7 == 3;
  if (run_.absent == Absent::most) none = (param + step) % 4 != 0;
  if (!none) return std::nullopt;
  return turn % 2 == 0 ? WithoutGradient::untouched : WithoutGradient::zero;
}

// Of copies: 1, then 1 and -1 by turns, and 0 where that would not add up to 1.
float CoveringRank::part_of_sum(std::uint32_t param) const {
  const std::uint32_t copy = index_of(ranks_.rank()) / (run_.ranks / run_.copies);
  const bool alone = !run_.config.model.params[param].cuts.empty();
  if (run_.config.partition.hand_in != HandIn::partial || copy == 0 || alone) return 1;
  if (copy % 2 == 0) return -1;
  return copy + 1 < run_.copies ? 1 : 0;
}

// --- steps ---

Result<> CoveringRank::step() {
  const libmuon::EngineStats before = engine_->stats();
  EBB_TRY(hand_in());
  EBB_TRY_ASSIGN(const auto result, engine_->step(kArgs));
  EBB_TRY(check_moved(before));
  return behind_step(result);
}

Result<> CoveringRank::step_that_stops() {
  Draws draws(leg_.draw + engine_->step_count());
  EBB_TRY(engine_->wait_snapshot());  // else the disk may fail that, and no step is stopped
  EBB_TRY(hand_in());
  EBB_TRY(ranks_.agree(0));
  const FaultOn on = draws.below(3) == 0 ? FaultOn::write : FaultOn::read;
  const std::uint64_t unlucky = draws.next(), at = draws.next();
  const std::uint64_t tiles =
      (on == FaultOn::read ? said_.step_read_bytes : said_.step_written_bytes) /
      run_.config.tile_bytes;
  if (is_rank(unlucky))
    faults_.add({.on = on,
                 .at = at % (tiles + 1),
                 .count = libswap::FaultPlan::kForEver,
                 .path_part = compose("rank-0000{}-of", index_of(ranks_.rank()))});
  EBB_TRY(ranks_.agree(0));
  auto stepped = engine_->step(kArgs);
  EBB_TRY(ranks_.agree(0));
  faults_.clear();
  EBB_TRY(ranks_.agree(0));
  if (!stepped) {
    if (is_rank(unlucky))
      std::ofstream(leg_.directory / "stopped", std::ios::app) << stepped.error().message << '\n';
    stepped = engine_->continue_step();
  }
  if (!stepped) return std::move(stepped).error();
  return behind_step(*stepped);
}

// Exactly what the plan says, or less where gradients are absent.
Result<> CoveringRank::check_moved(const libmuon::EngineStats& before) const {
  const libmuon::EngineStats now = engine_->stats();
  struct Moved {
    const char* how;
    std::uint64_t bytes, said;
  };
  for (const auto& [how, bytes, said] :
       {Moved{"reads", now.read_bytes - before.read_bytes, said_.step_read_bytes},
        Moved{"writes", now.written_bytes - before.written_bytes, said_.step_written_bytes},
        Moved{"sends", now.sent_bytes - before.sent_bytes, said_.step_sent_bytes}})
    if (run_.absent == Absent::none ? bytes != said : bytes > said)
      return Error{Code::state, compose("step {} {} {} bytes, and its plan says {}",
                                        engine_->step_count(), how, bytes, said)};
  return {};
}

Result<> CoveringRank::behind_step(const libmuon::StepResult& result) {
  if (result.skipped) return Error{Code::state, "a step was skipped"};
  const std::uint64_t step = engine_->step_count();
  weights_.fetch();
  for (std::uint32_t param = 0; param < params(); ++param)
    if (masters_->has(param) && absent(param, step) != WithoutGradient::untouched)
      masters_->add(param, weights_);
  if (run_.written == Written::between_steps && step % 2 == 1) EBB_TRY(write_weights(step));
  if (run_.snapshots == Snapshots::every_step) EBB_TRY(engine_->snapshot());
  return {};
}

// Some, whole, with numbers of bf16 that nothing else comes to: what masters are then depends
// neither on what weights are kept as nor on what masters are.
Result<> CoveringRank::write_weights(std::uint64_t step) {
  std::vector<std::uint32_t> taken;
  for (std::uint32_t param = 0; param < params(); ++param) {
    if (!masters_->has(param)) taken.push_back(param);
    if ((param + step) % 4 != 0 || !plan().here(param)) continue;
    for_elements(plan().weights(), param, ranks_.rank(),
                 [&](std::uint64_t element, std::uint64_t place) {
                   const float value = in_bf16(2 + noise(param, step + 100, element) / 2);
                   if (masters_->has(param))
                     masters_->set(param, place, value);
                   else
                     weights_.set(param, place, value);
                 });
    if (!masters_->has(param)) weights_.send(param).wait();
  }
  EBB_TRY(engine_->take_weights(taken));
  EBB_TRY(write_masters(step));
  return write_momentum(step);
}

// Of whatever bits: weights that are handed out of them are not taken again.
Result<> CoveringRank::write_masters(std::uint64_t step) {
  const auto value_of = [step](std::uint32_t param, std::uint64_t element) {
    return 1 + noise(param, step + 300, element) / 2;
  };
  std::vector<std::uint32_t> written;
  for (std::uint32_t param = 0; param < params(); ++param) {
    if ((param + step) % 5 != 0) continue;
    if (!masters_->has(param)) {
      written.push_back(param);
      continue;
    }
    for_elements(plan().weights(), param, ranks_.rank(),
                 [&](std::uint64_t element, std::uint64_t place) {
                   masters_->set(param, place, value_of(param, element));
                 });
  }
  ByName masters(plan(), written);
  masters.for_all([&](std::uint32_t param, std::uint64_t element, float& value) {
    value = value_of(param, element);
  });
  EBB_TRY(engine_->write_state("master", masters.buffers()));
  // Bound masters have theirs already.
  return run_.config.dtypes.contains("master") ? Result<>() : engine_->install_weights();
}

// What an engine copies by name: no int8 blocks.
bool CoveringRank::is_copied(const std::string& state) const {
  const auto dtype = run_.config.dtypes.find(state);
  return dtype == run_.config.dtypes.end() || dtype->second != DType::i8;
}

// Numbers of bf16, too.
Result<> CoveringRank::write_momentum(std::uint64_t step) {
  if (!is_copied("momentum_buffer")) return {};
  std::vector<std::uint32_t> written;
  for (std::uint32_t param = 0; param < params(); ++param)
    if (is_muon(run_.config.model, param) && (param + step) % 3 == 0) written.push_back(param);
  ByName momentum(plan(), written);
  momentum.for_all([&](std::uint32_t param, std::uint64_t element, float& value) {
    value = in_bf16(noise(param, step + 200, element));
  });
  return engine_->write_state("momentum_buffer", momentum.buffers());
}

Result<> CoveringRank::die() {
  EBB_TRY(hand_in());
  EBB_TRY(engine_->begin_step(kArgs));
  if (is_rank(leg_.draw)) {
    ::usleep(static_cast<useconds_t>(leg_.draw / 8 % 2000));
    ::raise(SIGKILL);
  }
  EBB_TRY(engine_->wait_step());
  EBB_TRY(ranks_.agree(0));
  return Error{Code::state, "a rank was to die and did not"};
}

Result<> CoveringRank::compare() {
  EBB_TRY_ASSIGN(const auto pinned, engine_->open_export());
  EBB_TRY_ASSIGN(const auto checkpoint, pinned.describe());
  auto tensors = tensors_of(*checkpoint);
  masters_->put_into(tensors);
  EBB_TRY(compare_by_name(tensors));
  weights_.fetch();
  for (std::uint32_t param = 0; param < params(); ++param)
    EBB_TRY(compare_weights(param, tensors.at(run_.config.model.params[param].name + " master")));
  if (!gradients_.padding_is_poison() || !weights_.padding_is_poison())
    return Error{Code::state, "what lies between pieces was written"};
  if (ranks_.rank() == Rank{0}) std::ofstream(leg_.directory / "hash") << hash_of(tensors);
  return {};
}

// What is read by name, states of the same parameters together, is what is stored.
Result<> CoveringRank::compare_by_name(const std::map<std::string, std::vector<float>>& stored) {
  using Kind = std::pair<bool, bool>;  // a matrix; whose master the trainer has
  std::map<Kind, std::vector<std::uint32_t>> alike;
  for (std::uint32_t param = 0; param < params(); ++param)
    alike[{is_muon(run_.config.model, param), masters_->has(param)}].push_back(param);
  for (const auto& [kind, have] : alike) {
    const auto [matrices, kept] = kind;
    std::vector<std::string> states;
    if (!kept) states.emplace_back("master");
    if (matrices)
      states.emplace_back("momentum_buffer");
    else
      states.insert(states.end(), {"exp_avg_sq", "exp_avg"});
    std::erase_if(states, [&](const std::string& state) { return !is_copied(state); });
    AllByName read(plan(), states, have);
    EBB_TRY(engine_->read_states(read.buffers()));
    std::map<std::string, std::uint64_t> differ;
    read.for_all(
        [&](const std::string& state, std::uint32_t param, std::uint64_t element, float& value) {
          const auto& wanted = stored.at(run_.config.model.params[param].name + " " + state);
          differ[state] += value != wanted[element] ? 1 : 0;
        });
    for (const auto& [state, count] : differ)
      if (count > 0)
        return Error{Code::state, compose("{} elements of {} are read otherwise", count, state)};
  }
  return {};
}

Result<> CoveringRank::compare_weights(std::uint32_t param, const std::vector<float>& master) {
  const auto& spec = run_.config.model.params[param];
  const auto handed_out = [&](float value) {
    if (plan().columns().in_halves()) return away(value);
    return spec.weight == DType::bf16 ? in_bf16(value) : value;
  };
  std::uint64_t differ = 0;
  for_elements(plan().weights(), param, ranks_.rank(),
               [&](std::uint64_t element, std::uint64_t place) {
                 const float mine =
                     masters_->has(param) ? masters_->at(param, place) : weights_.at(param, place);
                 differ += mine != handed_out(master[element]) ? 1 : 0;
               });
  if (differ == 0) return {};
  return Error{Code::state, compose("{} elements of {} are not their masters'", differ, spec.name)};
}

}  // namespace ebb::test
