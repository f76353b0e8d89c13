// An ebb_model as the engine has it.
#pragma once

#include "bindings/c/ebb.h"
#include "bindings/c/open_device.h"
#include "ebb/libmuon/step/config.h"

namespace ebb::c {

struct Described {
  libmuon::EngineConfig config;
  std::shared_ptr<OpenDevice> device;  // what `config` computes on; null: the host
};
// For a world of so many ranks; 0: as many as the model's layouts say.
Result<Described> described(const ebb_model* model, uint32_t world);
Result<DType> dtype_of(int32_t number, std::string_view what);

}  // namespace ebb::c
