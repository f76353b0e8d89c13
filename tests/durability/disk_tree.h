// A folder behind a queue as a tree in memory: what decoders read of a disk that is no file system.
#pragma once

#include <memory>

#include "ebb/libswap/queue/io_queue.h"
#include "tests/support/source_tree.h"

namespace ebb::test {

Result<std::shared_ptr<test_support::MemoryTree>> tree_on_disk(libswap::IoQueue& io,
                                                               const libswap::fs::path& folder);

}  // namespace ebb::test
