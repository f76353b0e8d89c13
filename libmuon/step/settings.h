// What every rank of an engine must have been told alike.
#pragma once

#include <vector>

#include "ebb/libmuon/step/config.h"
#include "ebb/libmuon/step/step_args.h"
#include "ebb/libswap/store/alike.h"

namespace ebb::libmuon {

using libswap::Setting;

// Of the model, its partition and the store. Budget, threads and trace are a rank's own.
std::vector<Setting> settings_of(const EngineConfig& config, const Columns& columns);
// Of one step: its arguments, and what may change in groups between steps (the last alone).
std::vector<Setting> settings_of(const StepArgs& args, const ModelSpec& model);

std::vector<Setting> settings_of_every_step(const ModelSpec& model);
// Engine::group() and set() of a model.
Result<formats::native::Group> group_of(const ModelSpec& model, std::uint32_t group);
Result<> change(ModelSpec& model, std::uint32_t group, std::string_view name, double value);

// Code::usage names the argument that no step can be made with.
Result<> validate(const StepArgs& args);

}  // namespace ebb::libmuon
