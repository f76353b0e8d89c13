#include "ebb/formats/deepspeed/partition.h"

#include <algorithm>

#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/elements/box_reader.h"

namespace ebb::formats::deepspeed {
namespace {

constexpr unsigned kRecordBits = 32;  // of a chunk's tag; above them the chunk's own number
// Tags of chunks that are a mean, from here on.
constexpr std::uint64_t kMean = std::uint64_t{1} << 63;
constexpr std::uint64_t kUsualParts = 16;  // of a parameter; more only cost growing a list

Chunk chunk_of(const Flat& flat, Box box, FlatRange elems, Rank rank) {
  const std::uint64_t width = bytes_of(flat.dtype);
  return {std::move(box),      flat.file, flat.at + elems.first * width,
          elems.count * width, rank,      flat.record};
}

}  // namespace

Result<> ZeroCheckpoint::read_chunk(const TensorEntry& tensor, const Chunk& chunk,
                                    std::uint64_t first, std::span<std::byte> into) const {
  if (chunk.tag >= kMean) return read_mean(means_[chunk.tag - kMean], first, into);
  EBB_TRY_ASSIGN(const std::shared_ptr<const ByteSource> source,
                 tree().open(catalog().files[chunk.file].name));
  EBB_TRY(source->read(chunk.offset + first, into));
  const auto number = static_cast<std::uint32_t>(chunk.tag);
  auto checked = check(*source, number, chunk.offset + first - record(number).at, into,
                       chunk.tag >> kRecordBits);
  if (checked) return {};
  return std::move(checked).error().about(
      compose("tensor {} {} of rank {}", tensor.name, tensor.state, index_of(chunk.holder)));
}

Chunk ZeroCheckpoint::add_mean(std::vector<TensorEntry> parts) {
  Chunk chunk = parts.front().chunks.front();
  chunk.box = formats::whole(parts.front().shape);
  chunk.length = volume(chunk.box.extent) * bytes_of(parts.front().dtype);
  chunk.tag = kMean + means_.size();
  means_.push_back(std::move(parts));
  return chunk;
}

// In fp32, as the converter has it: the sum in the ranks' order, divided.
Result<> ZeroCheckpoint::read_mean(const std::vector<TensorEntry>& parts, std::uint64_t first,
                                   std::span<std::byte> into) const {
  const DType dtype = parts.front().dtype;
  const std::uint64_t width = bytes_of(dtype);
  std::vector<BoxReader> readers;
  for (const TensorEntry& part : parts) {
    EBB_TRY_ASSIGN(BoxReader reader, BoxReader::open(*this, part));
    readers.push_back(std::move(reader));
  }
  // Whole elements of it.
  const std::uint64_t begin = first / width;
  const std::uint64_t end = div_ceil(first + into.size(), width);
  std::vector<float> sum, one;
  ByteVector stored;
  for (const BoxReader& reader : readers) {
    stored.resize((end - begin) * width);
    std::uint64_t at = 0;
    for (const Box& box : boxes_of(parts.front().shape, {begin, end - begin})) {
      const std::uint64_t bytes = volume(box.extent) * width;
      EBB_TRY(reader.read(box, std::span(stored).subspan(at, bytes)));
      at += bytes;
    }
    one.resize(end - begin);
    cast_floats(dtype, stored, DType::f32, std::as_writable_bytes(std::span(one)));
    sum.resize(one.size(), 0);
    for (std::size_t i = 0; i < one.size(); ++i) sum[i] += one[i];
  }
  for (float& element : sum) element /= static_cast<float>(parts.size());
  cast_floats(DType::f32, std::as_bytes(std::span(sum)), dtype, stored);
  std::ranges::copy(std::span(stored).subspan(first - begin * width, into.size()), into.begin());
  return {};
}

Result<Flat> ZeroCheckpoint::add_flat(const TorchArchive& archive, std::uint32_t file,
                                      const TorchTensor& tensor) {
  EBB_TRY_ASSIGN(const std::optional<TorchArchive::Plain> plain, archive.plain(tensor));
  if (!plain)
    return Error{
        Code::unsupported,
        compose(
            "{}: storage '{}' is compressed, big-endian or strided: not a file DeepSpeed writes",
            archive.zip().source().name(), tensor.storage.key)};
  const ZipEntry& entry = *plain->record;
  const auto [known, added] = numbers_.try_emplace({file, plain->record_at});
  if (added)
    known->second = add_record({.name = entry.name,
                                .header_at = plain->record_at,
                                .at = plain->record_at,
                                .size = entry.has_crc() ? entry.size : 0,
                                .crc = entry.crc});
  return Flat{file,           known->second, plain->record_at + plain->first,
              tensor.elems(), tensor.dtype,  tensor.shape};
}

Flat ZeroCheckpoint::add_raw(std::uint32_t file, std::uint64_t elems) {
  return Flat{file, add_record({}), 0, elems, DType::f32, {elems}};
}

void ZeroCheckpoint::finish() {
  std::uint64_t holder = 0;
  for (TensorEntry& tensor : building().tensors)
    for (Chunk& chunk : tensor.chunks) {
      if (chunk.tag >= kMean) continue;
      const auto number = static_cast<std::uint32_t>(chunk.tag);
      chunk.tag |= ++holder << kRecordBits;
      hold(number, {chunk.offset - record(number).at, chunk.length}, holder);
    }
  close_records();
}

std::uint64_t elems_of(const Group& group) {
  std::uint64_t elems = 0;
  for (const Param& param : group) elems += volume(param.shape);
  return elems;
}

Cut cut_flat(const Group& group, FlatRange held, std::uint64_t tail) {
  Cut cut;
  cut.lean = held.count;
  cut.full = held.count + tail;
  cut.padding = tail;
  std::uint64_t first = 0;
  for (std::size_t p = 0; p < group.size(); ++p) {
    const std::uint64_t elems = volume(group[p].shape);
    const std::uint64_t from = std::max(first, held.first);
    const std::uint64_t to = std::min(first + elems, held.first + held.count);
    if (from < to && group[p].name.empty()) cut.padding += to - from;
    if (from < to && !group[p].name.empty())
      cut.runs.push_back({p, {from - first, to - from}, from - held.first});
    first += elems;
  }
  return cut;
}

Result<Cut> cut_each(const Group& group, Rank rank, std::uint32_t world) {
  Layout::Spec spec;
  spec.policy = Policy::zero3;
  spec.mesh.shard_world = world;
  std::vector<Shape> shapes;
  for (const Param& param : group) shapes.push_back(param.shape);
  EBB_TRY_ASSIGN(const Layout layout, Layout::make(std::move(spec), std::move(shapes)));
  Cut cut;
  cut.lean = cut.full = layout.buffer_elems(rank);
  cut.padding = layout.padding_elems(rank);
  for (std::size_t p = 0; p < group.size(); ++p)
    if (const FlatRange held = layout.held(p, rank); held.count > 0)
      cut.runs.push_back({p, held, layout.buffer_first(p, rank)});
  return cut;
}

std::uint64_t touched_elems(const Group& group, const Cut& cut) {
  std::uint64_t elems = 0;
  for (const Cut::Run& run : cut.runs) elems += volume(group[run.param].shape);
  return elems;
}

Result<TensorEntry*> Partitions::entry(const std::string& name, const std::string& state,
                                       DType dtype, const Shape& shape, const std::string& where) {
  std::vector<TensorEntry>& tensors = checkpoint_.building().tensors;
  // Mostly in the order in which the first rank named them.
  const bool is_next =
      next_ < tensors.size() && tensors[next_].name == name && tensors[next_].state == state;
  if (!is_next) {
    OfState& known = states_[state];
    if (const auto number = known.names.find(name)) {
      next_ = known.tensors[*number];
    } else {
      known.names.insert(names_.emplace_back(name));
      known.tensors.push_back(next_ = tensors.size());
      tensors.push_back({std::nullopt, {}, name, state, dtype, shape, {}});
    }
  }
  TensorEntry& tensor = tensors[next_++];
  if (tensor.dtype == dtype && tensor.shape == shape) return &tensor;
  return Error{Code::layout, compose("{}: {} {} is {} {} here and {} {} elsewhere", where, name,
                                     state, name_of(dtype), to_string(shape), name_of(tensor.dtype),
                                     to_string(tensor.shape))};
}

Result<> Partitions::add(const Group& group, const Cut& cut, const std::string& state, Rank rank,
                         const Flat& flat, const std::string& where) {
  if (flat.elems != cut.full && flat.elems != cut.lean)
    return Error{Code::layout,
                 compose("{}: {} has {} elements, but the parameters of the group take {}{}", where,
                         state, flat.elems, cut.full,
                         (cut.full == cut.lean ? "" : compose(" ({} without padding)", cut.lean)))};
  // The first rank names every tensor, also those it holds nothing of: their order is the group's.
  const bool named = !group.empty() && states_[state].names.find(group.front().name);
  for (const Param& param : group)
    if (!named && !param.name.empty())
      EBB_TRY(entry(param.name, state, flat.dtype, param.shape, where));
  for (const Cut::Run& run : cut.runs) {
    const Param& param = group[run.param];
    EBB_TRY_ASSIGN(TensorEntry * tensor, entry(param.name, state, flat.dtype, param.shape, where));
    // Where this rank has a part of it, others have parts of the same size.
    if (tensor->chunks.empty())
      tensor->chunks.reserve(std::min(kUsualParts, div_ceil(volume(param.shape), run.range.count)));
    std::uint64_t at = run.at;
    for (Box& box : boxes_of(param.shape, run.range)) {
      const std::uint64_t elems = volume(box.extent);
      tensor->chunks.push_back(chunk_of(flat, std::move(box), {at, elems}, rank));
      at += elems;
    }
  }
  return {};
}

Result<> Partitions::add_touched(const Group& group, const Cut& cut, const std::string& state,
                                 Rank rank, const Flat& flat, const std::string& where) {
  EBB_CHECK(flat.elems == touched_elems(group, cut));
  std::uint64_t first = 0;
  for (const Cut::Run& run : cut.runs) {
    const Param& param = group[run.param];
    EBB_TRY_ASSIGN(TensorEntry * tensor, entry(param.name, state, flat.dtype, param.shape, where));
    const std::uint64_t elems = volume(param.shape);
    if (tensor->chunks.empty())
      tensor->chunks.push_back(chunk_of(flat, whole(param.shape), {first, elems}, rank));
    first += elems;
  }
  return {};
}

Result<> Partitions::add_whole(const std::string& name, const std::string& state,
                               const Shape& shape, const Flat& flat, const std::string& where) {
  if (volume(shape) != flat.elems)
    return Error{Code::layout, compose("{}: {} {} has {} elements, its parameter {} has {}", where,
                                       name, state, flat.elems, to_string(shape), volume(shape))};
  EBB_TRY_ASSIGN(TensorEntry * tensor, entry(name, state, flat.dtype, shape, where));
  if (tensor->chunks.empty() && flat.elems > 0)
    tensor->chunks.push_back(chunk_of(flat, whole(shape), {0, flat.elems}, Rank{0}));
  return {};
}

Result<> Partitions::add_module(const std::string& name, const std::string& state, const Flat& flat,
                                const std::string& where) {
  EBB_TRY(add_whole(name, state, flat.shape, flat, where));
  EBB_TRY_ASSIGN(TensorEntry * tensor, entry(name, state, flat.dtype, flat.shape, where));
  tensor->key = "module." + name;
  return {};
}

std::vector<TensorEntry> Partitions::take() {
  states_.clear();
  names_.clear();
  next_ = 0;
  return std::exchange(checkpoint_.building().tensors, {});
}

}  // namespace ebb::formats::deepspeed
