// A checkpoint directory on disk as a SourceTree: what decoders read from.
//
// Lists regular files up to 8 levels deep, at most a million; one file alone is a tree of one
// entry. Symbolic links are followed while they stay inside (the root itself may be a link); links
// that lead outside and special files are refused, so that opening a checkpoint never touches
// anything else. In a snapshot of Hugging Face's cache (models--*/snapshots/*), links to the blobs
// of the same model are inside. Files are opened when first read and closed again under the
// process's limit of open files; one that was replaced meanwhile is an error. Thread-safe. Large
// reads take what is in memory and the rest past the page cache (cold_reads.h); that memory is 2
// MiB for each reader. What formats can only decode whole is kept while it fits 32 MiB together, or
// alone.
#pragma once

#include <memory>

#include "ebb/formats/core/byte_source.h"
#include "ebb/libswap/sys/io_backend.h"

namespace ebb::libswap {

Result<std::shared_ptr<const formats::SourceTree>> open_tree(const fs::path& path);

}  // namespace ebb::libswap
