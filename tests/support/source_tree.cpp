#include "tests/support/source_tree.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include "ebb/formats/core/bytes.h"

namespace ebb::test_support {

void MemoryTree::add(std::string name, ByteVector bytes) {
  files_.emplace_back(std::move(name), std::move(bytes));
  std::sort(files_.begin(), files_.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  entries_.clear();
  for (const auto& [file, content] : files_) entries_.push_back({file, content.size()});
}

void MemoryTree::add(std::string name, std::string_view text) {
  ByteVector bytes;
  formats::append_text(bytes, text);
  add(std::move(name), std::move(bytes));
}

ByteVector& MemoryTree::bytes_of(std::string_view name) {
  const auto found = std::find_if(files_.begin(), files_.end(),
                                  [&](const auto& file) { return file.first == name; });
  EBB_CHECK(found != files_.end());
  return found->second;
}

Result<std::shared_ptr<const formats::ByteSource>> MemoryTree::open(std::string_view name) const {
  for (const auto& [file, content] : files_)
    if (file == name)
      return std::shared_ptr<const formats::ByteSource>(
          std::make_shared<formats::MemorySource>(root_ + "/" + file, content));
  return Error{Code::io, root_ + ": no file " + std::string(name)};
}

std::shared_ptr<MemoryTree> load_tree(const std::filesystem::path& path) {
  const auto read = [](const std::filesystem::path& file) {
    std::ifstream in(file, std::ios::binary);
    EBB_CHECK(in.good());
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    ByteVector bytes;
    formats::append_text(bytes, text);
    return bytes;
  };
  auto tree = std::make_shared<MemoryTree>(path.string());
  if (std::filesystem::is_regular_file(path)) {
    tree->add(path.filename().string(), read(path));
    return tree;
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path))
    if (entry.is_regular_file())
      tree->add(std::filesystem::relative(entry.path(), path).generic_string(), read(entry.path()));
  return tree;
}

}  // namespace ebb::test_support
