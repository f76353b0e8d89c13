#include "ebb/libswap/store/blobs.h"

#include <algorithm>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/native/manifest_limits.h"

namespace ebb::libswap {
namespace {

std::uint64_t bytes_of(std::string_view key, const ByteVector& bytes) {
  return key.size() + bytes.size() + 64;
}

}  // namespace

std::uint64_t Blobs::bytes_without(std::string_view key) const {
  std::uint64_t total = 0;
  for (const auto& blob : blobs_)
    if (blob.key != key) total += bytes_of(blob.key, blob.bytes);
  return total;
}

Result<> Blobs::set(std::string key, ByteVector bytes) {
  EBB_TRY(formats::native::check_name("value", key));
  if (const std::uint64_t total = bytes_without(key) + bytes_of(key, bytes); total > kMostBytes)
    return Error{Code::limit,
                 compose("blobs take {} bytes with {}; the limit is {}", total, key, kMostBytes)};
  std::erase_if(blobs_, [&](const auto& blob) { return blob.key == key; });
  if (!bytes.empty()) blobs_.push_back({std::move(key), std::move(bytes)});
  return {};
}

const ByteVector* Blobs::find(std::string_view key) const {
  const auto found = std::ranges::find(blobs_, key, &formats::native::Blob::key);
  return found == blobs_.end() ? nullptr : &found->bytes;
}

std::string Blobs::take(const Catalog& catalog) {
  std::string left;
  for (const ValueEntry& value : catalog.values) {
    if (value.value.kind != Value::Kind::bytes || set(value.key, value.value.raw)) continue;
    left += compose("{}{} of {} bytes", left.empty() ? "" : ", ", printable(value.key),
                    value.value.raw.size());
  }
  if (left.empty()) return left;
  return compose("left behind, beyond the {} bytes of values that a store keeps: {}", kMostBytes,
                 left);
}

}  // namespace ebb::libswap
