#include "ebb/libmuon/comm/home_ranks.h"

#include <utility>

#include "ebb/libswap/sys/home_process.h"

namespace ebb::libmuon {
namespace {

class HomeRanks : public Communicator {
 public:
  explicit HomeRanks(std::unique_ptr<Communicator> ranks) : ranks_(std::move(ranks)) {}
  ~HomeRanks() override { home_.let_go(std::move(ranks_)); }
  HomeRanks(const HomeRanks&) = delete;
  HomeRanks& operator=(const HomeRanks&) = delete;

  // Constant: the same in a child.
  Rank rank() const override { return ranks_->rank(); }
  std::uint32_t world() const override { return ranks_->world(); }
  std::chrono::milliseconds limit() const override { return ranks_->limit(); }
  bool takes(const libswap::Device& device) const override { return ranks_->takes(device); }

  Result<std::int64_t> agree(std::int64_t mine) override {
    EBB_TRY(home_.check());
    return ranks_->agree(mine);
  }
  Result<> sum(std::span<std::int64_t> numbers) override {
    EBB_TRY(home_.check());
    return ranks_->sum(numbers);
  }
  Result<libswap::Event> begin_exchange(std::span<const SendBuffer> sends,
                                        std::span<const ReceiveBuffer> receives,
                                        std::span<const libswap::Event> after) override {
    EBB_TRY(home_.check());
    return ranks_->begin_exchange(sends, receives, after);
  }
  Result<std::unique_ptr<Communicator>> duplicate() override {
    EBB_TRY(home_.check());
    EBB_TRY_ASSIGN(auto ranks, ranks_->duplicate());
    return at_home(std::move(ranks));
  }
  void abort() override {
    if (home_.here()) ranks_->abort();
  }

 private:
  const libswap::HomeProcess home_{"communicator"};
  std::unique_ptr<Communicator> ranks_;
};

}  // namespace

std::unique_ptr<Communicator> at_home(std::unique_ptr<Communicator> ranks) {
  return std::make_unique<HomeRanks>(std::move(ranks));
}

}  // namespace ebb::libmuon
