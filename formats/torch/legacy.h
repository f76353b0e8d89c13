// The stream torch.save wrote before torch 1.6, and still writes when asked not to make a zip file:
// five pickles (magic number, version, facts about the writer, the object, the storage keys), then
// for each key its number of elements and the elements, little-endian on every machine. Source of
// the layout: torch/serialization.py (_legacy_save), torch/csrc/serialization.cpp.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "ebb/formats/core/byte_source.h"
#include "ebb/formats/pickle/pickle.h"

namespace ebb::formats {

constexpr std::uint64_t kLegacyMagicBytes = 15;
bool is_legacy_magic(ByteView head);  // the first bytes of a stream, kLegacyMagicBytes or more

struct LegacyStorage {
  std::uint64_t at = 0;  // of the first element, in the file
  std::uint64_t bytes = 0;
};

struct LegacyStream {
  PickleGraph graph;  // the object
  std::map<std::string, LegacyStorage, std::less<>> storages;
};

// Reads the pickles and the storages' lengths, no element.
Result<LegacyStream> read_legacy_stream(const ByteSource& source);

}  // namespace ebb::formats
