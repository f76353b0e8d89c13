// Files whose transfers lie at multiples of kFileBlock bytes: tiles, and what measures a disk for
// them.
#pragma once

#include "ebb/libswap/sys/io_backend.h"

namespace ebb::libswap {

inline constexpr std::uint32_t kFileBlock = 4096;

// With direct I/O where that is possible at such places: not on file systems without it, nor on
// devices that want larger blocks. There the page cache is used.
Result<FileId> open_block_file(IoBackend& backend, const fs::path& path, OpenOptions options);

}  // namespace ebb::libswap
