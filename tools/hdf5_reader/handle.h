// Identifiers of libhdf5 that close themselves, and what the library says when it refuses.
#pragma once

#include <hdf5.h>

#include <string>
#include <utility>

#include "ebb/formats/core/error.h"

namespace ebb::hdf5_reader {

class Handle {
 public:
  using Close = herr_t (*)(hid_t);

  Handle() = default;
  Handle(hid_t id, Close close) : id_(id), close_(close) {}
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  ~Handle() {
    if (id_ >= 0) close_(id_);
  }

  hid_t get() const { return id_; }
  explicit operator bool() const { return id_ >= 0; }

 private:
  hid_t id_ = -1;
  Close close_ = nullptr;
};

// "<where>: <the library's innermost reason>", Code::corrupt; forgets the reason.
Error library_error(const std::string& where);

}  // namespace ebb::hdf5_reader
