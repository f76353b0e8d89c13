// Blobs: what a trainer wants back beside its state (data position, generator): bytes by name, in
// every generation's manifest.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/native/manifest.h"

namespace ebb::libswap {

class Blobs {
 public:
  // Of all together, as they lie in a manifest.
  static constexpr std::uint64_t kMostBytes = 256u << 10;

  // In the place of that name's, if there is one; no bytes: takes that one away. Code::limit.
  Result<> set(std::string key, ByteVector bytes);
  const ByteVector* find(std::string_view key) const;

  const std::vector<formats::native::Blob>& all() const { return blobs_; }
  void take(std::vector<formats::native::Blob> blobs) { blobs_ = std::move(blobs); }
  // Values that are bytes. For people: what was left behind because there was no room.
  std::string take(const Catalog& catalog);

 private:
  std::uint64_t bytes_without(std::string_view key) const;

  std::vector<formats::native::Blob> blobs_;
};

}  // namespace ebb::libswap
