// Blobs of an engine or of a swap space: bytes that the caller gets back after a resume.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "bindings/c/arguments.h"

namespace ebb::c {

struct BlobKey {
  const char* given;
  std::string_view function;  // that was called
};

template <typename Holder>
Result<> set_blob(Holder& holder, const BlobKey& key, const void* bytes, uint64_t size) {
  EBB_TRY_ASSIGN(const std::string_view name, text_of(key.given, compose("{}: key", key.function)));
  EBB_TRY_ASSIGN(const auto given, array_of(static_cast<const std::byte*>(bytes), size,
                                            compose("{}: bytes", key.function)));
  return holder.set_blob(std::string(name), {given.begin(), given.end()});
}

// `size`: room in, bytes out.
template <typename Holder>
Result<> blob(const Holder& holder, const BlobKey& key, void* bytes, uint64_t* size) {
  EBB_TRY_ASSIGN(const std::string_view name, text_of(key.given, compose("{}: key", key.function)));
  EBB_TRY(check_place(size, compose("{}: size", key.function)));
  const auto* const found = holder.blob(name);
  const uint64_t room = std::exchange(*size, found == nullptr ? 0 : found->size());
  const auto count = static_cast<std::size_t>(std::min(room, *size));
  if (count == 0) return {};
  EBB_TRY(check_place(bytes, compose("{}: bytes", key.function)));
  std::memcpy(bytes, found->data(), count);
  return {};
}

}  // namespace ebb::c
