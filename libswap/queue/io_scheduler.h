// IoScheduler: what IoQueue's thread decides - which chunk goes next, and what a completion means.
// No threads and no clocks: tests drive it by hand. Only add() may find no memory; what is under
// way needs none, or waits for it.
//
// A request is cut into chunks of at most chunk_bytes. Within a class and a direction the chunks of
// a file go out in the order of its requests, and files take turns: ranks that share a disk share
// it fairly, however much one of them asks for at once. They go until the device's bytes in flight
// of that direction are used up (one chunk always may), so that no disk waits for a slower one.
// While step requests exist, a background chunk needs credit: `background_share` step bytes for
// each of its bytes. After an error no further chunk of that request starts, and it is answered
// when those in flight are back.
#pragma once

#include <array>
#include <list>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "ebb/libswap/queue/io_request.h"

namespace ebb::libswap {

class IoScheduler {
 public:
  IoScheduler(IoBackend& backend, const IoOptions& options);

  // Where it finds no memory the request is still the caller's, and nothing has changed.
  void add(IoRequest&& request);
  // The operations to give to the backend now; valid until the next call.
  const std::vector<RawOp>& next_operations();
  void complete(const RawDone& done);
  // Whether an operation is to be tried again that only time can help (EAGAIN): pause before the
  // next ones. Once for each time.
  bool take_pause() { return std::exchange(pause_, false); }
  bool has_answers() const { return !finished_.empty(); }
  // Calls `done` of every finished request.
  void answer_finished();
  bool idle() const { return requests_.empty() && finished_.empty(); }
  const IoStats& stats() const { return stats_; }

 private:
  enum class Direction : std::uint8_t { read, write };
  static constexpr std::size_t kDirections = 2;
  static constexpr std::size_t kPriorities = 2;
  struct Device {
    std::array<std::uint64_t, kDirections> bytes_in_flight{};
  };
  struct Request {
    IoRequest asked;
    std::uint64_t issued = 0;       // bytes cut off so far
    std::uint32_t outstanding = 0;  // operations not back yet
    Device* device = nullptr;
    std::optional<Error> error;
    std::list<Request>::iterator self;
    Request* behind = nullptr;  // it, in its row
  };
  // Requests in the order in which they came, each in one row at most.
  class Row {
   public:
    bool empty() const { return first_ == nullptr; }
    Request& front() const { return *first_; }
    void push_back(Request& request);
    void pop_front();
    void remove(const Request& request);  // if it is there

   private:
    Request* first_ = nullptr;
    Request* last_ = nullptr;
  };
  struct Operation {
    Request* request = nullptr;
    RawOp op;
    std::uint32_t charged = 0;  // bytes counted as in flight
    std::uint32_t tries = 0;    // without progress
  };
  // The requests of one file that have chunks left to cut off.
  struct Line {
    FileId file{};
    Row requests;
  };
  using Queue = std::list<Line>;  // the first has waited longest

  // The device of each file that is known.
  class Devices {
   public:
    Device& of(IoBackend& backend, FileId file);

   private:
    std::map<std::uint64_t, Device> devices_;  // by their number
    std::map<FileId, Device*> of_file_;
  };
  // By tag, as many as the backend holds.
  class Operations {
   public:
    explicit Operations(std::size_t count);
    std::size_t count() const { return all_.size(); }
    bool none_free() const { return free_.empty(); }
    bool all_free() const { return free_.size() == all_.size(); }
    Operation& operator[](std::uint64_t tag) { return all_[tag]; }
    std::uint64_t take();
    void give_back(std::uint64_t tag) { free_.push_back(tag); }

   private:
    std::vector<Operation> all_;
    std::vector<std::uint64_t> free_;  // tags
  };

  static Direction direction_of(RawOp::Kind kind);  // of what moves bytes
  Queue& queue_of(Priority priority, Direction direction);
  bool issue_sync(Priority priority);
  std::uint32_t next_size(const Request& request) const;
  bool issue_chunk(Priority priority, Direction direction);
  bool may_issue(const Request& request, Direction direction) const;
  void line_up(Request& request);
  void emit(Request& request, const RawOp& op);
  std::uint64_t& in_flight(const Operation& operation);  // bytes, its way, on its device
  void leave(Queue& queue, const Request& request);

  void resume(Operation& operation, std::uint32_t moved);
  void repeat(Operation& operation, int why);
  void fail(Operation& operation, Error error);
  void retire(Operation& operation);
  void finish_if_done(Request& request);
  Error error_of(const RawOp& op, int number) const;
  Error too_many(const RawOp& op, std::uint32_t moved) const;
  Error file_ends(const RawOp& op, std::uint64_t size) const;

  IoBackend& backend_;
  IoOptions options_;
  std::list<Request> requests_;
  std::list<Request> finished_;
  std::array<std::array<Queue, kDirections>, kPriorities> waiting_;
  Queue spare_lines_;  // empty ones: as many as ever waited at a time
  std::array<Row, kPriorities> syncs_;
  Devices devices_;
  Operations operations_;
  std::uint64_t step_transfers_ = 0;  // step requests that move bytes and are not finished
  std::uint64_t credit_ = 0;          // step bytes a background chunk may be paid from
  std::vector<std::uint64_t> again_;  // tags to submit once more
  std::vector<RawOp> next_;
  bool pause_ = false;
  IoStats stats_;
};

}  // namespace ebb::libswap
