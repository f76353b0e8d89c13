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

class MadeContent : public formats::Checkpoint {
 public:
  struct Param {
    std::string name;
    formats::Shape shape;
  };

  // `format`: what it claims to be read from.
  MadeContent(std::string format, formats::DType model);

  // A group of "muon" (momentum_buffer, no steps) or any other optimizer (Adam's moments, steps).
  // Masters are F32, the model's own copy is the rounded master.
  void add_group(const std::string& optimizer, const std::vector<Param>& params, double lr);
  void add_frozen(const std::string& name, const formats::Shape& shape);
  void add_buffer(const std::string& name, formats::DType dtype, const formats::Shape& shape);
  void add_value(const std::string& key, formats::Value value);

  formats::Catalog& edit() { return catalog_; }
  const formats::Catalog& catalog() const override { return catalog_; }
  formats::Result<> read(const formats::TensorEntry& tensor, const formats::Chunk& chunk,
                         std::uint64_t first, std::span<std::byte> into) const override;

 private:
  void add(const std::string& name, const std::string& state, formats::DType dtype,
           const formats::Shape& shape, formats::ByteVector bytes);
  formats::ByteVector fresh(formats::DType dtype, const formats::Shape& shape);

  formats::Catalog catalog_;
  formats::DType model_;
  std::vector<formats::ByteVector> bytes_;  // by tensor
  std::uint32_t next_ = 0;
};

// A dict of string keys.
formats::Value dict_value(std::vector<std::pair<std::string, formats::Value>> entries);

// One line for each tensor, group, step and value that `again` lacks or holds differently; it may
// hold more. A "param" that `again` does not store must be its rounded master there.
std::string content_differences(const formats::Checkpoint& content,
                                const formats::Checkpoint& again);

// The layout of the content's tensors under a policy.
formats::Layout layout_for(const formats::Catalog& content, formats::Policy policy,
                           std::uint32_t world);

}  // namespace ebb::test_support
