#include "ebb/libswap/sys/block_file.h"

namespace ebb::libswap {

Result<FileId> open_block_file(IoBackend& backend, const fs::path& path, OpenOptions options) {
  options.direct = Direct::preferred;
  EBB_TRY_ASSIGN(const FileId file, backend.open(path, options));
  const auto info = backend.info(file);
  if (info && (!info->direct || info->alignment <= kFileBlock)) return file;
  EBB_TRY(backend.close(file));
  if (!info) return info.error();
  options.direct = Direct::off;
  options.creation = Creation::open_existing;
  return backend.open(path, options);
}

}  // namespace ebb::libswap
