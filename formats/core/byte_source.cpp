#include "ebb/formats/core/byte_source.h"

#include <algorithm>

#include "ebb/formats/core/crc32c.h"
#include "ebb/formats/core/refuse.h"

namespace ebb::formats {

Result<ByteVector> read_bytes(const ByteSource& source, std::uint64_t offset, std::uint64_t count,
                              std::uint64_t limit) {
  if (count > limit)
    return refuse(Code::limit, source.name(), offset,
                  compose("{} bytes are more than the limit of {}", count, limit));
  if (offset > source.size() || count > source.size() - offset)
    return refuse(Code::corrupt, source.name(), offset,
                  compose("{} bytes wanted, but the file ends at {}", count, source.size()));
  ByteVector bytes(static_cast<std::size_t>(count));
  EBB_TRY(source.read(offset, bytes));
  return bytes;
}

Result<ByteVector> SourceTree::probe(std::string_view program, const ByteSource& file) const {
  return Error{Code::unsupported, compose("{}: {} cannot be run here", file.name(), program)};
}

Result<SourceTree::Decoded> SourceTree::decoded(
    const std::string&, std::uint64_t, const std::function<Result<Decoded>()>& make) const {
  return make();
}

std::optional<std::uint32_t> SourceTree::seen(const std::string&, std::uint64_t size, std::uint64_t,
                                              ByteView bytes) const {
  if (bytes.size() != size) return std::nullopt;
  return crc32_zip(0, bytes);
}

SourceTree::Hold SourceTree::hold(std::string_view, std::uint64_t, std::uint64_t) const {
  return nullptr;
}

Result<> MemorySource::read(std::uint64_t offset, std::span<std::byte> into) const {
  if (offset > bytes_.size() || into.size() > bytes_.size() - offset)
    return refuse(Code::corrupt, name_, offset, compose("read past the end at {}", bytes_.size()));
  std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset), into.size(), into.begin());
  return {};
}

}  // namespace ebb::formats
