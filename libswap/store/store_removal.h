// Removing a store's files: what the library made, by its names, and nothing else. No link is
// followed or removed; a folder that holds anything else stays, with what it holds.
#pragma once

#include "ebb/libswap/sys/io_backend.h"

namespace ebb::libswap {

// Nothing lies in the store's folder but what the library makes. False for what is no folder.
Result<bool> holds_only_a_store(IoBackend& backend, const fs::path& store);

Result<> remove_store_files(IoBackend& backend, const fs::path& store);

}  // namespace ebb::libswap
