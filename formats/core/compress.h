// zstd frames, made of bytes that come a part at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "ebb/formats/core/bytes.h"
#include "ebb/formats/core/result.h"

struct ZSTD_CCtx_s;  // libzstd's

namespace ebb::formats {

// One frame after another, each with its content's size and checksum in it. Not thread-safe.
class ZstdWriter {
 public:
  static constexpr int kFirstLevel = 1;
  static constexpr int kLastLevel = 19;
  static constexpr int kDefaultLevel = 3;

  // REQUIRES: kFirstLevel <= level <= kLastLevel. Code::no_memory.
  static Result<ZstdWriter> make(int level);
  ZstdWriter(ZstdWriter&&) noexcept = default;
  ZstdWriter& operator=(ZstdWriter&&) noexcept = default;

  // The most bytes a frame of so many has.
  static std::uint64_t bound(std::uint64_t plain_bytes);
  // What a writer takes while it makes a frame of so many bytes, beside what it writes to.
  static Result<std::uint64_t> memory(int level, std::uint64_t plain_bytes);

  // A frame of so many bytes, to the front of `into`, which must stay until end().
  // REQUIRES: into holds bound(plain_bytes).
  Result<> begin(std::uint64_t plain_bytes, std::span<std::byte> into);
  Result<> feed(ByteView plain);
  // The bytes of the frame. REQUIRES: everything that begin() announced was fed.
  Result<std::uint64_t> end();

 private:
  struct Free {
    void operator()(ZSTD_CCtx_s* context) const;
  };
  ZstdWriter() = default;

  std::unique_ptr<ZSTD_CCtx_s, Free> context_;
  std::span<std::byte> into_;
  std::size_t made_ = 0;
};

}  // namespace ebb::formats
