#include "ebb/formats/megatron/rank_buffers.h"

#include "ebb/formats/core/units.h"

namespace ebb::formats::megatron {

BufferLayout buffer_layout(std::span<const BufferedParam> params, const BufferRule& rule) {
  BufferLayout layout;
  layout.first.resize(params.size());
  std::uint64_t bucket_at = 0;  // of the bucket being filled
  std::uint64_t end = 0;        // in it
  bool filled = false;
  const auto close = [&] {
    bucket_at += end;
    end = 0;
    filled = false;
  };
  for (std::size_t i = params.size(); i > 0; --i) {
    const BufferedParam& param = params[i - 1];
    end = align_up(end, rule.alignment);
    if (param.shared && filled) close();
    layout.first[i - 1] = bucket_at + end;
    end += param.elems;
    filled = true;
    if (param.shared || (rule.bucket && end >= *rule.bucket)) close();
  }
  layout.elems = bucket_at + end;
  return layout;
}

}  // namespace ebb::formats::megatron
