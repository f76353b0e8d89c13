#include "tests/libmuon/support/mailboxes.h"

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

namespace ebb::test {
namespace {

using libmuon::Transport;

constexpr std::size_t kShort = 4096;  // has gone as soon as it is sent

struct Boxes {
  explicit Boxes(Inspect look) : inspect(std::move(look)) {}

  const Inspect inspect;
  std::mutex mutex;
  // By receiver and tag.
  std::map<std::pair<Rank, std::uint32_t>, std::deque<Transport::Arrived>> boxes;
};

class Mailbox : public Transport {
 public:
  Mailbox(std::shared_ptr<Boxes> boxes, Rank rank, std::uint32_t world)
      : boxes_(std::move(boxes)), rank_(rank), world_(world) {}
  Rank rank() const override { return rank_; }
  std::uint32_t world() const override { return world_; }
  std::uint32_t tags() const override { return 32767; }

  Result<> send(Rank to, std::uint32_t tag, ByteVector message) override {
    EBB_TRY(boxes_->inspect(rank_, to, tag, message));
    const std::lock_guard lock(boxes_->mutex);
    boxes_->boxes[{to, tag}].push_back({rank_, std::move(message)});
    return {};
  }
  Result<std::vector<Rank>> unsent(std::uint32_t tag) override {
    const std::lock_guard lock(boxes_->mutex);
    std::vector<Rank> all;
    for (const auto& [where, box] : boxes_->boxes)
      for (const Arrived& one : box)
        if (where.second == tag && one.from == rank_ && one.message.size() > kShort)
          all.push_back(where.first);
    return all;
  }
  Result<std::optional<Arrived>> receive(std::uint32_t tag) override {
    const std::lock_guard lock(boxes_->mutex);
    auto& box = boxes_->boxes[{rank_, tag}];
    if (box.empty()) return std::optional<Arrived>();
    std::optional<Arrived> first = std::move(box.front());
    box.pop_front();
    return first;
  }

 private:
  const std::shared_ptr<Boxes> boxes_;
  const Rank rank_;
  const std::uint32_t world_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> make_mailboxes(std::uint32_t world, Inspect inspect) {
  const auto boxes = std::make_shared<Boxes>(std::move(inspect));
  std::vector<std::unique_ptr<Transport>> all;
  for (std::uint32_t rank = 0; rank < world; ++rank)
    all.push_back(std::make_unique<Mailbox>(boxes, Rank{rank}, world));
  return all;
}

}  // namespace ebb::test
