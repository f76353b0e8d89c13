// ReadySet: which of many sockets can be read, in one call of the kernel.
#pragma once

#include <cstdint>
#include <vector>

#include "ebb/formats/core/result.h"
#include "ebb/libswap/sys/unique.h"

namespace ebb::libswap {

class ReadySet {
 public:
  static Result<ReadySet> make();
  // `number` is how readable() calls it.
  Result<> add(int descriptor, std::uint32_t number);
  void remove(int descriptor);
  // At once; some of them, where many are.
  std::vector<std::uint32_t> readable() const;

 private:
  Descriptor set_;
};

}  // namespace ebb::libswap
