// ScatteredStore: a store whose rank folders lie in many directories, as one tree of files. What
// this rank reaches it reads itself; the rest comes from the first rank that reaches it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/core/byte_source.h"
#include "ebb/libswap/store/agreement.h"
#include "ebb/libswap/sys/io_backend.h"

namespace ebb::libswap {

class ScatteredStore {
 public:
  // Collective. `folders`: where this rank may find rank folders of the store; the first names it.
  static Result<std::unique_ptr<ScatteredStore>> open(Ranks& ranks, IoBackend& backend,
                                                      const std::vector<fs::path>& folders);
  ScatteredStore(const ScatteredStore&) = delete;
  ScatteredStore& operator=(const ScatteredStore&) = delete;

  // Whoever reads it does so inside the work of run(). Borrows the store.
  std::shared_ptr<const formats::SourceTree> tree() const;
  // Collective: Ranks::together_reading(), or together() where every rank reaches every file.
  Result<> run(Ranks& ranks, std::string_view doing, const std::function<Result<>()>& work);

 private:
  // A file of the store, as all ranks know it.
  struct File {
    std::string name;
    std::uint64_t size = 0;
    Rank holder{};                 // the first that reaches it
    std::uint32_t reached_by = 0;  // ranks
  };
  class Tree;
  class RemoteSource;
  using Trees = std::vector<std::shared_ptr<const formats::SourceTree>>;
  ScatteredStore(std::string root, Trees here) : root_(std::move(root)), here_(std::move(here)) {}
  Result<> find_files(Ranks& ranks);
  const formats::SourceTree* tree_with(std::string_view name) const;
  Result<> read_here(std::uint32_t file, std::uint64_t offset, std::span<std::byte> into) const;

  const std::string root_;
  const Trees here_;
  std::vector<File> files_;           // by name
  const ReadThere* there_ = nullptr;  // inside run()
};

}  // namespace ebb::libswap
