// In the place of the plugin's: a kernel is run by the thread of its stream.
#pragma once

#include <cstring>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "plugins/cuda/launch.h"
#include "tests/libmuon/cuda/emulated/keywords.h"
#include "tests/libmuon/cuda/stub.h"

namespace ebb::emulated {

// What a kernel is given, with the host's addresses in the place of the device's.
template <typename T>
T on_host(T given) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::uint64_t word = 0;
  auto* const bytes = reinterpret_cast<std::byte*>(&given);
  for (std::size_t i = 0; i + sizeof(word) <= sizeof(given); i += sizeof(word)) {
    std::memcpy(&word, bytes + i, sizeof(word));
    word = stub::on_host(word);
    std::memcpy(bytes + i, &word, sizeof(word));
  }
  return given;
}

// `text`: of the arguments, which begin with the kernel's name.
template <typename... Parameters, typename... Arguments>
cudaError_t start(std::string_view text, void (*kernel)(Parameters...), dim3 blocks, dim3 threads,
                  std::size_t bytes, cudaStream_t stream, const Arguments&... arguments) {
  if (stub::fails(text.substr(0, text.find_first_of("<,")))) return cudaErrorUnknown;
  if (!stub::runs(stream, arguments...)) return cudaSuccess;
  stub::enqueue(stream, [=] {
    const std::tuple given{on_host(static_cast<Parameters>(arguments))...};
    run(blocks, threads, bytes, [&] { std::apply(kernel, given); });
  });
  return cudaSuccess;
}

}  // namespace ebb::emulated

#define start(...) ebb::emulated::start(#__VA_ARGS__, __VA_ARGS__)
