#include "tests/durability/disk_tree.h"

namespace ebb::test {
namespace {

using libswap::IoQueue;
using libswap::fs::path;
using test_support::MemoryTree;

Result<> add_file(IoQueue& io, const path& file, const std::string& name, MemoryTree& tree) {
  EBB_TRY_ASSIGN(const auto opened, io.backend().open(file, {}));
  const auto read = [&]() -> Result<ByteVector> {
    EBB_TRY_ASSIGN(const auto info, io.backend().info(opened));
    ByteVector bytes(info.size);
    if (!bytes.empty()) EBB_TRY(io.read(opened, 0, bytes));
    return bytes;
  };
  auto bytes = read();
  EBB_TRY(io.backend().close(opened));
  if (!bytes) return std::move(bytes).error();
  tree.add(name, std::move(*bytes));
  return {};
}

Result<> add_folder(IoQueue& io, const path& root, const std::string& below, MemoryTree& tree) {
  EBB_TRY_ASSIGN(const auto names, io.backend().list(root / below));
  for (const std::string& name : names) {
    const std::string inside = below.empty() ? name : below + "/" + name;
    EBB_TRY_ASSIGN(const bool folder, io.backend().is_directory(root / inside));
    EBB_TRY(folder ? add_folder(io, root, inside, tree)
                   : add_file(io, root / inside, inside, tree));
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<MemoryTree>> tree_on_disk(IoQueue& io, const path& folder) {
  auto tree = std::make_shared<MemoryTree>(folder.string());
  EBB_TRY(add_folder(io, folder, "", *tree));
  return tree;
}

}  // namespace ebb::test
