#include "ebb/formats/core/compress.h"

#include <zstd.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "ebb/formats/core/check.h"

namespace ebb::formats {
namespace {

Error failure(std::size_t code) {
  return {Code::no_memory, std::string("zstd cannot compress: ") + ZSTD_getErrorName(code)};
}

}  // namespace

void ZstdWriter::Free::operator()(ZSTD_CCtx_s* context) const { ZSTD_freeCCtx(context); }

Result<ZstdWriter> ZstdWriter::make(int level) {
  EBB_CHECK(kFirstLevel <= level && level <= kLastLevel);
  ZstdWriter writer;
  writer.context_.reset(ZSTD_createCCtx());
  if (writer.context_ == nullptr) return Error{Code::no_memory, "no memory to compress"};
  for (const auto& [parameter, value] :
       {std::pair(ZSTD_c_compressionLevel, level), std::pair(ZSTD_c_checksumFlag, 1)}) {
    const std::size_t set = ZSTD_CCtx_setParameter(writer.context_.get(), parameter, value);
    if (ZSTD_isError(set) != 0) return failure(set);
  }
  return writer;
}

std::uint64_t ZstdWriter::bound(std::uint64_t plain_bytes) {
  return ZSTD_compressBound(static_cast<std::size_t>(plain_bytes));
}

// libzstd says it of a context that is at work, and in no other stable way.
Result<std::uint64_t> ZstdWriter::memory(int level, std::uint64_t plain_bytes) {
  EBB_TRY_ASSIGN(ZstdWriter writer, make(level));
  std::array<std::byte, 1> nothing{};
  EBB_TRY(writer.begin(std::max<std::uint64_t>(1, plain_bytes), nothing));
  EBB_TRY(writer.feed(nothing));
  return static_cast<std::uint64_t>(ZSTD_sizeof_CCtx(writer.context_.get()));
}

Result<> ZstdWriter::begin(std::uint64_t plain_bytes, std::span<std::byte> into) {
  into_ = into;
  made_ = 0;
  ZSTD_CCtx_reset(context_.get(), ZSTD_reset_session_only);
  const std::size_t set = ZSTD_CCtx_setPledgedSrcSize(context_.get(), plain_bytes);
  if (ZSTD_isError(set) != 0) return failure(set);
  return {};
}

Result<> ZstdWriter::feed(ByteView plain) {
  ZSTD_inBuffer input{plain.data(), plain.size(), 0};
  ZSTD_outBuffer output{into_.data(), into_.size(), made_};
  while (input.pos < input.size) {
    const std::size_t before = input.pos;
    const std::size_t left = ZSTD_compressStream2(context_.get(), &output, &input, ZSTD_e_continue);
    if (ZSTD_isError(left) != 0) return failure(left);
    EBB_CHECK(input.pos > before || output.pos > made_);  // bound() leaves room for all of it
    made_ = output.pos;
  }
  return {};
}

Result<std::uint64_t> ZstdWriter::end() {
  ZSTD_inBuffer input{nullptr, 0, 0};
  ZSTD_outBuffer output{into_.data(), into_.size(), made_};
  const std::size_t left = ZSTD_compressStream2(context_.get(), &output, &input, ZSTD_e_end);
  if (ZSTD_isError(left) != 0) return failure(left);
  EBB_CHECK(left == 0);
  made_ = output.pos;
  return static_cast<std::uint64_t>(made_);
}

}  // namespace ebb::formats
