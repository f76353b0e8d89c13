// How much of the state is at hand at a time, in which form, and who computes.
#include "tests/libmuon/covering/runs.h"

namespace ebb::test {
namespace {

using libmuon::MuonSpec;
using libmuon::SecondMoment;
using libmuon::Side;
using libswap::Tier;

// Groups of model_of_runs(): matrices by Newton-Schulz, by its Gram form, by heads.
constexpr std::uint32_t kMatrices = 0, kGram = 2, kHeads = 4;

MuonSpec& group(Run& run, std::uint32_t number) {
  return std::get<MuonSpec>(run.config.model.groups[number]);
}

void in(Run& run, DType dtype) {
  for (libmuon::ParamSpec& param : run.config.model.params) param.gradient = param.weight = dtype;
}
void some_in_bf16(Run& run) {
  for (std::size_t i = 0; i < run.config.model.params.size(); ++i) {
    if (i % 3 == 0) run.config.model.params[i].gradient = DType::bf16;
    if (i % 3 != 1) run.config.model.params[i].weight = DType::bf16;
  }
}

// Weights of all parameters are masters, or halves of them.
void bound_masters(Run& run, std::optional<DType> master, DType weight) {
  run.config.dtypes["master"] = master;
  for (libmuon::ParamSpec& param : run.config.model.params) param.weight = weight;
}

// The trainer adds them to masters in fp32.
void updates_of(Run& run, std::initializer_list<std::uint32_t> groups) {
  for (const std::uint32_t number : groups) {
    group(run, number).out = libmuon::Out::update;
    for (libmuon::ParamSpec& param : run.config.model.params)
      if (param.group == number && !run.config.dtypes.contains("master")) param.weight = DType::f32;
  }
}

void decays(Run& run, std::initializer_list<std::uint32_t> groups, libmuon::Decay decay) {
  for (const std::uint32_t number : groups) {
    group(run, number).decay = decay;
    group(run, number).weight_decay = 0.1;
  }
}

// Parts of a split have none of columns.
void second_moments(Run& run, SecondMoment which) {
  group(run, kMatrices).second_moment = which;
  group(run, kHeads).second_moment = SecondMoment::rows;
}

void rounds_to_bf16(Run& run, bool what_is_handed) {
  for (const std::uint32_t number : {kMatrices, kGram, kHeads}) {
    group(run, number).precision = libmuon::Precision::bf16;
    if (what_is_handed) group(run, number).handed = libmuon::Precision::bf16;
  }
}

void computes(Run& run, Side gradients, Side weights) {
  run.computes = Computes::device;
  run.config.gradients_on = gradients;
  run.config.weights_on = weights;
}

void tiers(Run& run, Tier momentum, Tier master, Tier adam) {
  run.config.tiers = {{"momentum_buffer", momentum}, {"master", master}, {"exp_avg", adam}};
  if (group(run, kHeads).second_moment != SecondMoment::none)
    run.config.tiers["second_momentum_buffer"] = adam;
}

}  // namespace

std::vector<FactorOfRuns> factors_of_sizes() {
  return {
      {{{"all in memory", [](Run& run) { run.budget = Budget::all; }},
        {"a quarter in memory", [](Run& run) { run.budget = Budget::quarter; }},
        {"the least memory", [](Run& run) { run.budget = Budget::least; }}}},
      {{{"tiles of 64 KiB", [](Run& run) { run.config.tile_bytes = 65536; }},
        {"tiles of 20 KiB", [](Run& run) { run.config.tile_bytes = 20480; }},
        {"one tile", [](Run& run) { run.config.tile_bytes = 1u << 20; }},
        {"tiles of 4 KiB", [](Run& run) { run.config.tile_bytes = 4096; }}}},
      {{{"one chunk", [](Run& run) { run.config.chunk_bytes = 256u << 20; }},
        {"chunks of a few matrices", [](Run& run) { run.config.chunk_bytes = 30000; }},
        {"chunks of a part of one", [](Run& run) { run.config.chunk_bytes = 5000; }},
        {"chunks of 1 byte", [](Run& run) { run.config.chunk_bytes = 1; }}}},
      {{{"1 thread", [](Run& run) { run.config.threads = 1; }},
        {"2 threads", [](Run& run) { run.config.threads = 2; }},
        {"5 threads", [](Run& run) { run.config.threads = 5; }}}},
      {{{"snapshot at the end", [](Run&) {}},
        {"snapshots of 2 slots",
         [](Run& run) {
           run.config.slots = 2;
           run.snapshots = Snapshots::every_step;
         }}}},
  };
}

std::vector<FactorOfRuns> factors_of_options() {
  return {
      {{{"trainer in fp32", [](Run& run) { in(run, DType::f32); }},
        {"trainer in bf16", [](Run& run) { in(run, DType::bf16); }},
        {"trainer in both", some_in_bf16}}},
      {{{"momentum in fp32", [](Run&) {}},
        {"momentum in bf16", [](Run& run) { run.config.dtypes["momentum_buffer"] = DType::bf16; }},
        {"momentum in int8", [](Run& run) { run.config.dtypes["momentum_buffer"] = DType::i8; }}}},
      {{{"masters in fp32", [](Run&) {}},
        {"masters in halves", [](Run& run) { bound_masters(run, DType::u16, DType::bf16); }},
        {"weights are masters", [](Run& run) { bound_masters(run, {}, DType::f32); }}}},
      {{{"begins with initial weights", [](Run&) {}},
        {"begins with bound weights", [](Run& run) { run.begins = Begins::bound; }}}},
      {{{"weights are the engine's", [](Run&) {}},
        {"weights written between steps", [](Run& run) { run.written = Written::between_steps; }}}},
      {{{"weights handed out", [](Run&) {}},
        {"updates of some", [](Run& run) { updates_of(run, {kGram}); }},
        {"updates of all", [](Run& run) { updates_of(run, {kMatrices, kGram, kHeads}); }}}},
      {{{"no decay", [](Run&) {}},
        {"weights decay",
         [](Run& run) { decays(run, {kMatrices, kGram}, libmuon::Decay::decoupled); }},
        {"decay in gradients",
         [](Run& run) { decays(run, {kMatrices, kHeads}, libmuon::Decay::l2); }}}},
      {{{"no second moments", [](Run&) {}},
        {"moments of rows", [](Run& run) { second_moments(run, SecondMoment::rows); }},
        {"moments of the longer", [](Run& run) { second_moments(run, SecondMoment::longer); }}}},
      {{{"products in fp32", [](Run&) {}},
        {"products in bf16", [](Run& run) { rounds_to_bf16(run, false); }},
        {"products of what is rounded", [](Run& run) { rounds_to_bf16(run, true); }}}},
      {{{"whole updates", [](Run&) {}},
        {"streamed", [](Run& run) { run.config.stream_above_bytes = 0; }},
        // Of the widest, in two strips of twice the width and a rest.
        {"streamed in wide strips", [](Run& run) { run.config.stream_above_bytes = 27000; }}}},
      {{{"the host computes", [](Run&) {}},
        {"a device computes", [](Run& run) { computes(run, Side::host, Side::host); }},
        {"gradients there", [](Run& run) { computes(run, Side::device, Side::host); }},
        {"weights there", [](Run& run) { computes(run, Side::host, Side::device); }},
        {"the trainer there", [](Run& run) { computes(run, Side::device, Side::device); }}}},
      {{{"messages on the host", [](Run&) {}},
        {"messages on the device", [](Run& run) { run.takes = Side::device; }}}},
      {{{"tiers as the budget goes", [](Run&) {}},
        {"momentum on the device",
         [](Run& run) { run.config.tiers = {{"momentum_buffer", Tier::device}}; }},
        {"all on the device",
         [](Run& run) { tiers(run, Tier::device, Tier::device, Tier::device); }},
        {"masters in memory", [](Run& run) { tiers(run, Tier::nvme, Tier::host, Tier::device); }},
        {"all on the disk", [](Run& run) { tiers(run, Tier::nvme, Tier::nvme, Tier::nvme); }}}},
  };
}

}  // namespace ebb::test
