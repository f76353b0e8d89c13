#include "ebb/libswap/queue/io_scheduler.h"

#include <algorithm>
#include <cerrno>
#include <limits>

#include "ebb/libswap/sys/errno_error.h"
#include "ebb/libswap/sys/when_memory.h"

namespace ebb::libswap {
namespace {

// EINTR and EAGAIN end by themselves; a file that gives nothing for so long will not.
constexpr std::uint32_t kMaxTries = 100;
constexpr std::uint64_t kMaxOffset = std::numeric_limits<std::int64_t>::max();

std::string_view verb_of(RawOp::Kind kind) { return kind == RawOp::Kind::read ? "read" : "write"; }

std::string place_of(const RawOp& op, const std::string& path) {
  return compose("cannot {} {} bytes at {}:{}", verb_of(op.kind), op.size, path, op.offset);
}

}  // namespace

IoScheduler::IoScheduler(IoBackend& backend, const IoOptions& options)
    : backend_(backend), options_(options), operations_(backend.capacity()) {
  again_.reserve(operations_.count());
  next_.reserve(operations_.count());
}

void IoScheduler::Row::push_back(Request& request) {
  request.behind = nullptr;
  (empty() ? first_ : last_->behind) = &request;
  last_ = &request;
}

void IoScheduler::Row::pop_front() { first_ = first_->behind; }

void IoScheduler::Row::remove(const Request& request) {
  Request* before = nullptr;
  for (Request* one = first_; one != nullptr; before = one, one = one->behind) {
    if (one != &request) continue;
    (before == nullptr ? first_ : before->behind) = one->behind;
    if (last_ == one) last_ = before;
    return;
  }
}

IoScheduler::Direction IoScheduler::direction_of(RawOp::Kind kind) {
  return kind == RawOp::Kind::read ? Direction::read : Direction::write;
}

IoScheduler::Queue& IoScheduler::queue_of(Priority priority, Direction direction) {
  return waiting_[static_cast<std::size_t>(priority)][static_cast<std::size_t>(direction)];
}

void IoScheduler::add(IoRequest&& request) {
  std::list<Request> fresh(1);
  Request& added = fresh.front();
  if (request.kind != RawOp::Kind::sync_data) {
    if (request.offset > kMaxOffset || request.data.size() > kMaxOffset - request.offset)
      added.error = Error{
          Code::usage, compose("offset {} of {} and {} bytes reach beyond 2^63 - 1", request.offset,
                               backend_.path_of(request.file), request.data.size())};
    added.device = &devices_.of(backend_, request.file);
    if (spare_lines_.empty()) spare_lines_.emplace_back();
  }
  added.asked = std::move(request);  // from here on nothing needs memory
  added.self = fresh.begin();
  requests_.splice(requests_.end(), fresh);
  if (added.asked.kind == RawOp::Kind::sync_data)
    syncs_[static_cast<std::size_t>(added.asked.priority)].push_back(added);
  else
    line_up(added);
}

// Behind others of its file, with the spare line if it is the first.
void IoScheduler::line_up(Request& request) {
  const IoRequest& asked = request.asked;
  if (asked.priority == Priority::step) ++step_transfers_;
  if (asked.data.empty() || request.error) {
    request.issued = asked.data.size();
    finish_if_done(request);
    return;
  }
  Queue& queue = queue_of(asked.priority, direction_of(asked.kind));
  auto line = std::ranges::find(queue, asked.file, &Line::file);
  if (line == queue.end()) {
    queue.splice(queue.end(), spare_lines_, spare_lines_.begin());
    line = std::prev(queue.end());
    line->file = asked.file;
  }
  line->requests.push_back(request);
}

// A file that is not open has none: its operations fail.
IoScheduler::Device& IoScheduler::Devices::of(IoBackend& backend, FileId file) {
  const auto known = of_file_.find(file);
  if (known != of_file_.end()) return *known->second;
  const Result<FileInfo> info = backend.info(file);
  Device& device = devices_[info ? info->device : 0];
  constexpr std::size_t kMostKnown = 4096;  // many files are read once
  if (of_file_.size() >= kMostKnown) of_file_.clear();
  if (info) of_file_.emplace(file, &device);
  return device;
}

IoScheduler::Operations::Operations(std::size_t count) : all_(count) {
  for (std::uint64_t tag = count; tag > 0; --tag) free_.push_back(tag - 1);
}

std::uint64_t IoScheduler::Operations::take() {
  const std::uint64_t tag = free_.back();
  free_.pop_back();
  return tag;
}

const std::vector<RawOp>& IoScheduler::next_operations() {
  next_.clear();
  for (const std::uint64_t tag : again_) next_.push_back(operations_[tag].op);
  again_.clear();
  while (issue_sync(Priority::step) || issue_sync(Priority::background)) {
  }
  bool issued = true;
  while (issued) {
    // Background first: it has earned its credit, and a busy step would leave it no bytes in
    // flight.
    issued = issue_chunk(Priority::background, Direction::read);
    issued |= issue_chunk(Priority::background, Direction::write);
    issued |= issue_chunk(Priority::step, Direction::read);
    issued |= issue_chunk(Priority::step, Direction::write);
  }
  stats_.operations += next_.size();
  EBB_CHECK(requests_.empty() || !operations_.all_free());  // nothing waits for ever
  return next_;
}

bool IoScheduler::issue_sync(Priority priority) {
  Row& row = syncs_[static_cast<std::size_t>(priority)];
  if (row.empty() || operations_.none_free()) return false;
  Request& request = row.front();
  row.pop_front();
  emit(request, {RawOp::Kind::sync_data, request.asked.file, 0, nullptr, 0, 0});
  return true;
}

std::uint32_t IoScheduler::next_size(const Request& request) const {
  const std::uint64_t left = request.asked.data.size() - request.issued;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(options_.chunk_bytes, left));
}

// Of the first file whose turn it is and whose device has room.
bool IoScheduler::issue_chunk(Priority priority, Direction direction) {
  Queue& queue = queue_of(priority, direction);
  if (operations_.none_free()) return false;
  const auto turn = std::ranges::find_if(
      queue, [&](const Line& line) { return may_issue(line.requests.front(), direction); });
  if (turn == queue.end()) return false;
  Request& request = turn->requests.front();
  const IoRequest& asked = request.asked;
  const std::uint32_t size = next_size(request);
  if (priority == Priority::step) {
    const std::uint64_t most = std::uint64_t{options_.chunk_bytes} * options_.background_share;
    credit_ = std::min(credit_ + size, 2 * most);
  } else if (step_transfers_ > 0) {
    credit_ -= std::uint64_t{size} * options_.background_share;
  }
  const std::uint64_t at = request.issued;
  request.issued += size;
  if (request.issued == asked.data.size()) turn->requests.pop_front();
  Queue& next = turn->requests.empty() ? spare_lines_ : queue;
  next.splice(next.end(), queue, turn);
  emit(request, {asked.kind, asked.file, asked.offset + at, asked.data.data() + at, size, 0});
  return true;
}

bool IoScheduler::may_issue(const Request& request, Direction direction) const {
  const std::uint64_t size = next_size(request);
  const std::uint64_t limit =
      direction == Direction::read ? options_.read_bytes_in_flight : options_.write_bytes_in_flight;
  const std::uint64_t used = request.device->bytes_in_flight[static_cast<std::size_t>(direction)];
  if (used > 0 && used + size > limit) return false;
  if (request.asked.priority == Priority::step || step_transfers_ == 0) return true;
  return credit_ >= size * options_.background_share;
}

void IoScheduler::emit(Request& request, const RawOp& op) {
  const std::uint64_t tag = operations_.take();
  Operation& operation = operations_[tag];
  operation = {&request, op, op.size, 0};
  operation.op.tag = tag;
  ++request.outstanding;
  if (op.kind != RawOp::Kind::sync_data) in_flight(operation) += op.size;
  next_.push_back(operation.op);
}

std::uint64_t& IoScheduler::in_flight(const Operation& operation) {
  const auto direction = static_cast<std::size_t>(direction_of(operation.op.kind));
  return operation.request->device->bytes_in_flight[direction];
}

void IoScheduler::leave(Queue& queue, const Request& request) {
  for (auto line = queue.begin(); line != queue.end();) {
    const auto one = line++;
    one->requests.remove(request);
    if (one->requests.empty()) spare_lines_.splice(spare_lines_.end(), queue, one);
  }
}

void IoScheduler::complete(const RawDone& done) {
  EBB_CHECK(done.tag < operations_.count());
  Operation& operation = operations_[done.tag];
  EBB_CHECK(operation.request != nullptr);
  const RawOp& op = operation.op;
  if (done.result == -EINTR || done.result == -EAGAIN) return repeat(operation, -done.result);
  if (done.result < 0)
    return fail(operation, when_memory([&] { return error_of(op, -done.result); }));
  if (op.kind == RawOp::Kind::sync_data) {
    ++stats_.syncs;
    return retire(operation);
  }
  const auto moved = static_cast<std::uint32_t>(done.result);
  if (moved > op.size) return fail(operation, when_memory([&] { return too_many(op, moved); }));
  if (moved < op.size) return resume(operation, moved);
  (op.kind == RawOp::Kind::read ? stats_.read_bytes : stats_.written_bytes) += moved;
  retire(operation);
}

// The rest of a short transfer goes out again. With direct I/O it starts at the last aligned byte:
// the few bytes before the kernel's count move twice.
void IoScheduler::resume(Operation& operation, std::uint32_t moved) {
  RawOp& op = operation.op;
  ++stats_.short_transfers;
  Result<FileInfo> info = when_memory([&] { return backend_.info(op.file); });
  if (!info) return fail(operation, std::move(info).error());
  if (op.kind == RawOp::Kind::read && op.offset + moved >= info->size)
    return fail(operation, when_memory([&] { return file_ends(op, info->size); }));
  const std::uint32_t progress = info->direct ? moved - moved % info->alignment : moved;
  if (progress == 0) return repeat(operation, EIO);
  (op.kind == RawOp::Kind::read ? stats_.read_bytes : stats_.written_bytes) += progress;
  op.offset += progress;
  op.data += progress;
  op.size -= progress;
  operation.tries = 0;
  again_.push_back(op.tag);
}

void IoScheduler::repeat(Operation& operation, int why) {
  if (++operation.tries == kMaxTries)
    return fail(operation, when_memory([&] {
                  Error error = error_of(operation.op, why);
                  error.message += compose(", {} times in a row", kMaxTries);
                  return error;
                }));
  if (why != EIO) ++stats_.retries;
  pause_ |= why == EAGAIN;
  again_.push_back(operation.op.tag);
}

void IoScheduler::fail(Operation& operation, Error error) {
  Request& request = *operation.request;
  if (!request.error) {
    request.error = std::move(error);
    for (auto& queues : waiting_)
      for (Queue& queue : queues) leave(queue, request);
    request.issued = request.asked.data.size();
  }
  retire(operation);
}

void IoScheduler::retire(Operation& operation) {
  Request& request = *operation.request;
  const RawOp& op = operation.op;
  if (op.kind != RawOp::Kind::sync_data) in_flight(operation) -= operation.charged;
  operations_.give_back(op.tag);
  operation.request = nullptr;
  --request.outstanding;
  finish_if_done(request);
}

void IoScheduler::finish_if_done(Request& request) {
  if (request.outstanding > 0 || request.issued < request.asked.data.size()) return;
  const bool transfer = request.asked.kind != RawOp::Kind::sync_data;
  if (transfer && request.asked.priority == Priority::step) --step_transfers_;
  finished_.splice(finished_.end(), requests_, request.self);
}

void IoScheduler::answer_finished() {
  std::list<Request> answers;
  answers.swap(finished_);
  for (Request& request : answers) {
    if (!request.asked.done) continue;
    request.asked.done(request.error ? Result<>(*std::move(request.error)) : Result<>());
  }
}

Error IoScheduler::error_of(const RawOp& op, int number) const {
  const std::string path = backend_.path_of(op.file);
  if (op.kind == RawOp::Kind::sync_data) return errno_error(number, "cannot sync " + path);
  Error error = errno_error(number, place_of(op, path));
  if (number == EINVAL) {
    const Result<FileInfo> info = backend_.info(op.file);
    if (info && info->direct) {
      error.message +=
          compose("; direct I/O needs offset, size and memory at multiples of {}", info->alignment);
    }
  }
  if (number == EIO) error.hint = "dmesg | tail";
  return error;
}

Error IoScheduler::too_many(const RawOp& op, std::uint32_t moved) const {
  return {Code::io, compose("{}: the {} backend reports {} bytes moved",
                            place_of(op, backend_.path_of(op.file)), backend_.name(), moved)};
}

Error IoScheduler::file_ends(const RawOp& op, std::uint64_t size) const {
  return {Code::incomplete,
          compose("{}: the file ends at {}", place_of(op, backend_.path_of(op.file)), size)};
}

}  // namespace ebb::libswap
