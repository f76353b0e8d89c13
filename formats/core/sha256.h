// SHA-256, incremental: what identifies a tensor's bytes in listings and fixtures.
#pragma once

#include <memory>
#include <string>

#include "formats/core/bytes.h"

struct evp_md_ctx_st;  // OpenSSL's

namespace formats {

class Sha256 {
 public:
  Sha256();
  void update(ByteView bytes);
  // Lower-case hex of everything so far; call once, last.
  std::string hex();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

std::string sha256_hex(ByteView bytes);

}  // namespace formats
