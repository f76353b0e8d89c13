#include "tests/formats/folders/folders_fixtures.h"

#include <gtest/gtest.h>
#include <simdjson.h>

#include <algorithm>
#include <filesystem>

#include "ebb/formats/describe.h"
#include "tests/support/expected.h"

namespace ebb::folders_test {

namespace fs = std::filesystem;
using test_support::MemoryTree;

namespace {
fs::path folder_of(std::string_view name) { return fs::path(EBB_FIXTURES) / "folders" / name; }
}  // namespace

std::shared_ptr<MemoryTree> load(std::string_view name) {
  return test_support::load_tree(folder_of(name) / "data");
}

ByteVector bytes_in(const formats::SourceTree& tree, std::string_view file) {
  const auto source = tree.open(file);
  EXPECT_TRUE(source) << file;
  return *formats::read_bytes(**source, 0, (*source)->size(), 1 << 24);
}

std::shared_ptr<MemoryTree> without(const formats::SourceTree& tree, std::string_view file) {
  auto copy = std::make_shared<MemoryTree>(std::string(tree.root()));
  for (const auto& entry : tree.entries())
    if (entry.name != file) copy->add(entry.name, bytes_in(tree, entry.name));
  return copy;
}

std::map<std::string, std::string> truth_of(std::string_view name) {
  std::map<std::string, std::string> digests;
  simdjson::dom::parser parser;
  simdjson::dom::object truth;
  const auto error = parser.load((folder_of(name) / "truth.json").string()).get(truth);
  EXPECT_EQ(error, simdjson::SUCCESS) << name;
  for (const auto& [key, digest] : truth)
    digests.emplace(std::string(key), std::string(std::string_view(digest)));
  return digests;
}

std::map<std::string, std::string> digests_in(const Checkpoint& checkpoint) {
  std::map<std::string, std::string> digests;
  for (const TensorEntry& tensor : checkpoint.catalog().tensors) {
    const std::string name =
        tensor.state == "param" ? tensor.name : tensor.name + "|" + tensor.state;
    const auto digest = test_support::sha256_of(checkpoint, tensor);
    EXPECT_TRUE(digest) << name;
    EXPECT_TRUE(digests.emplace(name, digest ? *digest : "").second) << name;
  }
  return digests;
}

const formats::Value* value_of(const Catalog& catalog, std::string_view key) {
  const auto found = std::ranges::find(catalog.values, key, &ValueEntry::key);
  return found == catalog.values.end() ? nullptr : &found->value;
}

bool has_note(const Catalog& catalog, std::string_view part) {
  return std::ranges::any_of(
      catalog.notes, [&](const std::string& note) { return note.find(part) != std::string::npos; });
}

Refusal refusal_of(const std::shared_ptr<const formats::SourceTree>& tree) {
  const auto read = formats::describe(tree);
  if (read) return {};
  return {read.error().code, read.error().message + " / " + read.error().hint};
}

}  // namespace ebb::folders_test
