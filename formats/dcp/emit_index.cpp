#include "ebb/formats/dcp/emit_index.h"

#include "ebb/formats/core/sha256.h"
#include "ebb/formats/pickle/pickle_writer.h"
#include "ebb/formats/torch/tensor.h"

namespace ebb::formats::dcp {
namespace {

constexpr std::string_view kModule = "torch.distributed.checkpoint.metadata";

class IndexWriter {
 public:
  explicit IndexWriter(const WrittenFiles& files) : files_(files) {}

  ByteVector write(const std::vector<WrittenTensor>& tensors,
                   const std::vector<WrittenValue>& values) {
    begin_object(kModule, "Metadata");
    pickle_.string("state_dict_metadata");
    begin_dict();
    for (const WrittenTensor& tensor : tensors) describe(tensor);
    for (const WrittenValue& value : values) {
      pickle_.string(value.key);
      // An object without attributes gets no BUILD.
      pickle_.global(kModule, "BytesStorageMetadata");
      pickle_.empty_tuple();
      pickle_.newobj();
    }
    pickle_.setitems();
    pickle_.string("planner_data");
    begin_dict();
    for (const WrittenTensor& tensor : tensors) path(tensor.key, tensor.path);
    for (const WrittenValue& value : values) path(value.key, value.path);
    pickle_.setitems();
    pickle_.string("storage_data");
    begin_dict();
    for (const WrittenTensor& tensor : tensors)
      for (std::size_t i = 0; i < tensor.chunks.size(); ++i)
        store(tensor.key, static_cast<std::int64_t>(i), tensor.chunks[i]);
    for (const WrittenValue& value : values) store(value);
    pickle_.setitems();
    pickle_.string("storage_meta");
    storage_meta();
    pickle_.string("version");
    pickle_.string("1.0.0");
    end_object();
    return pickle_.finish();
  }

 private:
  void begin_dict() {
    pickle_.empty_dict();
    pickle_.mark();
  }
  void begin_object(std::string_view module, std::string_view name) {
    pickle_.global(module, name);
    pickle_.empty_tuple();
    pickle_.newobj();
    begin_dict();
  }
  void end_object() {
    pickle_.setitems();
    pickle_.build();
  }

  void describe(const WrittenTensor& tensor) {
    pickle_.string(tensor.key);
    begin_object(kModule, "TensorStorageMetadata");
    pickle_.string("properties");
    properties(tensor.dtype);
    pickle_.string("size");
    pickle_.torch_size(tensor.shape);
    pickle_.string("chunks");
    pickle_.empty_list();
    pickle_.mark();
    for (const WrittenChunk& chunk : tensor.chunks) {
      begin_object(kModule, "ChunkStorageMetadata");
      pickle_.string("offsets");
      pickle_.torch_size(chunk.box.offset);
      pickle_.string("sizes");
      pickle_.torch_size(chunk.box.extent);
      end_object();
    }
    pickle_.appends();
    end_object();
  }

  // (dtype, layout, requires_grad, memory format, pin_memory)
  void properties(DType dtype) {
    pickle_.global(kModule, "TensorProperties");
    pickle_.empty_tuple();
    pickle_.newobj();
    pickle_.mark();
    pickle_.global("torch", torch_name_of(dtype));
    pickle_.global("torch.serialization", "_get_layout");
    pickle_.string("torch.strided");
    pickle_.tuple1();
    pickle_.reduce();
    pickle_.boolean(0);
    pickle_.global(kModule, "_MEM_FORMAT_ENCODING");
    pickle_.integer(0);
    pickle_.tuple1();
    pickle_.reduce();
    pickle_.boolean(0);
    pickle_.tuple();
    pickle_.build();
  }

  void path(const std::string& key, const std::vector<PathItem>& items) {
    pickle_.string(key);
    pickle_.mark();
    for (const PathItem& item : items) {
      if (const auto* text = std::get_if<std::string>(&item))
        pickle_.string(*text);
      else
        pickle_.integer(std::get<std::int64_t>(item));
    }
    pickle_.tuple();
  }

  void store(const std::string& key, std::int64_t index, const WrittenChunk& chunk) {
    begin_object(kModule, "MetadataIndex");
    pickle_.string("fqn");
    pickle_.string(key);
    pickle_.string("index");
    pickle_.integer(index);
    pickle_.string("offset");
    pickle_.torch_size(chunk.box.offset);
    end_object();
    storage_info(key, chunk.item);
  }

  void store(const WrittenValue& value) {
    begin_object(kModule, "MetadataIndex");
    pickle_.string("fqn");
    pickle_.string(value.key);
    pickle_.string("index");
    pickle_.none();
    end_object();
    storage_info(value.key, value.item);
  }

  void storage_info(const std::string& key, const WrittenItem& item) {
    const std::string& file = files_.names[item.file];
    const FileRange& place = files_.places[item.file][item.number];
    begin_object("torch.distributed.checkpoint.filesystem", "_StorageInfo");
    pickle_.string("relative_path");
    pickle_.string(file);
    pickle_.string("offset");
    pickle_.integer(static_cast<std::int64_t>(place.offset));
    pickle_.string("length");
    pickle_.integer(static_cast<std::int64_t>(place.size));
    if (files_.codec) {
      pickle_.string("transform_descriptors");
      pickle_.empty_list();
      pickle_.mark();
      pickle_.string("stream.zstd/1");
      pickle_.appends();
    }
    end_object();
    const std::string line =
        key + ' ' + file + ' ' + std::to_string(place.offset) + ' ' + std::to_string(place.size);
    identity_.update(view_of(line + '\n'));
  }

  // The save's id is a digest of what was placed where: equal content gives equal bytes.
  void storage_meta() {
    std::string id = identity_.hex().substr(0, 32);
    for (const std::size_t dash : {20u, 16u, 12u, 8u}) id.insert(dash, "-");
    begin_object(kModule, "StorageMeta");
    pickle_.string("checkpoint_id");
    pickle_.none();
    pickle_.string("save_id");
    pickle_.string(id);
    pickle_.string("load_id");
    pickle_.none();
    pickle_.string("modules");
    pickle_.empty_list();
    end_object();
  }

  const WrittenFiles& files_;
  PickleWriter pickle_;
  Sha256 identity_;
};

}  // namespace

ByteVector index_bytes(const std::vector<WrittenTensor>& tensors,
                       const std::vector<WrittenValue>& values, const WrittenFiles& files) {
  return IndexWriter(files).write(tensors, values);
}

}  // namespace ebb::formats::dcp
