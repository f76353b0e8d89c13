// Attempt: one try at writing a destination, from nothing or resuming an interrupted one of the
// same plan and source.
//
// What is noted as durable is written into a journal beside the destination about once an interval;
// nothing is written before the first interval is over, so that short work leaves no journal. An
// attempt that is given up because it was asked to stop keeps directory and journal; any other end
// removes them.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ebb/libswap/publish/journal.h"
#include "ebb/libswap/publish/temporaries.h"

namespace ebb::libswap {

class Attempt {
 public:
  // `identity` is of plan and source; "": never resumes and never leaves anything. Attempts at the
  // same destination that are dead and of another identity are removed.
  static Result<Attempt> begin(IoQueue& io, const fs::path& destination, std::string identity,
                               std::chrono::milliseconds interval);

  const Temporary& temporary() const { return temporary_; }
  // What need not be made again; empty when this one starts from nothing.
  std::span<const WrittenSegment> finished() const { return finished_; }
  // Nothing is finished, or it turned out to be of no use: removes what is there.
  Result<> start_over();

  // The data of these segments is durable. True when save() is due.
  bool note(std::span<const WrittenSegment> segments);
  // Into the journal, with everything noted before. REQUIRES: the names of the segments' files are
  // durable, too.
  Result<> save();
  bool can_be_kept() const { return !identity_.empty(); }
  void keep() { temporary_.keep(); }

 private:
  using Clock = std::chrono::steady_clock;
  Attempt(IoQueue& io, Temporary temporary, std::string identity,
          std::chrono::milliseconds interval);

  IoQueue* io_;
  Temporary temporary_;
  std::string identity_;
  std::chrono::milliseconds interval_;
  std::unique_ptr<Journal> journal_;
  std::vector<WrittenSegment> finished_;
  std::vector<WrittenSegment> unsaved_;
  Clock::time_point saved_ = Clock::now();
};

}  // namespace ebb::libswap
