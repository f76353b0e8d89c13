#include "ebb/libswap/write/plan_check.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <tuple>

#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/sha256.h"

namespace ebb::libswap {

namespace {

Result<> check_name(const std::string& name) {
  const std::filesystem::path path(name);
  bool below = !name.empty() && path.is_relative() && path.has_filename();
  for (const auto& part : path) below = below && part != ".." && part != ".";
  if (below && name.find('\0') == std::string::npos) return {};
  return Error{Code::usage, "'" + printable(name) + "' cannot be a file of a checkpoint directory"};
}

class FragmentCheck {
 public:
  FragmentCheck(const EmitPlan& plan, const OutputFile& file, const Catalog& content)
      : plan_(plan), file_(file), content_(content) {}

  // Adds what it writes of tensors to `parts`.
  Result<> run(std::vector<CheckedPlan::Part>& parts) {
    if (file_.blocks) EBB_TRY(check_own_blocks());
    std::uint64_t end = 0;
    for (const Fragment& fragment : file_.fragments) {
      EBB_TRY_ASSIGN(const std::uint64_t size, size_of(fragment));
      if (fragment.offset < end) return failure(fragment, "begins inside the one before it");
      if (fragment.offset > file_.size || size > file_.size - fragment.offset)
        return failure(fragment,
                       compose("of {} bytes ends beyond the file's {}", size, file_.size));
      if (const auto* sealed = std::get_if<formats::Sealed>(&fragment.data))
        EBB_TRY(check_seal(fragment, *sealed));
      if (const auto* data = std::get_if<TensorData>(&fragment.data))
        parts.push_back({&file_, data});
      end = fragment.offset + size;
    }
    return {};
  }

 private:
  Error failure(const Fragment& fragment, const std::string& what) const {
    return {Code::layout,
            compose("{}:{}: the planned part {}", printable(file_.name), fragment.offset, what)};
  }

  Result<> check_seal(const Fragment& fragment, const formats::Sealed& sealed) {
    if (sealed.blocks_of) return check_blocks(fragment, *sealed.blocks_of);
    if (sealed.over.empty()) return failure(fragment, "seals nothing");
    for (const FileRange& range : sealed.over) {
      if (range.size > fragment.offset || range.offset > fragment.offset - range.size)
        return failure(fragment, "seals data that is not there");
      // Every range is named twice: in the record's own seal and in the directory's.
      const auto [place, fresh] = ranges_.insert(range);
      const bool cuts_before = place != ranges_.begin() &&
                               std::prev(place)->offset + std::prev(place)->size > range.offset;
      const bool cuts_after =
          std::next(place) != ranges_.end() && range.offset + range.size > std::next(place)->offset;
      if (fresh && (cuts_before || cuts_after))
        return failure(fragment, "seals data that overlaps what another one seals");
    }
    return {};
  }

  // They are complete only when all shard files are.
  Result<> check_blocks(const Fragment& fragment, std::uint32_t shard) const {
    const bool commits = !plan_.commit_files.empty() && &file_ >= plan_.commit_files.data() &&
                         &file_ <= &plan_.commit_files.back();
    if (commits && shard < plan_.files.size() && plan_.files[shard].blocks) return {};
    return failure(fragment, "seals blocks that no shard file has");
  }

  Result<> check_own_blocks() const {
    const auto& [first, bytes, count] = *file_.blocks;
    const bool fit = bytes != 0 && first <= file_.size && count <= (file_.size - first) / bytes;
    const bool sealed = std::ranges::any_of(file_.fragments, [](const Fragment& fragment) {
      return std::holds_alternative<formats::Sealed>(fragment.data);
    });
    if (fit && !sealed) return {};
    return Error{Code::layout, printable(file_.name) +
                                   (fit ? ": has blocks and seals" : ": its blocks end beyond it")};
  }

  Result<std::uint64_t> size_of(const Fragment& fragment) const {
    if (const auto* bytes = std::get_if<ByteVector>(&fragment.data)) return bytes->size();
    if (const auto* sealed = std::get_if<formats::Sealed>(&fragment.data)) return sealed->size;
    const auto& data = std::get<TensorData>(fragment.data);
    if (data.tensor >= content_.tensors.size())
      return failure(fragment,
                     compose("is of tensor {} of {}", data.tensor, content_.tensors.size()));
    const TensorEntry& tensor = content_.tensors[data.tensor];
    if (!inside(data.box, tensor.shape))
      return failure(fragment,
                     compose("{} lies outside {} of shape {}", formats::to_string(data.box),
                             label_of(tensor), formats::to_string(tensor.shape)));
    const DType dtype = written_dtype(data, content_);
    if (dtype != tensor.dtype && !(is_floating(dtype) && is_floating(tensor.dtype)))
      return failure(fragment, compose("would cast {} from {} to {}", label_of(tensor),
                                       name_of(tensor.dtype), name_of(dtype)));
    const auto elems = formats::checked_volume(data.box.extent);
    const auto size = elems ? formats::packed_bytes(dtype, *elems) : std::nullopt;
    if (!size) return failure(fragment, "has more than 2^64 bytes");
    return *size;
  }

  const EmitPlan& plan_;
  const OutputFile& file_;
  const Catalog& content_;
  std::set<FileRange> ranges_;  // that are sealed
};

// Every fragment lies in one item, and what it seals in the same one.
Result<> check_items(const OutputFile& file, const Catalog& content) {
  const auto failure = [&](std::uint64_t offset, const std::string& what) {
    return Error{Code::layout,
                 compose("{}:{}: the planned item {}", printable(file.name), offset, what)};
  };
  if (file.blocks) return failure(0, "would be packed, and its file has blocks");
  std::uint64_t end = file.head ? file.head->size : 0;
  auto fragment = file.fragments.begin();
  for (const auto& [item, pack] : file.items) {
    if (item.offset < end) return failure(item.offset, "begins inside what is before it");
    if (item.offset > file.size || item.size > file.size - item.offset)
      return failure(item.offset, "ends beyond the file");
    end = item.offset + item.size;
    for (; fragment != file.fragments.end() && fragment->offset < end; ++fragment) {
      if (fragment->offset < item.offset || size_of(*fragment, content) > end - fragment->offset)
        return failure(item.offset, "does not hold its fragments whole");
      const auto* sealed = std::get_if<formats::Sealed>(&fragment->data);
      if (sealed != nullptr && std::ranges::any_of(sealed->over, [&](const auto& range) {
            return range.offset < item.offset;
          }))
        return failure(item.offset, "seals another one");
    }
  }
  if (fragment == file.fragments.end()) return {};
  return failure(fragment->offset, "is missing: a fragment lies outside of all");
}

Result<> check_derived(const formats::Derived& derived, const Catalog& content) {
  if (std::max(derived.tensor, derived.from) >= content.tensors.size())
    return Error{Code::layout, "the plan derives a tensor that is not there"};
  const TensorEntry& to = content.tensors[derived.tensor];
  const TensorEntry& from = content.tensors[derived.from];
  if (to.shape == from.shape &&
      (to.dtype == from.dtype || (is_floating(to.dtype) && is_floating(from.dtype))))
    return {};
  return Error{Code::layout, label_of(to) + " cannot be derived from " + label_of(from)};
}

// Leaves out what does not count.
void keep_stores(std::vector<CheckedPlan::Part>& parts, const Catalog& content) {
  const auto dtype_of = [&](const TensorData& data) { return content.tensors[data.tensor].dtype; };
  const auto is_whole = [&](const TensorData& data) {
    return data.box == formats::whole(content.tensors[data.tensor].shape);
  };
  std::set<std::uint32_t> as_they_are;
  for (const auto& [file, data] : parts)
    if (written_dtype(*data, content) == dtype_of(*data)) as_they_are.insert(data->tensor);
  std::erase_if(parts, [&](const CheckedPlan::Part& part) {
    const DType written = written_dtype(*part.data, content);
    return written != dtype_of(*part.data) &&
           (as_they_are.contains(part.data->tensor) ||
            !formats::is_widening(dtype_of(*part.data), written));
  });
  std::set<std::uint32_t> whole;  // perhaps beside the same elements in parts
  for (const auto& [file, data] : parts)
    if (is_whole(*data)) whole.insert(data->tensor);
  std::set<std::tuple<std::uint32_t, Shape, Shape>> seen;
  std::erase_if(parts, [&](const CheckedPlan::Part& part) {
    const auto& [tensor, box, as] = *part.data;
    return (whole.contains(tensor) && !is_whole(*part.data)) ||
           !seen.emplace(tensor, box.offset, box.extent).second;
  });
}

}  // namespace

Result<CheckedPlan> check_plan(const EmitPlan& plan, const Catalog& content) {
  CheckedPlan checked;
  std::set<std::string> names;
  for (const auto* files : {&plan.files, &plan.commit_files})
    for (const OutputFile& file : *files) {
      EBB_TRY(check_name(file.name));
      if (!names.insert(file.name).second)
        return Error{Code::usage, printable(file.name) + ": planned twice"};
      EBB_TRY(FragmentCheck(plan, file, content).run(checked.parts));
      if (plan.packing && files == &plan.files) EBB_TRY(check_items(file, content));
      checked.bytes += file.size;
    }
  for (const formats::Derived& derived : plan.derived) EBB_TRY(check_derived(derived, content));
  keep_stores(checked.parts, content);
  for (const CheckedPlan::Part& part : checked.parts) checked.stores.insert(part.data);
  return checked;
}

Result<> check_stores_everything(const EmitPlan& plan, const Catalog& content,
                                 const CheckedPlan& checked) {
  Catalog planned;
  for (const TensorEntry& entry : content.tensors) {
    TensorEntry tensor;
    tensor.key = entry.key;
    tensor.name = entry.name;
    tensor.state = entry.state;
    tensor.dtype = entry.dtype;
    tensor.shape = entry.shape;
    planned.tensors.push_back(std::move(tensor));
  }
  std::map<const OutputFile*, std::uint32_t> number_of;
  for (const auto& [file, data] : checked.parts) {
    const auto [place, made] =
        number_of.emplace(file, static_cast<std::uint32_t>(planned.files.size()));
    if (made) planned.files.push_back({file->name, file->size, file->writer});
    Chunk chunk;
    chunk.box = data->box;
    chunk.file = place->second;
    chunk.holder = file->writer;
    planned.tensors[data->tensor].chunks.push_back(std::move(chunk));
  }
  std::set<std::uint32_t> elsewhere(plan.omitted.begin(), plan.omitted.end());
  for (const formats::Derived& derived : plan.derived) elsewhere.insert(derived.tensor);
  for (std::uint32_t i = 0; i < planned.tensors.size(); ++i) {
    if (elsewhere.contains(i)) continue;
    if (Result<> proof = prove_coverage(planned.tensors[i], planned); !proof)
      return Error{Code::layout, "the planned files: " + proof.error().message};
  }
  return {};
}

// --- what makes two plans the same -----------------------------------------------------------

namespace {

// Everything with its length in front, so that no two plans have the same bytes.
class Hash {
 public:
  void number(std::uint64_t value) {
    formats::append_le(pending_, value);
    if (pending_.size() >= kFlush) flush();
  }
  void text(std::string_view text) { bytes(formats::view_of(text)); }
  void bytes(ByteView bytes) {
    number(bytes.size());
    flush();
    sha_.update(bytes);
  }
  void box(const Box& box) {
    number(box.offset.size());
    for (const std::uint64_t offset : box.offset) number(offset);
    for (const std::uint64_t extent : box.extent) number(extent);
  }
  std::string hex() {
    flush();
    return sha_.hex();
  }

 private:
  static constexpr std::size_t kFlush = 64 << 10;
  void flush() {
    sha_.update(pending_);
    pending_.clear();
  }
  formats::Sha256 sha_;
  ByteVector pending_;
};

void add(Hash& hash, const FileRange& range) {
  hash.number(range.offset);
  hash.number(range.size);
}

void add(Hash& hash, const Fragment& fragment) {
  hash.number(fragment.offset);
  hash.number(fragment.data.index());
  if (const auto* bytes = std::get_if<ByteVector>(&fragment.data)) {
    hash.bytes(*bytes);
  } else if (const auto* data = std::get_if<TensorData>(&fragment.data)) {
    hash.number(data->tensor);
    hash.box(data->box);
    hash.number(data->as ? 1 + static_cast<std::uint64_t>(*data->as) : 0);
  } else {
    const auto& sealed = std::get<formats::Sealed>(fragment.data);
    hash.number(sealed.size);
    hash.number(sealed.over.size());
    for (const FileRange& range : sealed.over) add(hash, range);
    hash.number(sealed.blocks_of ? 1 + std::uint64_t{*sealed.blocks_of} : 0);
  }
}

void add(Hash& hash, const TensorEntry& tensor) {
  hash.text(tensor.name);
  hash.text(tensor.state);
  hash.number(static_cast<std::uint64_t>(tensor.dtype));
  hash.number(tensor.chunks.size());
  for (const Chunk& chunk : tensor.chunks) {
    hash.box(chunk.box);
    hash.number(chunk.file);
    hash.number(chunk.offset);
    hash.number(chunk.length);
    hash.number(chunk.tag);
  }
}

}  // namespace

std::string identity_of(const EmitPlan& plan, const Catalog& content, std::uint64_t segment_bytes) {
  Hash hash;
  hash.number(segment_bytes);
  for (const auto* files : {&plan.files, &plan.commit_files}) {
    hash.number(files->size());
    for (const OutputFile& file : *files) {
      hash.text(file.name);
      hash.number(file.size);
      const formats::CheckedBlocks blocks = file.blocks.value_or(formats::CheckedBlocks{0, 0, 0});
      for (const std::uint64_t number : {blocks.first, blocks.bytes, blocks.count})
        hash.number(number);
      hash.number(file.fragments.size());
      for (const Fragment& fragment : file.fragments) add(hash, fragment);
      hash.number(file.items.size());
      std::vector<FileRange> places;
      for (const formats::PackedItem& item : file.items) {
        add(hash, places.emplace_back(item.place));
        hash.number(static_cast<std::uint64_t>(item.pack));
      }
      hash.number(file.head ? 1 : 0);
      if (file.head) hash.bytes(file.head->bytes(places));
    }
  }
  hash.number(plan.packing ? 1 + static_cast<std::uint64_t>(plan.packing->compression.codec) : 0);
  if (plan.packing) hash.number(static_cast<std::uint64_t>(plan.packing->compression.level));
  hash.number(plan.derived.size());
  for (const formats::Derived& derived : plan.derived) {
    hash.number(derived.tensor);
    hash.number(derived.from);
  }
  hash.number(content.tensors.size());
  for (const TensorEntry& tensor : content.tensors) add(hash, tensor);
  return hash.hex();
}

}  // namespace ebb::libswap
