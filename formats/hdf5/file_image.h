// The metadata of an HDF5 file to be written, as bytes: superblock 2, object headers of version 2,
// groups that list their links in their headers, contiguous datasets or compressed chunks,
// attributes, one global heap. Its size is known before a byte is written, and all of it but for
// where compressed data will lie, so nothing is patched and no library is needed.
// Source: HDF5 File Format Specification 3.0. Read by HDF5 1.8 and newer; virtual datasets by 1.10.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/catalog/value.h"
#include "ebb/formats/core/dtype.h"
#include "ebb/formats/hdf5/chunk_tree.h"
#include "ebb/formats/hdf5/description.h"
#include "ebb/formats/hdf5/messages.h"
#include "ebb/formats/layout/box.h"

namespace ebb::formats::hdf5 {

// HDF5 has a type for it, or it goes as bytes with its name beside it (F8_E8M0).
bool has_type(DType dtype);
// The most dimensions the library takes.
constexpr std::size_t kMostDims = 32;
// A value that an attribute can be and be read back the same: numbers, texts, lists of one kind.
bool fits_attribute(std::string_view name, const Value& value);

class FileImage {
 public:
  static constexpr std::uint32_t kRoot = 0;

  FileImage();

  // The group under `path` of words, made where it is missing; nullopt when a dataset is in the
  // way. Words are not empty, not "." and have no slash.
  std::optional<std::uint32_t> group(const std::vector<std::string>& path);
  // A dataset in a group; nullopt when the name is taken. Its bytes come later, at place_of().
  // REQUIRES: has_type(dtype), at most kMostDims dimensions, no overflow of its bytes.
  std::optional<std::uint32_t> dataset(std::uint32_t group, const std::string& name, DType dtype,
                                       const Shape& shape);
  // The same, in chunks that are zstd frames. REQUIRES: the grid is of this shape and dtype.
  std::optional<std::uint32_t> packed_dataset(std::uint32_t group, const std::string& name,
                                              DType dtype, const ChunkGrid& grid, int level);
  // The same, of boxes of datasets in other files. REQUIRES: at least one dimension; boxes of
  // Mapping's selections are single blocks or everything.
  std::optional<std::uint32_t> virtual_dataset(std::uint32_t group, const std::string& name,
                                               DType dtype, const Shape& shape,
                                               const std::vector<Mapping>& mappings);
  // REQUIRES: fits_attribute(name, value); each name once per object.
  void attribute(std::uint32_t object, std::string_view name, const Value& value);

  // Lays out headers, then the elements of every dataset. Call once, when everything was added.
  void lay_out();
  // Of a dataset's elements in the file.
  std::uint64_t place_of(std::uint32_t dataset) const { return objects_[dataset].elements_at; }
  std::uint64_t file_size() const { return file_size_; }
  std::uint64_t metadata_size() const { return metadata_size_; }
  // Where the elements of datasets lie after all, a place for each chunk or one for all of them.
  using Elsewhere = std::map<std::uint32_t, std::span<const FileRange>>;
  // Bytes 0 to the end of the metadata; with `elsewhere`, of a file of that size. REQUIRES: those
  // of every packed dataset are told.
  ByteVector metadata() const { return metadata({}, file_size_); }
  ByteVector metadata(const Elsewhere& elsewhere, std::uint64_t file_size) const;

 private:
  struct Message {
    MessageType type;
    ByteVector bytes;
  };
  struct Object {
    std::map<std::string, std::uint32_t> links;  // of a group
    std::vector<std::pair<std::string, std::uint32_t>> in_order;
    bool is_group = true;
    std::vector<Message> messages;        // but for links, and the layout of elements
    std::optional<std::uint64_t> stored;  // bytes of a contiguous dataset
    std::uint64_t header_at = 0;
    std::uint64_t elements_at = 0;
    std::optional<ChunkGrid> grid;  // of a packed dataset
    std::uint64_t tree_at = 0;
  };

  std::optional<std::uint32_t> add(std::uint32_t group, const std::string& name);
  // Of the header, in order. Their sizes are the same before and after lay_out().
  std::vector<Message> messages_of(std::uint32_t number, const Elsewhere& elsewhere) const;
  void append_header(ByteVector& out, std::uint32_t number, const Elsewhere& elsewhere) const;
  // Where `bytes` will lie: {address of the collection, index in it}.
  std::pair<std::uint64_t, std::uint32_t> to_heap(ByteVector bytes);
  void append_text_reference(ByteVector& out, std::string_view text);
  void append_heap(ByteVector& out) const;

  std::deque<Object> objects_;
  struct Collection {
    std::vector<ByteVector> items;
    std::uint64_t at = 0;
    std::uint64_t bytes = 0;  // what it takes so far
  };
  std::vector<Collection> heap_;
  std::uint64_t metadata_size_ = 0;
  std::uint64_t file_size_ = 0;
};

}  // namespace ebb::formats::hdf5
