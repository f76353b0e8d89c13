// A case: a parameter, its gradients, and what an implementation made of them, as trace.safetensors
// and case.json of one folder hold it.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "tests/replay/fields.h"

namespace ebb::replay {

using Numbers = std::vector<double>;

class Case {
 public:
  static Result<Case> open(const std::filesystem::path& folder);

  const std::string& name() const { return name_; }
  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }  // of the parameter
  std::uint64_t steps() const { return grad_of_step_.size(); }
  Fields file() const { return {*json_, "case.json: "}; }

  bool has(std::string_view tensor) const { return find(tensor) != nullptr; }
  // Code::usage where the trace does not have it.
  Result<Shape> shape_of(std::string_view tensor) const;
  Result<std::vector<float>> tensor(std::string_view tensor) const;
  // Of a 1-based step.
  Result<std::vector<float>> gradient(std::uint64_t step) const;
  // Those of "<run>.<what>.<step>", ascending.
  std::vector<std::uint64_t> steps_of(std::string_view run, std::string_view what) const;

 private:
  const TensorEntry* find(std::string_view tensor) const;
  Result<const TensorEntry*> need(std::string_view tensor) const;

  std::string name_;
  Shape shape_;
  DType dtype_ = DType::f32;
  std::vector<std::uint64_t> grad_of_step_;
  std::shared_ptr<const Value> json_;
  std::shared_ptr<const Checkpoint> trace_;
};

}  // namespace ebb::replay
