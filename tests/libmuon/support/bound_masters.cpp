#include "tests/libmuon/support/bound_masters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "tests/libmuon/support/world.h"

namespace ebb::test {

libmuon::ModelSpec model_of(libmuon::Masters masters) {
  libmuon::ModelSpec model = nuisance_model();
  model.params.push_back({.name = "wide", .shape = {60, 70}});
  return masters == libmuon::Masters::halves ? with_bf16_weights(model) : model;
}

libmuon::ModelSpec model_in_halves() { return model_of(libmuon::Masters::halves); }

Training bound(libmuon::Masters masters, Training setup) {
  const bool halves = masters == libmuon::Masters::halves;
  const libmuon::StateDTypes& dtypes = halves ? kHalves : kWeightsAreMasters;
  setup.dtypes.insert(dtypes.begin(), dtypes.end());
  setup.model = model_of(masters);
  return setup;
}

Training in_halves(Training setup) { return bound(libmuon::Masters::halves, std::move(setup)); }

float away(float value) {
  if (value == 0) return value;
  const double step = std::ldexp(1.0, std::max(std::ilogb(value), -126) - 7);
  return static_cast<float>(std::round(static_cast<double>(value) / step) * step);
}

std::vector<float> handed_out(const Training& setup, const Stored& stored) {
  const auto config = config_of(setup, setup.model);
  const auto plan = libmuon::StatePlan::make(config.model, config.partition, config.tile_bytes,
                                             Rank{0}, config.chunk_bytes, config.dtypes);
  EXPECT_TRUE(plan) << plan.error().message;
  const bool halves = (*plan).columns().in_halves();
  std::vector<float> weights;
  for (std::uint32_t param = 0; param < setup.model.params.size(); ++param)
    for (const FlatRange run : (*plan).weights().runs(param, Rank{0}))
      for (std::uint64_t i = 0; i < run.count; ++i) {
        const float master = stored.at(setup.model.params[param].name + " master")[run.first + i];
        weights.push_back(halves ? away(master) : master);
      }
  return weights;
}

const Stored& reference(std::uint64_t steps) {
  static std::map<std::uint64_t, Stored> known;
  if (const auto found = known.find(steps); found != known.end()) return found->second;
  Training setup = in_halves({});
  setup.dtypes = {};
  const TempDir directory;
  EXPECT_EQ(train(setup, directory.path(), steps).error, "");
  return known[steps] = tensors_of(directory.path());
}

}  // namespace ebb::test
