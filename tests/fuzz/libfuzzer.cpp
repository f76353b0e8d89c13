// libFuzzer's entry point; one executable a target, chosen when it is compiled.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ebb::fuzz::EBB_FUZZ_TARGET({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
