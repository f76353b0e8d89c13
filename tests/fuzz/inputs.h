// From one input to the files of a checkpoint, in a form that survives mutation.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/core/byte_source.h"
#include "tests/support/source_tree.h"

namespace ebb::fuzz {

// An input is the bytes of file `first`, then any number of
//     "\n==> NAME\n" BYTES     a file as it is
//     "\n=P> NAME\n" PICKLE    the torch.save archive of that pickle, its storages full of ones
//     "\n=0> NAME\n" DIGITS    so many zeros, 1 MiB at most
// Names that come again are left out; at most 64 files.
std::shared_ptr<test_support::MemoryTree> tree_of(ByteView input, std::string first);

// Describes the tree and looks at everything a tool would: coverage, every chunk (whole, then in
// two parts, which must agree), every value as JSON. CHECKs that all chunks of a catalog lie inside
// its files, and that only files of the tree were opened. False: it is no checkpoint.
bool look_at(std::shared_ptr<const formats::SourceTree> tree);

}  // namespace ebb::fuzz
