// An engine that trains one parameter, as a trainer would: gradients in, weights and state out.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "ebb/libmuon/step/engine.h"
#include "tests/replay/case.h"

namespace ebb::replay {

class Rehearsal {
 public:
  // One rank with as little memory as works, so that its tiles are paged, below `folder`.
  struct Of {
    Shape shape;
    DType dtype = DType::f32;  // of gradients, weights and momentum
    libmuon::GroupSpec group;
    std::vector<float> param;                // numbers of `dtype`
    std::optional<libmuon::Bf16> bf16 = {};  // as EngineConfig::bf16
  };
  static Result<std::unique_ptr<Rehearsal>> open(Of of, const std::filesystem::path& folder);
  ~Rehearsal();

  Result<> step(const std::vector<float>& gradient);
  // As the trainer has them, rounded to its dtype.
  const std::vector<float>& weights() const { return weights_; }
  // As the store has it; commits first.
  Result<std::vector<float>> state(std::string_view name);

 private:
  explicit Rehearsal(Of of) : of_(std::move(of)), weights_(of_.param) {}

  const Of of_;
  std::unique_ptr<libswap::IoQueue> io_;
  std::unique_ptr<libswap::SwapDirectory> swap_;
  std::vector<std::unique_ptr<libmuon::Communicator>> ranks_;
  std::vector<float> weights_, gradient_;
  std::unique_ptr<libmuon::Engine> engine_;
};

// A folder of its own for files that go with the object.
class Scratch {
 public:
  static Result<std::unique_ptr<Scratch>> make();
  ~Scratch();
  // Another one inside each time.
  std::filesystem::path next();

 private:
  explicit Scratch(std::filesystem::path path) : path_(std::move(path)) {}
  std::filesystem::path path_;
  int count_ = 0;
};

}  // namespace ebb::replay
