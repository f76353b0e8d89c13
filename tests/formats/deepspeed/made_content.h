// Content for DeepSpeed's writers, made in memory: parameters of any shape with their optimizer
// state, in groups. Elements are different everywhere, so that a swapped or shifted one is seen.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/layout/layout.h"
#include "tests/support/source_tree.h"

namespace ebb::test_support {

class MadeContent : public Checkpoint {
 public:
  struct Param {
    std::string name;
    Shape shape;
  };

  // `format`: what it claims to be read from.
  MadeContent(std::string format, DType model);

  // A group of "muon" (momentum_buffer, no steps) or any other optimizer (Adam's moments, steps).
  // Masters are F32, the model's own copy is the rounded master.
  void add_group(const std::string& optimizer, const std::vector<Param>& params, double lr);
  void add_frozen(const std::string& name, const Shape& shape);
  void add_buffer(const std::string& name, DType dtype, const Shape& shape);
  void add_value(const std::string& key, Value value);

  Catalog& edit() { return catalog_; }
  const Catalog& catalog() const override { return catalog_; }
  Result<> read_chunk(const TensorEntry& tensor, const Chunk& chunk, std::uint64_t first,
                      std::span<std::byte> into) const override;

 private:
  void add(const std::string& name, const std::string& state, DType dtype, const Shape& shape,
           ByteVector bytes);
  ByteVector fresh(DType dtype, const Shape& shape);

  Catalog catalog_;
  DType model_;
  std::vector<ByteVector> bytes_;  // by tensor
  std::uint32_t next_ = 0;
};

// One line for each tensor, group, step and value that `again` lacks or holds differently; it may
// hold more. A "param" that `again` does not store must be its rounded master there.
std::string content_differences(const Checkpoint& content, const Checkpoint& again);

// The layout of the content's tensors under a policy.
Layout layout_for(const Catalog& content, Policy policy, std::uint32_t world);

}  // namespace ebb::test_support
