#include "tests/support/synthetic.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <vector>

#include "ebb/formats/catalog/range_crcs.h"
#include "ebb/formats/registry.h"

namespace ebb::test_support {
namespace {

namespace fs = std::filesystem;

TensorEntry tensor_of(const std::string& name, const char* state, std::uint64_t rows) {
  TensorEntry tensor;
  tensor.name = name;
  tensor.state = state;
  tensor.dtype = DType::f32;
  tensor.shape = {rows, 2};
  return tensor;
}

Catalog content_of(const Synthetic& wanted) {
  Catalog content;
  content.world = wanted.world;
  GroupEntry group;
  group.optimizer = "muon";
  group.settings = {{"lr", Value::of_real(0.02)}, {"momentum", Value::of_real(0.95)}};
  for (std::uint64_t i = 0; i < wanted.params; ++i) {
    const std::string name = "model.layers." + std::to_string(i / 8) + ".mlp.experts." +
                             std::to_string(i % 8) + ".weight";
    content.tensors.push_back(tensor_of(name, "param", wanted.rows));
    content.tensors.push_back(tensor_of(name, "momentum_buffer", wanted.rows));
    group.params.push_back(name);
  }
  if (wanted.payload == Payload::holes) return content;
  content.step = 1000;
  content.groups.push_back(std::move(group));
  return content;
}

class Writer {
 public:
  Writer(const Catalog& content, fs::path directory)
      : content_(content), directory_(std::move(directory)) {}

  Result<> whole(const OutputFile& file) {
    std::ofstream out = open(file);
    formats::RangeCrcs crcs(file);
    std::uint64_t end = 0;
    for (const Fragment& fragment : file.fragments) {
      crcs.feed_zeros(fragment.offset - end);
      const ByteVector bytes = bytes_of(fragment, crcs);
      crcs.feed(bytes);
      end = fragment.offset + bytes.size();
      out.seekp(static_cast<std::streamoff>(fragment.offset));
      out.write(reinterpret_cast<const char*>(bytes.data()),
                static_cast<std::streamsize>(bytes.size()));
    }
    return close(out, file);
  }

  Result<> hole(const OutputFile& file) {
    std::ofstream out = open(file);
    return close(out, file);
  }

 private:
  std::ofstream open(const OutputFile& file) {
    const fs::path path = directory_ / file.name;
    std::error_code ignored;
    fs::create_directories(path.parent_path(), ignored);
    return std::ofstream(path, std::ios::binary);
  }

  Result<> close(std::ofstream& out, const OutputFile& file) {
    const fs::path path = directory_ / file.name;
    out.close();
    std::error_code failed;
    if (out) fs::resize_file(path, file.size, failed);
    if (!out || failed) return Error{Code::io, "cannot write " + path.string()};
    return {};
  }

  ByteVector bytes_of(const Fragment& fragment, const formats::RangeCrcs& crcs) {
    if (const auto* literal = std::get_if<ByteVector>(&fragment.data)) return *literal;
    if (const auto* sealed = std::get_if<formats::Sealed>(&fragment.data))
      return sealed->bytes(crcs.of(sealed->over));
    const auto& data = std::get<TensorData>(fragment.data);
    return ByteVector(formats::volume(data.box.extent) *
                      formats::bytes_of(formats::written_dtype(data, content_)));
  }

  const Catalog& content_;
  fs::path directory_;
};

}  // namespace

Result<> make_synthetic(const Synthetic& wanted, const std::string& directory) {
  const formats::Format* format = formats::format_named(wanted.format);
  if (format == nullptr) return Error{Code::unsupported, wanted.format + " is not written"};
  const Catalog content = content_of(wanted);
  std::vector<Shape> shapes;
  for (const TensorEntry& tensor : content.tensors) shapes.push_back(tensor.shape);
  EBB_TRY_ASSIGN(const Layout layout, Layout::make({.policy = format->traits().default_policy,
                                                    .mesh = {wanted.world, 1}},
                                                   std::move(shapes)));
  EBB_TRY_ASSIGN(const EmitPlan plan, format->emit({content, layout}));
  Writer writer(content, directory);
  for (const OutputFile& file : plan.files) {
    EBB_TRY(wanted.payload == Payload::holes ? writer.hole(file) : writer.whole(file));
  }
  for (const OutputFile& file : plan.commit_files) EBB_TRY(writer.whole(file));
  return {};
}

}  // namespace ebb::test_support
