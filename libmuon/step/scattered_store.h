// ScatteredStore: a store whose rank folders lie in many directories, as one tree of files. What
// this rank reaches it reads itself; the rest comes from the first rank that reaches it.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "ebb/formats/core/byte_source.h"
#include "ebb/libmuon/comm/remote_reads.h"
#include "ebb/libswap/sys/io_backend.h"

namespace ebb::libmuon {

// A file of the store, as all ranks know it.
struct ScatteredFile {
  std::string name;
  std::uint64_t size = 0;
  Rank holder{};
};

class ScatteredStore {
 public:
  // Collective. `folders`: where this rank may find rank folders of the store; the first names it.
  static Result<std::unique_ptr<ScatteredStore>> open(
      Communicator& ranks, libswap::IoBackend& backend,
      const std::vector<std::filesystem::path>& folders);
  ScatteredStore(const ScatteredStore&) = delete;
  ScatteredStore& operator=(const ScatteredStore&) = delete;

  // Whoever reads it does so inside the work of run(). Borrows the store.
  std::shared_ptr<const formats::SourceTree> tree() const;
  // Collective: RemoteReads::run().
  Result<> run(Communicator& ranks, std::string_view doing, const std::function<Result<>()>& work) {
    return reads_.run(ranks, doing, work);
  }

 private:
  class Tree;
  class RemoteSource;
  using Trees = std::vector<std::shared_ptr<const formats::SourceTree>>;
  ScatteredStore(std::string root, Trees here);
  const formats::SourceTree* tree_with(std::string_view name) const;
  Result<> read_here(std::uint32_t file, std::uint64_t offset, std::span<std::byte> into) const;

  const std::string root_;
  const Trees here_;
  std::vector<ScatteredFile> files_;  // by name
  mutable RemoteReads reads_;
};

}  // namespace ebb::libmuon
