#include "ebb/libswap/publish/attempt.h"

#include <utility>

namespace ebb::libswap {

Attempt::Attempt(IoQueue& io, Temporary temporary, std::string identity,
                 std::chrono::milliseconds interval)
    : io_(&io),
      temporary_(std::move(temporary)),
      identity_(std::move(identity)),
      interval_(interval) {}

Result<Attempt> Attempt::begin(IoQueue& io, const fs::path& destination, std::string identity,
                               std::chrono::milliseconds interval) {
  EBB_TRY_ASSIGN(const auto ids, journaled_attempts(io.backend(), destination));
  for (const std::string& id : ids) {
    EBB_TRY_ASSIGN(std::optional<Temporary> left, Temporary::adopt(io.backend(), destination, id));
    if (!left) continue;
    EBB_TRY_ASSIGN(auto content, read_journal(io, left->journal()));
    if (identity.empty() || !content || content->identity != identity) continue;  // removes it
    Attempt attempt(io, *std::move(left), std::move(identity), interval);
    EBB_TRY_ASSIGN(attempt.journal_,
                   Journal::reopen(io, attempt.temporary_.journal(), content->bytes));
    attempt.finished_ = std::move(content->segments);
    return attempt;
  }
  EBB_TRY_ASSIGN(Temporary temporary, Temporary::reserve(io.backend(), destination));
  return Attempt(io, std::move(temporary), std::move(identity), interval);
}

Result<> Attempt::start_over() {
  finished_.clear();
  journal_.reset();
  EBB_TRY(remove_tree(io_->backend(), temporary_.journal()));
  return remove_tree(io_->backend(), temporary_.fresh());
}

bool Attempt::note(std::span<const WrittenSegment> segments) {
  if (identity_.empty()) return false;
  unsaved_.insert(unsaved_.end(), segments.begin(), segments.end());
  return Clock::now() - saved_ >= interval_;
}

Result<> Attempt::save() {
  if (journal_ == nullptr) {
    EBB_TRY_ASSIGN(journal_, Journal::create(*io_, temporary_.journal(), identity_));
    EBB_TRY(io_->backend().sync_directory(temporary_.journal().parent_path()));
  }
  EBB_TRY(journal_->append(unsaved_));
  unsaved_.clear();
  saved_ = Clock::now();
  return {};
}

}  // namespace ebb::libswap
