// HomeProcess: the process that an object was made in. A child made by fork() has a copy of the
// object and none of its threads, rings and buffers; locks that another thread held are held there
// for ever. So an object that has one of these answers nothing in a child, and is not destroyed
// there: what it holds is its parent's.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "ebb/formats/core/result.h"
#include "ebb/libswap/sys/process.h"

namespace ebb::libswap {

class HomeProcess {
 public:
  // `object`: what it is, for messages ("engine"); a literal.
  explicit HomeProcess(std::string_view object) : object_(object) {}

  bool here() const { return process_id() == id_; }
  // Code::state in a child.
  Result<> check() const {
    if (here()) return {};
    return Error{Code::state,
                 compose("this {} belongs to process {}, which forked this one", object_, id_),
                 "use it there; what the child needs it has to open itself"};
  }
  // Destroys what the object is made of; in a child keeps it, as it is.
  template <typename T>
  void let_go(std::unique_ptr<T> parts) const {
    if (!here()) static_cast<void>(parts.release());
  }
  template <typename T>
  void let_go(std::shared_ptr<T> part) const {
    if (!here()) static_cast<void>(new std::shared_ptr<T>(std::move(part)));
  }

 private:
  std::string_view object_;
  std::uint64_t id_ = process_id();
};

}  // namespace ebb::libswap
