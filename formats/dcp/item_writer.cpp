#include "ebb/formats/dcp/item_writer.h"

#include <algorithm>

#include "ebb/formats/catalog/composite.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/torch/file_writer.h"
#include "ebb/formats/torch/tensor.h"

namespace ebb::formats::dcp {
namespace {

constexpr std::uint64_t kItemAlign = 64;
constexpr std::uint64_t kDataAlign = 4096;  // of data in the file, for items of at least that size
// Of the elements of an item that is compressed: whoever reads it in parts decodes all of it, and
// several can be made at a time. A larger one would not be smaller by it.
constexpr std::uint64_t kPackedBytes = 8 * MiB;

}  // namespace

Result<ItemWriter> ItemWriter::make(const EmitRequest& request, std::string folder) {
  if (request.layout.tensors().size() != request.content.tensors.size())
    return Error{Code::layout,
                 compose("the layout is of {} tensors, the content of {}",
                         request.layout.tensors().size(), request.content.tensors.size())};
  return ItemWriter(request, std::move(folder));
}

ItemWriter::ItemWriter(const EmitRequest& request, std::string folder)
    : content_(request.content),
      layout_(request.layout),
      compression_(request.compression),
      folder_(std::move(folder)) {
  const std::uint32_t world = layout_.spec().mesh.world();
  plan_.files.resize(world);
  places_.resize(world);
  load_.resize(world);
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    plan_.files[rank].name = compose("{}__{}_0.distcp", folder_, rank);
    plan_.files[rank].writer = Rank{rank};
  }
}

Result<> ItemWriter::claim(const std::string& key) {
  if (keys_.insert(key).second) return {};
  return Error{Code::layout, "two entries would be stored under the key " + json_string(key)};
}

WrittenItem ItemWriter::end_item(OutputFile& file, std::uint64_t start) {
  const FileRange place{start, file.size - start};
  std::vector<FileRange>& places = places_[index_of(file.writer)];
  places.push_back(place);
  if (packs()) file.items.push_back({place});
  return {index_of(file.writer), places.size() - 1};
}

WrittenItem ItemWriter::add_archive(ByteVector bytes) {
  OutputFile& file = plan_.files.front();
  const std::uint64_t start = packs() ? file.size : align_up(file.size, kItemAlign);
  file.size = start + bytes.size();
  file.fragments.push_back({start, std::move(bytes)});
  return end_item(file, start);
}

Result<> ItemWriter::add_value(std::string key, std::vector<PathItem> path, const Value& value) {
  EBB_TRY(claim(key));
  if (const std::string_view part = unwritable_part(value); !part.empty()) {
    plan_.dropped.push_back(
        compose("value {}: holds an object of class {}", json_string(key), part));
    return {};
  }
  EBB_TRY_ASSIGN(ByteVector bytes, value_archive(value));
  WrittenItem item = add_archive(std::move(bytes));
  if (path.empty()) path = {key};
  values_.push_back({std::move(key), std::move(path), std::move(item)});
  return {};
}

void ItemWriter::omit(std::uint32_t number, std::string_view key, std::string_view why) {
  plan_.dropped.push_back(compose("tensor {}: {}", json_string(key), why));
  plan_.omitted.push_back(number);
}

Result<> ItemWriter::add_tensor(std::string key, std::vector<PathItem> path, std::uint32_t number,
                                std::optional<DType> as) {
  const TensorEntry& tensor = content_.tensors[number];
  const DType dtype = as.value_or(tensor.dtype);
  EBB_TRY(claim(key));
  if (torch_name_of(dtype).empty()) {
    omit(number, key, compose("torch has no dtype {}", name_of(dtype)));
    return {};
  }
  if (layout_.tensors()[number] != tensor.shape)
    return Error{Code::layout,
                 compose("tensor {} has shape {} but the layout cuts {}", json_string(key),
                         to_string(tensor.shape), to_string(layout_.tensors()[number]))};
  WrittenTensor written{std::move(key), std::move(path), dtype, tensor.shape, {}};
  const std::uint64_t most = packs() ? kPackedBytes / bytes_of(dtype) : volume(tensor.shape);
  for (const Assigned& piece : assign(number))
    for (Box& box : pieces_of(piece.box, std::max<std::uint64_t>(most, 1))) {
      const WrittenItem item = add_piece(number, dtype, {box, piece.writer});
      written.chunks.push_back({std::move(box), item});
    }
  tensors_.push_back(std::move(written));
  return {};
}

Result<> ItemWriter::add_composite(std::string key, std::vector<PathItem> path,
                                   const std::vector<std::uint32_t>& parts) {
  const Composite& whole_tensor = *content_.tensors[parts.front()].part_of->whole;
  EBB_TRY(claim(key));
  if (packs())
    return Error{Code::unsupported,
                 compose("tensor {} is of {}, which is not read where it is compressed",
                         json_string(key), class_text(whole_tensor.type)),
                 "leave --compress out"};
  const auto least = std::ranges::min_element(load_);
  OutputFile& file = plan_.files[static_cast<std::size_t>(least - load_.begin())];
  TorchFileWriter archive(content_);
  archive.composite(parts);
  OutputFile made = archive.finish("", file.writer);
  const std::uint64_t start = align_up(file.size, kItemAlign);
  for (Fragment& fragment : made.fragments) {
    fragment.offset += start;
    if (auto* sealed = std::get_if<Sealed>(&fragment.data))
      for (FileRange& range : sealed->over) range.offset += start;
    file.fragments.push_back(std::move(fragment));
  }
  file.size = start + made.size;
  *least += made.size;
  const WrittenItem item = end_item(file, start);
  tensors_.push_back({std::move(key),
                      std::move(path),
                      whole_tensor.dtype,
                      whole_tensor.shape,
                      {{whole(whole_tensor.shape), item}}});
  return {};
}

// Each distinct piece once, by the least loaded of the ranks that hold it.
std::vector<ItemWriter::Assigned> ItemWriter::assign(std::uint32_t number) {
  const Shape& shape = layout_.tensors()[number];
  if (volume(shape) == 0) return {{whole(shape), Rank{0}}};
  std::vector<Assigned> held;
  for (std::uint32_t rank = 0; rank < plan_.files.size(); ++rank)
    for (Piece& piece : layout_.pieces(number, Rank{rank}))
      if (volume(piece.box.extent) != 0) held.push_back({std::move(piece.box), Rank{rank}});
  std::stable_sort(held.begin(), held.end(), [](const Assigned& a, const Assigned& b) {
    return a.box.offset < b.box.offset;
  });
  std::vector<Assigned> chosen;
  const auto settle = [&] {
    if (chosen.empty()) return;
    const Assigned& last = chosen.back();
    load_[index_of(last.writer)] +=
        volume(last.box.extent) * bytes_of(content_.tensors[number].dtype);
  };
  for (Assigned& piece : held) {
    if (chosen.empty() || chosen.back().box != piece.box) {
      settle();
      chosen.push_back(std::move(piece));
    } else if (load_[index_of(piece.writer)] < load_[index_of(chosen.back().writer)]) {
      chosen.back().writer = piece.writer;
    }
  }
  settle();
  return chosen;
}

WrittenItem ItemWriter::add_piece(std::uint32_t number, DType dtype, const Assigned& piece) {
  OutputFile& file = plan_.files[index_of(piece.writer)];
  const TensorArchiveWriter archive(dtype, piece.box.extent);
  ByteVector head = archive.head();
  const std::uint64_t tail_bytes = archive.tail(0).size();
  const std::uint64_t head_bytes = head.size();
  const std::uint64_t data_bytes = archive.data_bytes();
  // Compressed, nothing lies where it is put here.
  const std::uint64_t align = data_bytes >= kDataAlign ? kDataAlign : kItemAlign;
  const std::uint64_t data = packs()
                                 ? file.size + head_bytes
                                 : align_up(align_up(file.size, kItemAlign) + head_bytes, align);
  const std::uint64_t start = data - head_bytes;
  if (data_bytes == 0) append_bytes(head, archive.tail(0));
  file.fragments.push_back({start, std::move(head)});
  if (data_bytes != 0) {
    file.fragments.push_back({data, TensorData{number, piece.box, dtype}});
    file.fragments.push_back(
        {data + data_bytes,
         Sealed{tail_bytes, {{data, data_bytes}}, [archive](std::span<const std::uint32_t> crcs) {
                  return archive.tail(crcs[0]);
                }}});
  }
  file.size = data + data_bytes + tail_bytes;
  return end_item(file, start);
}

EmitPlan ItemWriter::finish() {
  WrittenFiles files;
  for (const OutputFile& file : plan_.files)
    files.names.push_back(file.name.substr(folder_.size()));
  if (compression_) files.codec = compression_->codec;
  const auto commit_files = [files = std::move(files), tensors = std::move(tensors_),
                             values = std::move(values_),
                             name = folder_ + ".metadata"](const ItemPlaces& places) {
    WrittenFiles placed = files;
    placed.places = places;
    return std::vector{literal_file(name, index_bytes(tensors, values, placed))};
  };
  plan_.commit_files = commit_files(places_);
  if (compression_) plan_.packing = Packing{*compression_, commit_files};
  return std::move(plan_);
}

}  // namespace ebb::formats::dcp
