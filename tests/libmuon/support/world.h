// Ranks as threads over one queue and swap directory, for tests that look at each rank's answers:
// what an engine needs besides its configuration, on any backend.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ebb/libmuon/step/engine.h"
#include "tests/libmuon/support/trainer_buffer.h"

namespace ebb::test {

// The one this machine has.
std::unique_ptr<libswap::IoBackend> disk();

// In (-1, 1), a function of its three arguments alone.
float noise(std::uint64_t a, std::uint64_t b, std::uint64_t c);

// Initial weights of all engine tests.
void noisy_weights(std::uint32_t param, FlatRange range, std::span<float> into);
// The same rounded to bf16: what weights of any dtype that are bound can be.
void noisy_bf16_weights(std::uint32_t param, FlatRange range, std::span<float> into);

// A communicator that does what the one below it does; tests change a verb of it. Its duplicates
// are those of the one below: a test that changes them too has to say so.
class RanksBelow : public libmuon::Communicator {
 public:
  explicit RanksBelow(libmuon::Communicator& below) : below_(below) {}
  explicit RanksBelow(std::unique_ptr<libmuon::Communicator> below)
      : owned_(std::move(below)), below_(*owned_) {}
  Rank rank() const override { return below_.rank(); }
  std::uint32_t world() const override { return below_.world(); }
  std::chrono::milliseconds limit() const override { return below_.limit(); }
  Result<std::int64_t> agree(std::int64_t mine) override { return below_.agree(mine); }
  Result<> sum(std::span<std::int64_t> numbers) override { return below_.sum(numbers); }
  bool takes(const libswap::Device& device) const override { return below_.takes(device); }
  Result<libswap::Event> begin_exchange(std::span<const libmuon::SendBuffer> sends,
                                        std::span<const libmuon::ReceiveBuffer> receives,
                                        std::span<const libswap::Event> after) override {
    return below_.begin_exchange(sends, receives, after);
  }
  Result<std::unique_ptr<libmuon::Communicator>> duplicate() override { return below_.duplicate(); }
  void abort() override { below_.abort(); }

 private:
  std::unique_ptr<libmuon::Communicator> owned_;
  libmuon::Communicator& below_;
};

// As ranks of several machines are that know nothing of devices: messages lie on the host, or the
// test program aborts.
class HostRanks : public RanksBelow {
 public:
  using RanksBelow::RanksBelow;
  bool takes(const libswap::Device& /*device*/) const override { return false; }
  Result<libswap::Event> begin_exchange(std::span<const libmuon::SendBuffer> sends,
                                        std::span<const libmuon::ReceiveBuffer> receives,
                                        std::span<const libswap::Event> after) override;
  Result<std::unique_ptr<Communicator>> duplicate() override;
};

class World {
 public:
  // Aborts the test program where the directory cannot be opened.
  World(std::unique_ptr<libswap::IoBackend> backend, const std::filesystem::path& directory,
        std::uint32_t ranks);

  // Runs `body` on a thread a rank; what each answered. A rank that fails gives up for all.
  std::vector<Result<>> run(const std::function<Result<>(libmuon::Communicator&)>& body);

  libswap::IoQueue& io() { return *io_; }
  libswap::SwapDirectory& swap() { return *swap_; }
  void reopen(std::uint32_t ranks);  // new communicators and swap directory, the same queue
  void reconnect();                  // new communicators, after somebody gave up

 private:
  std::filesystem::path path_;
  std::unique_ptr<libswap::IoQueue> io_;
  std::unique_ptr<libswap::SwapDirectory> swap_;
  std::vector<std::unique_ptr<libmuon::Communicator>> ranks_;
};

// What a policy wants of each parameter: an owner, or rows by shard, of which some have none.
// REQUIRES: the mesh is set.
void add_lists(std::span<const Shape> shapes, Layout::Spec& spec);

// One rank's engine with its weights and gradients.
class RankEngine {
 public:
  static Result<RankEngine> open(World& world, libmuon::Communicator& ranks,
                                 const libmuon::EngineConfig& config,
                                 const Checkpoint* checkpoint = nullptr);
  static Result<RankEngine> open(libswap::IoQueue& io, libswap::SwapDirectory& swap,
                                 libmuon::Communicator& ranks, const libmuon::EngineConfig& config,
                                 const Checkpoint* checkpoint = nullptr);

  // Begins from weights that are bound: value(param, element). `start` says the rest.
  using Value = std::function<float(std::uint32_t param, std::uint64_t element)>;
  static Result<RankEngine> open_bound(World& world, libmuon::Communicator& ranks,
                                       const libmuon::EngineConfig& config, const Value& value,
                                       libmuon::Start start = {});

  // Noise times `scale`.
  void make_gradients(std::uint64_t step, float scale = 1);
  // Makes them and hands them in; nothing is stepped.
  Result<> hand_in(std::uint64_t step, float scale = 1);
  Result<libmuon::StepResult> step(const libmuon::StepArgs& args = {});
  // snapshot() and wait_snapshot().
  Result<std::uint64_t> commit();

  libmuon::Engine& engine() { return *engine_; }
  std::vector<std::vector<float>>& weights() { return *weights_; }
  std::vector<std::vector<float>>& gradients() { return gradients_; }
  // Where weights in bf16 are bound. REQUIRES: all are in bf16.
  TrainerBuffer& bf16_weights(std::uint32_t param) { return apart_weights_[param]; }
  // All weights one after another, from wherever they lie.
  std::vector<float> flat_weights();
  // The trainer writes to its weights, where it has them.
  using Edit = std::function<void(std::uint32_t param, std::uint64_t element, float& weight)>;
  void edit_weights(const Edit& edit);
  // commit(), and all that is stored then, by "name state".
  Result<std::map<std::string, std::vector<float>>> stored();

 private:
  void make_buffers(const libmuon::StatePlan& plan);
  libswap::Buffer weights_of(std::uint32_t param);
  void edit_weights(const libmuon::StatePlan& plan, const Edit& edit);

  libmuon::EngineConfig config_;
  Rank rank_{};
  std::unique_ptr<std::vector<std::vector<float>>> weights_;  // their addresses are bound
  std::vector<std::vector<float>> gradients_;
  // What lies on the accelerator's device, if it does.
  std::vector<TrainerBuffer> device_gradients_;
  std::vector<TrainerBuffer> apart_weights_;  // on that device, or in bf16
  std::vector<std::size_t> apart_;            // by parameter: which of them
  std::unique_ptr<libmuon::Engine> engine_;
};

// Every tensor of a store or checkpoint, by "name state", as fp32; empty and a failure if it cannot
// be read.
std::map<std::string, std::vector<float>> tensors_of(const Checkpoint& checkpoint);
std::map<std::string, std::vector<float>> tensors_of(const std::filesystem::path& directory);

}  // namespace ebb::test
