#include "tools/ckpt_convert/transfers.h"

#include <algorithm>
#include <variant>

namespace ebb::tools::convert {
namespace {

// The rows that a box spans; of a scalar its one element.
std::uint64_t first_row(const Box& box) { return box.offset.empty() ? 0 : box.offset[0]; }
std::uint64_t end_row(const Box& box) {
  return box.offset.empty() ? 1 : box.offset[0] + box.extent[0];
}

// The chunks of a tensor, found by rows without looking at all of them.
class ChunksByRow {
 public:
  explicit ChunksByRow(const TensorEntry& tensor) {
    for (const Chunk& chunk : tensor.chunks) chunks_.push_back(&chunk);
    std::ranges::sort(chunks_, {}, [](const Chunk* chunk) { return first_row(chunk->box); });
    std::uint64_t end = 0;
    for (const Chunk* chunk : chunks_) ends_.push_back(end = std::max(end, end_row(chunk->box)));
  }

  template <typename Visit>
  void visit(const Box& box, Visit visit) const {
    auto at =
        static_cast<std::size_t>(std::ranges::upper_bound(ends_, first_row(box)) - ends_.begin());
    for (; at < chunks_.size() && first_row(chunks_[at]->box) < end_row(box); ++at)
      if (const auto region = formats::intersect(chunks_[at]->box, box))
        visit(*chunks_[at], *region);
  }

 private:
  std::vector<const Chunk*> chunks_;
  std::vector<std::uint64_t> ends_;  // the greatest end of it and all before
};

}  // namespace

Transfers transfers_of(const formats::Conversion& conversion) {
  const Catalog& content = conversion.content->catalog();
  std::vector<ChunksByRow> sources(content.tensors.begin(), content.tensors.end());
  Transfers out;
  const auto add = [&](const OutputFile& file, const Fragment& fragment) {
    const auto* data = std::get_if<TensorData>(&fragment.data);
    if (data == nullptr) return;
    const std::uint64_t bits = formats::bits_of(formats::written_dtype(*data, content));
    sources[data->tensor].visit(data->box, [&](const Chunk& chunk, const Box& region) {
      const std::uint64_t bytes = formats::volume(region.extent) * bits / 8;
      out.all.push_back({data->tensor, &chunk, &file, fragment.offset, region, bytes});
      out.flows[{chunk.holder, file.writer}] += bytes;
      (chunk.holder == file.writer ? out.staying_bytes : out.moving_bytes) += bytes;
    });
  };
  for (const auto* files : {&conversion.plan.files, &conversion.plan.commit_files})
    for (const OutputFile& file : *files)
      for (const Fragment& fragment : file.fragments) add(file, fragment);
  return out;
}

}  // namespace ebb::tools::convert
