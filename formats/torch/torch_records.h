// What every archive of torch.save consists of, whoever writes it. Internal to formats/torch.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "ebb/formats/core/bytes.h"
#include "ebb/formats/core/dtype.h"
#include "ebb/formats/layout/box.h"
#include "ebb/formats/pickle/pickle_writer.h"

namespace ebb::formats {

struct TorchRecord {
  std::string_view name;
  ByteVector bytes;
};
// Before and after the records of the storages.
std::array<TorchRecord, 4> leading_records(ByteVector pickle);
TorchRecord last_record();

struct PickledStorage {
  DType dtype = DType::f32;
  std::uint64_t elems = 0;
  std::string key;
};
// A dense tensor that begins at element `first` of the storage. REQUIRES: torch_name_of(dtype) is
// not empty.
void pickle_tensor(PickleWriter& pickle, const PickledStorage& storage, std::uint64_t first,
                   const Shape& shape);

}  // namespace ebb::formats
