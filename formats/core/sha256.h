// SHA-256, incremental: what identifies a tensor's bytes in listings and fixtures.
#pragma once

#include <memory>
#include <string>

#include "ebb/formats/core/bytes.h"

struct SHA256state_st;  // OpenSSL's

namespace ebb::formats {

class Sha256 {
 public:
  Sha256();
  void update(ByteView bytes);
  // Lower-case hex of everything so far; call once, last.
  std::string hex();

 private:
  struct Free {
    void operator()(SHA256state_st* state) const;
  };
  std::unique_ptr<SHA256state_st, Free> state_;
};

std::string sha256_hex(ByteView bytes);

}  // namespace ebb::formats
