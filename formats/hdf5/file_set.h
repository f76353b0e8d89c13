// The files of a checkpoint as the reader program described them, with what concerns names settled:
// soft links resolved, links that lead away refused, sources of virtual datasets found.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ebb/formats/core/byte_source.h"
#include "ebb/formats/hdf5/description.h"
#include "ebb/formats/hdf5/superblock.h"

namespace ebb::formats::hdf5 {

struct File {
  std::string name;  // in the tree
  std::shared_ptr<const ByteSource> source;
  Superblock superblock;
  Description description;
  std::map<std::string, std::size_t> datasets;              // path -> number in the description
  std::vector<std::pair<std::string, std::size_t>> listed;  // what it offers, aliases included
  std::vector<std::string> notes;

  std::string_view shown() const { return source->name(); }
  std::uint64_t bytes() const { return source->size() - superblock.at; }
};

class FileSet {
 public:
  // A dataset that a mapping takes elements from.
  struct Source {
    std::size_t file = 0;
    const Dataset* dataset = nullptr;
  };

  // Reads every HDF5 file of the tree.
  static Result<FileSet> open(std::shared_ptr<const SourceTree> tree);

  const std::vector<File>& files() const { return files_; }
  // Where a mapping of a dataset of file `from` leads; Code::incomplete when nothing is there,
  // Code::unsupported when it leads outside the checkpoint.
  Result<Source> source_of(std::size_t from, const Dataset& dataset, const Mapping& mapping) const;
  // Datasets that some virtual dataset shows: {file, path}.
  const std::set<std::pair<std::size_t, std::string>>& sources() const { return sources_; }

 private:
  Result<> add(const SourceTree& tree, const std::string& name);
  Result<> find_sources();

  std::vector<File> files_;
  std::set<std::pair<std::size_t, std::string>> sources_;
  bool single_ = false;  // the tree is one file alone, perhaps of several
};

// Names that end like HDF5 files: .h5, .hdf5, .hdf.
bool looks_like_hdf5(std::string_view name);

}  // namespace ebb::formats::hdf5
