#include <algorithm>

#include "ebb/libmuon/spec/presets.h"
#include "tests/durability/draws.h"
#include "tests/durability/histories/history.h"

namespace ebb::test {
namespace {

using libmuon::HandIn;
using libmuon::MuonSpec;
using libmuon::Placement;
using enum Policy;

bool chance(Draws& draws, std::uint64_t one_in) { return draws.below(one_in) == 0; }

// A spec that nobody ships, of settings that go together.
MuonSpec draw_spec(Draws& draws) {
  MuonSpec spec = MuonSpec::keller();
  if (chance(draws, 6)) {
    const auto preset = libmuon::preset("moonlight");
    EBB_CHECK(preset.has_value());
    spec = *preset;
  }
  spec.momentum = draws.of<libmuon::Momentum>({libmuon::Momentum::ema, libmuon::Momentum::sum});
  spec.nesterov = !chance(draws, 4);
  using enum libmuon::Decay;
  spec.decay = draws.of<libmuon::Decay>({decoupled, decoupled, independent, palm, cautious, l2});
  spec.weight_decay = chance(draws, 3) ? 0 : 0.1;
  spec.precision =
      draws.of<libmuon::Precision>({libmuon::Precision::fp32, libmuon::Precision::fp32,
                                    libmuon::Precision::bf16, libmuon::Precision::tf32});
  spec.scale =
      draws.of<libmuon::ScaleRule>({libmuon::ScaleRule::sqrt_max_1_rows_over_cols,
                                    libmuon::ScaleRule::match_rms_adamw, libmuon::ScaleRule::one});
  if (!chance(draws, 3)) {
    spec.form = libmuon::Form::gram;
    spec.restarts = draws.of<std::vector<std::uint32_t>>({{}, {2}, {1, 3}});
  }
  spec.second_moment =
      draws.of<libmuon::SecondMoment>({libmuon::SecondMoment::none, libmuon::SecondMoment::none,
                                       libmuon::SecondMoment::rows, libmuon::SecondMoment::longer});
  return spec;
}

void make_streamable(MuonSpec& spec) {
  spec.form = libmuon::Form::gram;
  spec.second_moment = libmuon::SecondMoment::none;
  if (spec.decay == libmuon::Decay::l2) spec.decay = libmuon::Decay::decoupled;
}

Meaning draw_meaning(Draws& draws) {
  Meaning meaning;
  meaning.seed = draws.next();
  const bool streamable = chance(draws, 2);
  do {
    meaning.muon = draw_spec(draws);
    if (streamable) make_streamable(meaning.muon);
  } while (!libmuon::validate(meaning.muon));
  meaning.momentum = draws.of<DType>({DType::f32, DType::bf16, DType::i8});
  if (chance(draws, 4)) meaning.out = libmuon::Out::update;
  // A trainer that applies updates itself decays its weights itself.
  if (meaning.out == libmuon::Out::update) {
    meaning.muon.weight_decay = 0;
    meaning.muon.decay = libmuon::Decay::decoupled;
  }
  meaning.absent = chance(draws, 2);
  meaning.scheduled = chance(draws, 3);
  // A wide one comes in strips from a thousand columns on.
  meaning.tall = 2 * (chance(draws, 2) ? draws.between(30, 300) : draws.between(400, 900));
  meaning.wide = 2 * (chance(draws, 2) ? draws.between(20, 500) : draws.between(512, 1100));
  return meaning;
}

std::uint32_t copies_of(Draws& draws, std::uint32_t ranks) {
  return ranks % 2 == 0 && chance(draws, 2) ? 2 : 1;
}

void draw_world(Draws& draws, Start& start) {
  start.ranks = static_cast<std::uint32_t>(draws.between(1, 4));
  start.gradients =
      draws.of<Policy>({replicated, zero12, zero12_boundary, zero3, rows, uneven_rows, layer_wise});
  start.weights =
      draws.of<Policy>({replicated, zero12, zero12_boundary, zero3, rows, uneven_rows, layer_wise});
  start.gradient_copies = copies_of(draws, start.ranks);
  start.weight_copies = copies_of(draws, start.ranks);
  if (start.ranks == 4 && chance(draws, 3)) {
    start.tensor_axis = true;
    start.gradients = draws.of<Policy>({zero3, rows});
    start.weights = draws.of<Policy>({zero3, rows});
    start.gradient_copies = start.weight_copies = 1;
  }
  start.placement = chance(draws, 2) ? Placement::shard : Placement::owner;
}

bool may_be_bound(const Meaning& meaning) {  // masters
  return meaning.out == libmuon::Out::weights && meaning.muon.decay != libmuon::Decay::l2;
}

// What an engine refuses by name is not drawn: what is streamed is not on shards nor in parts,
// masters in halves are where all weights are bf16.
void draw_traffic(Draws& draws, const Meaning& meaning, Start& start) {
  start.hand_in = draws.of<HandIn>({HandIn::reduced, HandIn::added, HandIn::partial});
  if (start.tensor_axis && start.hand_in == HandIn::partial) start.hand_in = HandIn::added;
  start.sums = chance(draws, 2) ? libmuon::PartialSums::kept : libmuon::PartialSums::made_twice;
  start.micro_batches = static_cast<std::uint32_t>(draws.between(1, 3));
  start.hand_in_threads = chance(draws, 2) ? 2 : 1;
  start.gradient = chance(draws, 2) ? DType::bf16 : DType::f32;
  if (meaning.out == libmuon::Out::weights && chance(draws, 2)) start.weight = DType::bf16;
  if (start.weight == DType::bf16 && may_be_bound(meaning) && chance(draws, 2))
    start.masters = libmuon::Masters::halves;
  start.early_bytes = draws.of<std::uint64_t>({0, 0, 30000, 1u << 20});
  if (start.hand_in != HandIn::partial && start.placement == Placement::owner)
    start.stream_above =
        draws.of<std::uint64_t>({libmuon::kNothingStreamed, 1, 4096, 30000, 100000});
}

void draw_memory(Draws& draws, Start& start) {
  start.tile_bytes = draws.of<std::uint64_t>({4096, 8192, 16384, 32768, 65536, 262144, 1u << 20});
  start.chunk_bytes =
      draws.of<std::uint64_t>({1, 16384, 40000, 100000, 150000, 200000, 256u << 20});
  start.threads = static_cast<std::uint32_t>(draws.between(1, 2));
  start.slots = static_cast<std::uint32_t>(draws.between(2, 4));
  start.budget = draws.of<double>({0, 1, 1, 1.1, 1.7});
}

Start draw_start(Draws& draws, const Meaning& meaning) {
  Start start;
  draw_world(draws, start);
  draw_traffic(draws, meaning, start);
  draw_memory(draws, start);
  start.failing = draws.of<Failing>(
      {Failing::nothing, Failing::nothing, Failing::disk, Failing::disk, Failing::disk_and_sync});
  start.wanders = chance(draws, 2);
  start.ends_committed = !chance(draws, 3);
  start.seed = draws.next();
  return start;
}

}  // namespace

History draw_history(std::uint64_t seed) {
  Draws draws(seed);
  History history{.seed = seed, .meaning = draw_meaning(draws)};
  std::uint64_t at = 0;
  for (std::uint64_t left = draws.between(1, 4); left > 0; --left) {
    Start start = draw_start(draws, history.meaning);
    start.until = std::min(kHistorySteps - 1, at + draws.between(1, 3));
    if (start.ends_committed) at = start.until;
    history.starts.push_back(std::move(start));
  }
  // Drawn apart: histories of seeds from before these are what they were, but for them.
  Draws apart(seed + 1000000007);
  history.meaning.writes = chance(apart, 2);
  for (Start& start : history.starts) start.bound = chance(apart, 3);
  for (Start& start : history.starts)
    if (chance(apart, 2) && start.weight == DType::f32 && may_be_bound(history.meaning))
      start.masters = libmuon::Masters::bound;
  return history;
}

}  // namespace ebb::test
