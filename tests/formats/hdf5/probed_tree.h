// HDF5 files for tests without libhdf5: bytes in memory, and what the reader program would say.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "ebb/formats/hdf5/description.h"
#include "tests/support/source_tree.h"

namespace ebb::test_support {

class ProbedTree : public MemoryTree {
 public:
  using MemoryTree::MemoryTree;

  void add_hdf5(const std::string& name, ByteVector bytes,
                const formats::hdf5::Description& description) {
    reports_[std::string(root()) + "/" + name] = encode(description);
    add(name, std::move(bytes));
  }
  ByteVector& report_of(const std::string& name) {
    return reports_[std::string(root()) + "/" + name];
  }
  Result<ByteVector> probe(std::string_view, const formats::ByteSource& file) const override {
    return reports_.at(std::string(file.name()));
  }

 private:
  std::map<std::string, ByteVector> reports_;
};

// A superblock of version 0 and zeros up to `size`, at least 96.
inline ByteVector hdf5_bytes(std::uint64_t size) {
  ByteVector bytes;
  formats::append_text(bytes, std::string_view("\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08\0", 16));
  bytes.resize(24);
  formats::append_le<std::uint64_t>(bytes, 0);
  formats::append_le<std::uint64_t>(bytes, ~std::uint64_t{0});
  formats::append_le<std::uint64_t>(bytes, size);
  bytes.resize(size);
  return bytes;
}

}  // namespace ebb::test_support
