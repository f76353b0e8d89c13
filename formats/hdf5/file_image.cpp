#include "ebb/formats/hdf5/file_image.h"

#include <algorithm>
#include <bit>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/hdf5/elements.h"
#include "ebb/formats/hdf5/messages.h"

namespace ebb::formats::hdf5 {
namespace {

constexpr std::uint64_t kSuperblock = 48;
constexpr std::uint64_t kHeaderAround = 4 + 1 + 1 + 4 + 4;  // of an object header without messages
constexpr std::uint64_t kMessageHead = 4;
constexpr std::uint64_t kMostMessage = 60'000;  // 64 KiB end a message
constexpr std::uint64_t kCollectionHead = 16;   // of the heap, and of each of its items
constexpr std::uint64_t kLeastCollection = 4096;
constexpr std::size_t kMostItems = 32'000;  // of a collection: their numbers have 16 bits
constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kLine = 64;

bool all_are(const Value& list, Value::Kind kind) {
  return !list.items.empty() &&
         std::ranges::all_of(list.items, [&](const Value& item) { return item.kind == kind; });
}

bool is_text(const Value& value) {
  return value.kind == Value::Kind::string && value.text.find('\0') == std::string::npos;
}

// Of the messages of a header.
std::uint64_t message_bytes(const auto& messages) {
  std::uint64_t bytes = 0;
  for (const auto& message : messages) bytes += kMessageHead + message.bytes.size();
  return bytes;
}

std::uint64_t item_bytes(std::uint64_t bytes) { return kCollectionHead + align_up(bytes, 8); }

}  // namespace

bool has_type(DType dtype) { return bits_of(dtype) % 8 == 0; }

bool fits_attribute(std::string_view name, const Value& value) {
  if (name.empty() || name.size() > 1024 || name.find('\0') != std::string_view::npos) return false;
  switch (value.kind) {
    case Value::Kind::boolean:
    case Value::Kind::integer:
    case Value::Kind::real:
      return true;
    case Value::Kind::string:
      return is_text(value);
    case Value::Kind::list:
      if (value.items.size() > (kMostMessage - 2048) / 16) return false;
      return all_are(value, Value::Kind::integer) || all_are(value, Value::Kind::real) ||
             (all_are(value, Value::Kind::string) && std::ranges::all_of(value.items, is_text));
    default:
      return false;
  }
}

FileImage::FileImage() { objects_.emplace_back(); }

std::optional<std::uint32_t> FileImage::add(std::uint32_t group, const std::string& name) {
  const auto number = static_cast<std::uint32_t>(objects_.size());
  Object& parent = objects_[group];
  if (!parent.is_group || !parent.links.emplace(name, number).second) return std::nullopt;
  parent.in_order.emplace_back(name, number);
  objects_.emplace_back();
  return number;
}

std::optional<std::uint32_t> FileImage::group(const std::vector<std::string>& path) {
  std::uint32_t at = kRoot;
  for (const std::string& word : path) {
    const auto known = objects_[at].links.find(word);
    if (known == objects_[at].links.end()) {
      const auto made = add(at, word);
      if (!made) return std::nullopt;
      at = *made;
    } else {
      at = known->second;
    }
    if (!objects_[at].is_group) return std::nullopt;
  }
  return at;
}

std::optional<std::uint32_t> FileImage::dataset(std::uint32_t group, const std::string& name,
                                                DType dtype, const Shape& shape) {
  EBB_CHECK(has_type(dtype) && shape.size() <= kMostDims);
  const auto number = add(group, name);
  if (!number) return std::nullopt;
  Object& object = objects_[*number];
  object.is_group = false;
  object.stored = volume(shape) * bytes_of(dtype);
  object.messages = {{MessageType::dataspace, dataspace(shape)},
                     {MessageType::datatype, datatype(dtype)},
                     {MessageType::fill_value, fill_value()}};
  return number;
}

std::optional<std::uint32_t> FileImage::packed_dataset(std::uint32_t group, const std::string& name,
                                                       DType dtype, const ChunkGrid& grid,
                                                       int level) {
  EBB_CHECK(!grid.shape.empty() && grid.count() > 0 && grid.elem_bytes == bytes_of(dtype));
  const auto number = dataset(group, name, dtype, grid.shape);
  if (!number) return std::nullopt;
  Object& object = objects_[*number];
  object.stored.reset();
  object.grid = grid;
  object.messages.push_back({MessageType::filters, zstd_filter(level)});
  return number;
}

std::optional<std::uint32_t> FileImage::virtual_dataset(std::uint32_t group,
                                                        const std::string& name, DType dtype,
                                                        const Shape& shape,
                                                        const std::vector<Mapping>& mappings) {
  EBB_CHECK(!shape.empty());
  const auto number = dataset(group, name, dtype, shape);
  if (!number) return std::nullopt;
  Object& object = objects_[*number];
  object.stored.reset();
  const auto [at, index] = to_heap(mappings_block(mappings));
  object.messages.push_back({MessageType::layout, virtual_layout(at, index)});
  return number;
}

void FileImage::attribute(std::uint32_t object, std::string_view name, const Value& value) {
  EBB_CHECK(fits_attribute(name, value));
  const bool is_list = value.kind == Value::Kind::list;
  const std::vector<Value> items = is_list ? value.items : std::vector<Value>{value};
  const Value::Kind kind = items.front().kind;
  ByteVector type = kind == Value::Kind::string    ? text_type()
                    : kind == Value::Kind::boolean ? datatype(DType::boolean)
                    : kind == Value::Kind::real    ? datatype(DType::f64)
                                                   : datatype(DType::i64);
  ByteVector data;
  for (const Value& item : items) {
    if (kind == Value::Kind::string)
      append_text_reference(data, item.text);
    else if (kind == Value::Kind::boolean)
      put(data, u8(item.integer != 0));
    else if (kind == Value::Kind::real)
      put(data, std::bit_cast<std::uint64_t>(item.real));
    else
      put(data, item.integer);
  }
  const ByteVector space = dataspace(is_list ? Shape{items.size()} : Shape{});
  objects_[object].messages.push_back(
      {MessageType::attribute, attribute_message(name, type, space, data)});
}

std::pair<std::uint64_t, std::uint32_t> FileImage::to_heap(ByteVector bytes) {
  if (heap_.empty() || heap_.back().items.size() >= kMostItems) {
    const std::uint64_t at = heap_.empty()
                                 ? kSuperblock
                                 : heap_.back().at + std::max(kLeastCollection, heap_.back().bytes);
    heap_.push_back({{}, at, kCollectionHead});
  }
  Collection& collection = heap_.back();
  collection.bytes += item_bytes(bytes.size());
  collection.items.push_back(std::move(bytes));
  return {collection.at, static_cast<std::uint32_t>(collection.items.size())};
}

void FileImage::append_text_reference(ByteVector& out, std::string_view text) {
  // The heap holds nothing of no bytes: such a text lies nowhere.
  const ByteView bytes = view_of(text);
  const auto [at, index] = text.empty() ? std::pair<std::uint64_t, std::uint32_t>()
                                        : to_heap({bytes.begin(), bytes.end()});
  put(out, u32(text.size()), at, index);
}

void FileImage::append_heap(ByteVector& out) const {
  for (const Collection& collection : heap_) {
    EBB_CHECK(out.size() == collection.at);
    const std::uint64_t size = std::max(kLeastCollection, collection.bytes);
    put(out, std::string_view("GCOL\1\0\0\0", 8), size);
    for (std::size_t i = 0; i < collection.items.size(); ++i) {
      constexpr std::uint16_t kReferences = 1;
      const ByteVector& item = collection.items[i];
      put(out, u16(i + 1), kReferences, u32(0), std::uint64_t{item.size()}, item);
      out.resize(align_up(out.size() - collection.at, 8) + collection.at);
    }
    // What is left is item 0, the free space.
    const std::uint64_t left = collection.at + size - out.size();
    if (left >= kCollectionHead) put(out, std::uint64_t{0}, left);
    out.resize(collection.at + size);
  }
}

std::vector<FileImage::Message> FileImage::messages_of(std::uint32_t number,
                                                       const Elsewhere& elsewhere) const {
  const Object& object = objects_[number];
  std::vector<Message> all;
  if (object.is_group)
    all = {{MessageType::link_info, link_info(object.in_order.size())},
           {MessageType::group_info, group_info()}};
  all.insert(all.end(), object.messages.begin(), object.messages.end());
  if (object.stored) {
    const auto moved = elsewhere.find(number);
    const std::uint64_t at =
        moved == elsewhere.end() ? object.elements_at : moved->second.front().offset;
    all.push_back({MessageType::layout,
                   contiguous_layout(*object.stored == 0 ? kNowhere : at, *object.stored)});
  }
  if (const auto& grid = object.grid)
    all.push_back(
        {MessageType::layout, chunked_layout(object.tree_at, grid->chunk, grid->elem_bytes)});
  std::uint64_t order = 0;
  for (const auto& [name, child] : object.in_order)
    all.push_back({MessageType::link, link(order++, name, objects_[child].header_at)});
  return all;
}

void FileImage::append_header(ByteVector& out, std::uint32_t number,
                              const Elsewhere& elsewhere) const {
  EBB_CHECK(out.size() == objects_[number].header_at);
  const std::vector<Message> messages = messages_of(number, elsewhere);
  constexpr std::uint8_t kSizeOf4 = 2;
  put(out, std::string_view("OHDR\2"), kSizeOf4, u32(message_bytes(messages)));
  for (const auto& [type, bytes] : messages)
    put(out, u8(static_cast<std::uint8_t>(type)), u16(bytes.size()), u8(0), bytes);
  put(out, lookup3(ByteView(out).subspan(static_cast<std::size_t>(objects_[number].header_at))));
}

void FileImage::lay_out() {
  std::uint64_t at = kSuperblock;
  if (!heap_.empty()) at = heap_.back().at + std::max(kLeastCollection, heap_.back().bytes);
  for (std::uint32_t number = 0; number < objects_.size(); ++number) {
    objects_[number].header_at = at;
    at += kHeaderAround + message_bytes(messages_of(number, {}));
  }
  for (Object& object : objects_) {
    if (!object.grid) continue;
    object.tree_at = at;
    at += chunk_tree_bytes(*object.grid);
  }
  metadata_size_ = at;
  for (Object& object : objects_) {
    if (object.stored.value_or(0) == 0) continue;
    object.elements_at = align_up(at, *object.stored >= kPage ? kPage : kLine);
    at = object.elements_at + *object.stored;
  }
  file_size_ = at;
}

ByteVector FileImage::metadata(const Elsewhere& elsewhere, std::uint64_t file_size) const {
  ByteVector out;
  out.reserve(static_cast<std::size_t>(metadata_size_));
  constexpr std::uint64_t kBase = 0, kNoExtension = kNowhere;  // addresses count from the base
  put(out, std::string_view("\x89HDF\r\n\x1a\n\2\x08\x08\0", 12), kBase, kNoExtension, file_size,
      objects_[kRoot].header_at);
  put(out, lookup3(out));
  append_heap(out);
  for (std::uint32_t number = 0; number < objects_.size(); ++number)
    append_header(out, number, elsewhere);
  for (std::uint32_t number = 0; number < objects_.size(); ++number)
    if (const Object& object = objects_[number]; object.grid)
      put(out, chunk_tree(*object.grid, object.tree_at, elsewhere.at(number)));
  EBB_CHECK(out.size() == metadata_size_);
  return out;
}

}  // namespace ebb::formats::hdf5
