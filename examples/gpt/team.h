// Team: the ranks of a run, and how those of this process are run.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "ebb/libmuon/comm/communicator.h"

namespace ebb::gpt {

using RankBody = std::function<Result<>(libmuon::Communicator&)>;

class Team {
 public:
  virtual ~Team() = default;
  // Of all ranks together.
  virtual std::uint32_t world() const = 0;
  virtual std::uint32_t processes() const = 0;
  // Whether rank 0 is here: it says what is going on and writes the results.
  virtual bool leads() const = 0;
  // Collective. `body` for each rank of this process. A rank that fails gives up for all. The first
  // error here; that another rank failed is the news only where nobody says more.
  virtual Result<> run(const RankBody& body) = 0;
  // Collective. Of what each process has.
  virtual Result<std::uint64_t> sum(std::uint64_t mine) = 0;
};

// All ranks are threads of this process.
class ThreadTeam : public Team {
 public:
  // `limit`: how long ranks wait for one that does not come.
  ThreadTeam(std::uint32_t world, std::chrono::milliseconds limit) : world_(world), limit_(limit) {}
  std::uint32_t world() const override { return world_; }
  std::uint32_t processes() const override { return 1; }
  bool leads() const override { return true; }
  Result<> run(const RankBody& body) override;
  Result<std::uint64_t> sum(std::uint64_t mine) override { return mine; }

 private:
  const std::uint32_t world_;
  const std::chrono::milliseconds limit_;
};

// One rank of a world of processes.
class ProcessTeam : public Team {
 public:
  explicit ProcessTeam(std::unique_ptr<libmuon::Communicator> rank) : rank_(std::move(rank)) {}
  std::uint32_t world() const override { return rank_->world(); }
  std::uint32_t processes() const override { return rank_->world(); }
  bool leads() const override { return rank_->rank() == Rank{0}; }
  Result<> run(const RankBody& body) override;
  Result<std::uint64_t> sum(std::uint64_t mine) override;

 private:
  const std::unique_ptr<libmuon::Communicator> rank_;
};

}  // namespace ebb::gpt
