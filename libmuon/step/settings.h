// What every rank must have been told alike, by name: a rank with settings of its own would make
// its part of the state another one, and nobody would notice.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ebb/libmuon/comm/communicator.h"
#include "ebb/libmuon/step/engine.h"

namespace ebb::libmuon {

struct Setting {
  std::string name;
  std::string value;
};

// Of the model, its partition and the store. Budget, threads and trace are a rank's own.
std::vector<Setting> settings_of(const EngineConfig& config);
// Of one step: its arguments and the groups' learning rates.
std::vector<Setting> settings_of(const StepArgs& args, const ModelSpec& model);

// [C] Code::usage on every rank unless all were told the same; names the first that differs.
Result<> same_everywhere(Communicator& ranks, std::span<const Setting> settings);

// Code::usage names the argument that no step can be made with.
Result<> validate(const StepArgs& args);

}  // namespace ebb::libmuon
