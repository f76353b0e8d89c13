// Folders that the real frameworks wrote, tests/fixtures/folders.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "ebb/formats/catalog/catalog.h"
#include "tests/support/source_tree.h"

namespace ebb::folders_test {

std::shared_ptr<test_support::MemoryTree> load(std::string_view name);
// A copy without a file.
std::shared_ptr<test_support::MemoryTree> without(const formats::SourceTree& tree,
                                                  std::string_view file);
ByteVector bytes_in(const formats::SourceTree& tree, std::string_view file);

// Digests by "name" of a weight and "name|state", as the framework had them.
std::map<std::string, std::string> truth_of(std::string_view name);
// The same of what was read.
std::map<std::string, std::string> digests_in(const Checkpoint& checkpoint);

const formats::Value* value_of(const Catalog& catalog, std::string_view key);
bool has_note(const Catalog& catalog, std::string_view part);

// What describe() says is wrong with a tree, and its hint; "" where nothing is.
struct Refusal {
  Code code = Code::io;
  std::string text;
};
Refusal refusal_of(const std::shared_ptr<const formats::SourceTree>& tree);

}  // namespace ebb::folders_test
