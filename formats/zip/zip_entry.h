// A record of a zip archive, as its directory has it.
#pragma once

#include <cstdint>
#include <string>

namespace ebb::formats {

struct ZipEntry {
  std::string name;       // whole, with the top folder
  std::uint32_t crc = 0;  // 0 with size > 0: the writer left it out
  std::uint64_t stored_size = 0;
  std::uint64_t size = 0;
  std::uint64_t header_at = 0;  // from the start of the archive
  std::uint64_t end_at = 0;     // where the next header or the directory begins
  bool deflated = false;
  bool has_crc() const { return crc != 0 || size == 0; }
};

}  // namespace ebb::formats
