#include "ebb/formats/dcp/emit_index.h"

#include "ebb/formats/core/sha256.h"
#include "ebb/formats/dcp/index.h"
#include "ebb/formats/pickle/pickle_writer.h"
#include "ebb/formats/torch/tensor.h"

namespace ebb::formats::dcp {
namespace {

constexpr std::string_view kModule = "torch.distributed.checkpoint.metadata";

class IndexWriter : PickleWriter {
 public:
  explicit IndexWriter(const WrittenFiles& files) : files_(files) {}

  ByteVector write(const std::vector<WrittenTensor>& tensors,
                   const std::vector<WrittenValue>& values) {
    object(kModule, "Metadata", [&] {
      dict("state_dict_metadata", [&] {
        for (const WrittenTensor& tensor : tensors) describe(tensor);
        for (const WrittenValue& value : values)
          entry(value.key, [&] { object(kModule, "BytesStorageMetadata"); });
      });
      dict("planner_data", [&] {
        for (const WrittenTensor& tensor : tensors) path(tensor.key, tensor.path);
        for (const WrittenValue& value : values) path(value.key, value.path);
      });
      dict("storage_data", [&] {
        for (const WrittenTensor& tensor : tensors)
          for (std::size_t i = 0; i < tensor.chunks.size(); ++i) store(tensor, i);
        for (const WrittenValue& value : values) store(value);
      });
      entry("storage_meta", [&] { storage_meta(); });
      entry("version", "1.0.0");
    });
    return finish();
  }

 private:
  void describe(const WrittenTensor& tensor) {
    string(tensor.key);
    object(kModule, "TensorStorageMetadata", [&] {
      entry("properties", [&] { properties(tensor.dtype); });
      entry("size", [&] { torch_size(tensor.shape); });
      list("chunks", [&] {
        for (const WrittenChunk& chunk : tensor.chunks)
          object(kModule, "ChunkStorageMetadata", [&] {
            entry("offsets", [&] { torch_size(chunk.box.offset); });
            entry("sizes", [&] { torch_size(chunk.box.extent); });
          });
      });
    });
  }

  // (dtype, layout, requires_grad, memory format, pin_memory)
  void properties(DType dtype) {
    const auto state = [&] {
      global("torch", torch_name_of(dtype));
      call1("torch.serialization", "_get_layout", [&] { string("torch.strided"); });
      boolean(0);
      call1(kModule, "_MEM_FORMAT_ENCODING", [&] { integer(0); });
      boolean(0);
    };
    object(kModule, "TensorProperties");
    build([&] { tuple(state); });
  }

  void path(const std::string& key, const std::vector<PathItem>& items) {
    string(key);
    tuple([&] {
      for (const PathItem& item : items) {
        if (const auto* text = std::get_if<std::string>(&item))
          string(*text);
        else
          integer(std::get<std::int64_t>(item));
      }
    });
  }

  void store(const WrittenTensor& tensor, std::size_t index) {
    const WrittenChunk& chunk = tensor.chunks[index];
    object(kModule, "MetadataIndex", [&] {
      entry("fqn", tensor.key);
      entry("index", index);
      entry("offset", [&] { torch_size(chunk.box.offset); });
    });
    storage_info(tensor.key, chunk.item);
  }

  void store(const WrittenValue& value) {
    object(kModule, "MetadataIndex", [&] {
      entry("fqn", value.key);
      entry("index", nullptr);
    });
    storage_info(value.key, value.item);
  }

  void storage_info(const std::string& key, const WrittenItem& item) {
    const std::string& file = files_.names[item.file];
    const FileRange& place = files_.places[item.file][item.number];
    object("torch.distributed.checkpoint.filesystem", "_StorageInfo", [&] {
      entry("relative_path", file);
      entry("offset", place.offset);
      entry("length", place.size);
      if (files_.codec) list("transform_descriptors", [&] { string("stream.zstd/1"); });
    });
    const std::string line =
        key + ' ' + file + ' ' + std::to_string(place.offset) + ' ' + std::to_string(place.size);
    identity_.update(view_of(line + '\n'));
  }

  // The save's id says whose it is, and is a digest of what was placed where: equal content gives
  // equal bytes.
  void storage_meta() {
    const std::string id = std::string(kOurSaves) + identity_.hex().substr(0, 32);
    object(kModule, "StorageMeta", [&] {
      entry("checkpoint_id", nullptr);
      entry("save_id", id);
      entry("load_id", nullptr);
      entry("modules", [&] { empty_list(); });
    });
  }

  const WrittenFiles& files_;
  Sha256 identity_;
};

}  // namespace

ByteVector index_bytes(const std::vector<WrittenTensor>& tensors,
                       const std::vector<WrittenValue>& values, const WrittenFiles& files) {
  return IndexWriter(files).write(tensors, values);
}

}  // namespace ebb::formats::dcp
