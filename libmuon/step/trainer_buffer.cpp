#include "ebb/libmuon/step/trainer_buffer.h"

#include "ebb/libmuon/step/side.h"

namespace ebb::libmuon {

Result<> check_buffer(const EngineConfig& config, Rank rank, std::uint32_t param,
                      const libswap::Buffer& given, const Wanted& wanted) {
  if (param >= config.model.params.size())
    return Error{Code::usage, compose("there is no parameter {}", param)};
  const std::string where = compose("{} of {} on rank {}: ", wanted.what,
                                    config.model.params[param].name, index_of(rank));
  const DType dtype = config.model.params[param].*wanted.dtype;
  if (given.dtype != dtype)
    return Error{Code::usage,
                 compose("{}{} elements handed in, where {} is wanted", where,
                         formats::name_of(given.dtype), formats::name_of(dtype)),
                 "ParamSpec::gradient and weight say what the trainer has"};
  const std::uint64_t elems = wanted.layout.local_elems(param, rank);
  if (given.elems != elems)
    return Error{Code::layout, compose("{}{} elements handed in, the layout gives this rank {}",
                                       where, given.elems, elems)};
  const auto name = [](const libswap::Device* device) {
    return device == nullptr ? std::string("the host") : device->name();
  };
  if (given.data == nullptr && !given.empty())
    return Error{Code::usage, compose("{}{} elements handed in at no address", where, elems)};
  const libswap::Device* const device = device_of(config, wanted.side);
  if (given.device == device || given.empty()) return {};
  return Error{Code::usage,
               compose("{}it lies in the memory of {}, where that of {} is wanted", where,
                       name(given.device), name(device)),
               "EngineConfig::gradients_on and weights_on say where the trainer keeps them"};
}

}  // namespace ebb::libmuon
