#include <algorithm>
#include <set>

#include "formats/core/json_text.h"
#include "formats/core/units.h"
#include "formats/dcp/dcp.h"
#include "formats/dcp/emit_index.h"
#include "formats/dcp/meaning.h"
#include "formats/torch/file_writer.h"
#include "formats/torch/tensor.h"
#include "formats/torch/writer.h"

namespace formats {
namespace {

constexpr std::uint64_t kItemAlign = 64;
constexpr std::uint64_t kDataAlign = 4096;  // of data in the file, for items of at least that size

struct Assigned {  // a piece and the one rank that writes it
  Box box;
  Rank writer{};
};

class Emitter {
 public:
  explicit Emitter(const EmitRequest& request)
      : content_(request.content), layout_(request.layout) {}

  Result<EmitPlan> run() {
    const std::uint32_t world = layout_.spec().mesh.world();
    plan_.files.resize(world);
    load_.resize(world);
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      plan_.files[rank].name = "__" + std::to_string(rank) + "_0.distcp";
      plan_.files[rank].writer = Rank{rank};
    }
    if (layout_.tensors().size() != content_.tensors.size())
      return Error{Code::layout,
                   "the layout is of " + std::to_string(layout_.tensors().size()) +
                       " tensors, the content of " + std::to_string(content_.tensors.size()),
                   {}};
    for (const ValueEntry& value : content_.values) TRY(add_value(value));
    TRY(add_groups_and_step());
    for (const TensorEntry& tensor : content_.tensors)
      if (tensor.state == "param") has_param_.insert(tensor.name);
    for (std::uint32_t i = 0; i < content_.tensors.size(); ++i) TRY(add_tensor(i));
    OutputFile index;
    index.name = ".metadata";
    ByteVector bytes = dcp_index_bytes(tensors_, values_);
    index.size = bytes.size();
    index.fragments.push_back({0, std::move(bytes)});
    plan_.commit_files.push_back(std::move(index));
    return std::move(plan_);
  }

 private:
  Result<> claim(const std::string& key) {
    if (keys_.insert(key).second) return {};
    return Error{Code::layout, "two entries would be stored under the key " + json_string(key), {}};
  }

  Result<> add_value(const ValueEntry& entry) {
    TRY(claim(entry.key));
    if (const std::string_view part = unwritable_part(entry.value); !part.empty()) {
      plan_.dropped.push_back("value " + json_string(entry.key) + ": holds an object of class " +
                              std::string(part));
      return {};
    }
    TRY_ASSIGN(ByteVector bytes, value_archive(entry.value));
    OutputFile& file = plan_.files.front();
    const std::uint64_t offset = align_up(file.size, kItemAlign);
    file.size = offset + bytes.size();
    values_.push_back({entry.key,
                       entry.path.empty() ? std::vector<PathItem>{entry.key} : entry.path,
                       {file.name, offset, bytes.size()}});
    file.fragments.push_back({offset, std::move(bytes)});
    return {};
  }

  // Content that came from elsewhere has groups and a step but not torch's values for them.
  Result<> add_groups_and_step() {
    if (content_.step && !torch_step(content_.values) && !keys_.contains("step"))
      TRY(add_value({"step", {"step"}, Value::of_int(*content_.step)}));
    if (!torch_groups(content_.values).empty()) return {};
    for (std::size_t i = 0; i < content_.groups.size(); ++i) {
      const GroupEntry& group = content_.groups[i];
      const auto add = [&](const std::string& name, Value value) {
        return add_value({"optimizer.param_groups." + std::to_string(i) + "." + name,
                          {"optimizer", "param_groups", static_cast<std::int64_t>(i), name},
                          std::move(value)});
      };
      bool named = false;
      for (const auto& [name, value] : group.settings) {
        named |= name == "optimizer";
        TRY(add(name, value));
      }
      if (!named && !group.optimizer.empty())
        TRY(add("optimizer", Value::of_string(group.optimizer)));
      Value params;
      params.kind = Value::Kind::list;
      for (const std::string& name : group.params) params.items.push_back(Value::of_string(name));
      TRY(add("params", std::move(params)));
    }
    return {};
  }

  // The content's own key where it means the same to a reader of DCP; else the key and path that
  // torch's state dicts would use.
  void name_tensor(const TensorEntry& tensor, DcpWrittenTensor& written) const {
    const bool in_model = tensor.state == "param" || tensor.state == "buffer" ||
                          (tensor.state == "master" && !has_param_.contains(tensor.name));
    if (tensor.key &&
        torch_identity(*tensor.key, tensor.path) == std::pair(tensor.name, tensor.state)) {
      written.key = *tensor.key;
      written.path = tensor.path.empty() ? std::vector<PathItem>{*tensor.key} : tensor.path;
    } else if (in_model) {
      written.key = "model." + tensor.name;
      written.path = {"model", tensor.name};
    } else if (tensor.state == "tensor") {
      written.key = tensor.name;
      written.path = {tensor.name};
    } else {
      written.key = "optimizer.state." + tensor.name + "." + tensor.state;
      written.path = {"optimizer", "state", tensor.name, tensor.state};
    }
  }

  Result<> add_tensor(std::uint32_t number) {
    const TensorEntry& tensor = content_.tensors[number];
    DcpWrittenTensor written;
    name_tensor(tensor, written);
    TRY(claim(written.key));
    if (torch_name_of(tensor.dtype).empty()) {
      plan_.dropped.push_back("tensor " + json_string(written.key) + ": torch has no dtype " +
                              std::string(name_of(tensor.dtype)));
      plan_.omitted.push_back(number);
      return {};
    }
    if (layout_.tensors()[number] != tensor.shape)
      return Error{Code::layout,
                   "tensor " + json_string(written.key) + " has shape " + to_string(tensor.shape) +
                       " but the layout cuts " + to_string(layout_.tensors()[number]),
                   {}};
    written.dtype = tensor.dtype;
    written.shape = tensor.shape;
    for (Assigned& piece : assign(number)) {
      DcpWrittenItem item = add_item(number, tensor.dtype, piece);
      written.chunks.push_back({std::move(piece.box), std::move(item)});
    }
    tensors_.push_back(std::move(written));
    return {};
  }

  // Each distinct piece once, by the least loaded of the ranks that hold it.
  std::vector<Assigned> assign(std::uint32_t number) {
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
    for (Assigned& piece : held) {
      if (chosen.empty() || chosen.back().box != piece.box) {
        settle(number, chosen);
        chosen.push_back(std::move(piece));
      } else if (load_[index_of(piece.writer)] < load_[index_of(chosen.back().writer)]) {
        chosen.back().writer = piece.writer;
      }
    }
    settle(number, chosen);
    return chosen;
  }

  void settle(std::uint32_t number, const std::vector<Assigned>& chosen) {
    if (chosen.empty()) return;
    const Assigned& last = chosen.back();
    load_[index_of(last.writer)] +=
        volume(last.box.extent) * bytes_of(content_.tensors[number].dtype);
  }

  DcpWrittenItem add_item(std::uint32_t number, DType dtype, const Assigned& piece) {
    OutputFile& file = plan_.files[index_of(piece.writer)];
    const TensorArchiveWriter archive(dtype, piece.box.extent);
    ByteVector head = archive.head();
    const std::uint64_t tail_bytes = archive.tail(0).size();
    const std::uint64_t head_bytes = head.size();
    const std::uint64_t data_bytes = archive.data_bytes();
    const std::uint64_t align = data_bytes >= kDataAlign ? kDataAlign : kItemAlign;
    const std::uint64_t data = align_up(align_up(file.size, kItemAlign) + head_bytes, align);
    const std::uint64_t start = data - head_bytes;
    if (data_bytes == 0) append_bytes(head, archive.tail(0));
    file.fragments.push_back({start, std::move(head)});
    if (data_bytes != 0) {
      file.fragments.push_back({data, TensorData{number, piece.box}});
      file.fragments.push_back(
          {data + data_bytes,
           Sealed{tail_bytes, {{data, data_bytes}}, [archive](std::span<const std::uint32_t> crcs) {
                    return archive.tail(crcs[0]);
                  }}});
    }
    file.size = data + data_bytes + tail_bytes;
    return {file.name, start, file.size - start};
  }

  const Catalog& content_;
  const Layout& layout_;
  EmitPlan plan_;
  std::vector<std::uint64_t> load_;  // bytes of tensors each rank writes
  std::set<std::string> keys_;
  std::set<std::string> has_param_;
  std::vector<DcpWrittenTensor> tensors_;
  std::vector<DcpWrittenValue> values_;
};

}  // namespace

Result<EmitPlan> emit_dcp(const EmitRequest& request) { return Emitter(request).run(); }

}  // namespace formats
