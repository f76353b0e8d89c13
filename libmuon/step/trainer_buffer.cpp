#include "ebb/libmuon/step/trainer_buffer.h"

#include "ebb/libmuon/step/side.h"

namespace ebb::libmuon {

Result<> check_buffer(const EngineConfig& config, Rank rank, std::uint32_t param,
                      const libswap::Buffer& given, const Wanted& wanted) {
  if (param >= config.model.params.size())
    return Error{Code::usage, compose("there is no parameter {}", param)};
  return check_memory(
      config, rank, param, given,
      {wanted.what, wanted.layout, config.model.params[param].*wanted.dtype,
       device_of(config, wanted.side), "ParamSpec::gradient and weight say what the trainer has",
       "EngineConfig::gradients_on and weights_on say where the trainer keeps them"});
}

Result<> check_memory(const EngineConfig& config, Rank rank, std::uint32_t param,
                      const libswap::Buffer& given, const WantedMemory& wanted) {
  const std::string where = compose("{} of {} on rank {}: ", wanted.what,
                                    config.model.params[param].name, index_of(rank));
  if (given.dtype != wanted.dtype)
    return Error{Code::usage,
                 compose("{}{} elements handed in, where {} is wanted", where,
                         formats::name_of(given.dtype), formats::name_of(wanted.dtype)),
                 std::string(wanted.dtype_hint)};
  const std::uint64_t elems = wanted.layout.local_elems(param, rank);
  if (given.elems != elems)
    return Error{Code::layout, compose("{}{} elements handed in, the layout gives this rank {}",
                                       where, given.elems, elems)};
  const auto name = [](const libswap::Device* device) {
    return device == nullptr ? std::string("the host") : device->name();
  };
  if (given.data == nullptr && !given.empty())
    return Error{Code::usage, compose("{}{} elements handed in at no address", where, elems)};
  if (given.device == wanted.device || given.empty()) return {};
  return Error{Code::usage,
               compose("{}it lies in the memory of {}, where that of {} is wanted", where,
                       name(given.device), name(wanted.device)),
               std::string(wanted.device_hint)};
}

}  // namespace ebb::libmuon
