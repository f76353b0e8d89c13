#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/formats/safetensors/documents.h"
#include "ebb/formats/safetensors/header.h"
#include "ebb/formats/safetensors/safetensors.h"

namespace ebb::formats {
namespace safetensors {
namespace {

constexpr std::uint64_t kDirectIo = 4096;
constexpr std::string_view kIndexFile = "model.safetensors.index.json";

// The library's alignment order: widest first.
constexpr std::array kDTypeOrder = {
    DType::u64,     DType::i64,         DType::f64,         DType::c64,     DType::f32,
    DType::u32,     DType::i32,         DType::bf16,        DType::f16,     DType::u16,
    DType::i16,     DType::f8_e5m2fnuz, DType::f8_e4m3fnuz, DType::f8_e8m0, DType::f8_e4m3,
    DType::f8_e5m2, DType::i8,          DType::u8,          DType::f6_e3m2, DType::f6_e2m3,
    DType::f4,      DType::boolean};

enum class Placement : std::uint8_t { whole, boxes };  // boxes: DCP_SHARDING_INFO says where

struct Item {
  std::string key;
  std::string logical;  // the tensor's key where `key` names only one of its boxes
  DType dtype = DType::f32;
  TensorData data;
};

std::size_t order_of(DType dtype) {
  return static_cast<std::size_t>(std::find(kDTypeOrder.begin(), kDTypeOrder.end(), dtype) -
                                  kDTypeOrder.begin());
}

std::string numbers(const Shape& values) {
  std::string out = "[";
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i != 0) out += ",";
    out += std::to_string(values[i]);
  }
  return out + "]";
}

// What a reader could not tell from the keys; "" when it can tell everything.
std::string identity_json(const Catalog& content, const std::vector<Item>& items) {
  std::set<std::string_view> told;
  std::string out;
  for (const Item& item : items) {
    const TensorEntry& tensor = content.tensors[item.data.tensor];
    const NamedState guess = named_state_of(item.logical);
    if ((guess.name == tensor.name && guess.state == tensor.state) ||
        !told.insert(item.logical).second)
      continue;
    out += compose("{}{}:{\"name\":{},\"state\":{}}", out.empty() ? "{" : ",",
                   json_string(item.logical), json_string(tensor.name), json_string(tensor.state));
  }
  return out.empty() ? out : out + "}";
}

// __metadata__: the strings the content has, and where each stored box lies in its tensor.
std::string metadata_json(const Catalog& content, const std::vector<Item>& items,
                          Placement placement, const SplitValues& values) {
  std::string strings;
  bool has_format = false;
  for (const ValueEntry* value : values.plain) {
    has_format = has_format || value->key == "format";
    strings += compose(",{}:{}", json_string(value->key), json_string(value->value.text));
  }
  const std::string_view marker = has_format ? kNothingAdded : kFormatAdded;
  // Loaders of transformers insist on a "format".
  std::string out = compose("{{}:{}{}{}", json_string(kMarkerKey), json_string(marker),
                            (has_format ? "" : ",\"format\":\"pt\""), strings);
  if (const std::string identity = identity_json(content, items); !identity.empty())
    out += compose(",{}:{}", json_string(kIdentityKey), json_string(identity));
  if (placement == Placement::whole) return out + "}";
  std::string info = "{";
  for (const Item& item : items) {
    if (info.size() > 1) info += ",";
    info += json_string(item.key) + ":{\"saved_offsets\":" + numbers(item.data.box.offset);
    if (item.logical != item.key) info += ",\"logical_fqn\":" + json_string(item.logical);
    info += "}";
  }
  return compose("{},\"DCP_VERSION\":\"1.0\",\"DCP_SHARDING_INFO\":{}}", out,
                 json_string(info + "}"));
}

struct FileHeader {
  std::string text;        // without the spaces at its end
  std::size_t fields = 0;  // where __metadata__ takes more
  std::vector<Fragment> data;
  std::uint64_t data_bytes = 0;
};

Result<FileHeader> header_of(const Catalog& content, std::vector<Item> items, Placement placement,
                             const SplitValues& values) {
  std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    return std::pair(order_of(a.dtype), std::string_view(a.key)) <
           std::pair(order_of(b.dtype), std::string_view(b.key));
  });
  FileHeader header;
  header.text = "{\"__metadata__\":" + metadata_json(content, items, placement, values);
  header.fields = header.text.size() - 1;
  std::uint64_t& end = header.data_bytes;
  for (const Item& item : items) {
    EBB_TRY_ASSIGN(const std::uint64_t bytes, tensor_bytes(item.dtype, item.data.box.extent));
    header.text +=
        compose(",{}:{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":{}}", json_string(item.key),
                name_of(item.dtype), numbers(item.data.box.extent), numbers({end, end + bytes}));
    if (bytes != 0) header.data.push_back({end, item.data});
    end += bytes;
  }
  header.text += "}";
  return header;
}

Result<OutputFile> file_of(FileHeader header) {
  OutputFile file;
  file.fragments = std::move(header.data);
  std::string& text = header.text;
  const std::uint64_t end = header.data_bytes;
  const std::uint64_t start = align_up(8 + text.size(), end < kDirectIo ? 8 : kDirectIo);
  text.resize(static_cast<std::size_t>(start - 8), ' ');
  if (text.size() > kMaxHeaderBytes)
    return Error{Code::limit,
                 compose("the header would have {} bytes, the limit of the format is {}",
                         text.size(), kMaxHeaderBytes)};
  ByteVector head;
  append_le<std::uint64_t>(head, text.size());
  append_text(head, text);
  for (Fragment& fragment : file.fragments) fragment.offset += start;
  file.fragments.insert(file.fragments.begin(), Fragment{0, std::move(head)});
  file.size = start + end;
  return file;
}

std::string five_digits(std::size_t number) { return zero_padded(number, 5); }

void add_lost_tensors(const Catalog& content, EmitPlan& plan) {
  for (std::uint32_t i = 0; i < content.tensors.size(); ++i) {
    const TensorEntry& tensor = content.tensors[i];
    if (order_of(tensor.dtype) != kDTypeOrder.size()) continue;
    plan.dropped.push_back(
        compose("tensor '{}' of dtype {}", printable(key_of(tensor)), name_of(tensor.dtype)));
    plan.omitted.push_back(i);
  }
}

Result<std::vector<std::string>> keys_of(const Catalog& content) {
  std::vector<std::string> keys;
  std::set<std::string_view> seen;
  keys.reserve(content.tensors.size());
  for (const TensorEntry& tensor : content.tensors) {
    keys.push_back(key_of(tensor));
    if (keys.back() == "__metadata__" || !seen.insert(keys.back()).second)
      return Error{Code::layout,
                   "two tensors would be called '" + printable(keys.back()) + "' in safetensors",
                   "--exclude or --states leaves one of them out"};
  }
  return keys;
}

std::vector<Item> items_of(const EmitRequest& request, const std::vector<std::string>& keys,
                           Rank rank) {
  std::vector<Item> items;
  for (std::uint32_t t = 0; t < keys.size(); ++t) {
    const DType dtype = request.content.tensors[t].dtype;
    if (order_of(dtype) == kDTypeOrder.size()) continue;
    std::vector<Piece> pieces = request.layout.pieces(t, rank);
    const Shape& shape = request.content.tensors[t].shape;
    if (pieces.empty() && volume(shape) == 0 && index_of(rank) == 0)
      pieces.push_back({whole(shape), 0});  // nobody holds nothing, but it has a name and a shape
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      std::string key = keys[t];
      if (i != 0) key.append(".__dcp_shard_").append(std::to_string(i));
      items.push_back({std::move(key), keys[t], dtype, {t, pieces[i].box}});
    }
  }
  return items;
}

// In order, as many as a file holds.
std::vector<std::vector<Item>> cut(std::vector<Item> items, std::uint64_t file_bytes) {
  std::vector<std::vector<Item>> files(1);
  std::uint64_t held = 0;
  for (Item& item : items) {
    const std::uint64_t bytes = packed_bytes(item.dtype, volume(item.data.box.extent)).value_or(0);
    if (!files.back().empty() && (held > file_bytes || bytes > file_bytes - held)) {
      files.emplace_back();
      held = 0;
    }
    files.back().push_back(std::move(item));
    held += bytes;
  }
  return files;
}

std::string one_of(std::size_t number, std::size_t count) {
  return compose("-{}-of-{}.safetensors", five_digits(number + 1), five_digits(count));
}

// What loaders of transformers look for.
OutputFile index_of_files(const std::vector<std::vector<Item>>& files) {
  std::map<std::string_view, std::size_t> file_of;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < files.size(); ++i)
    for (const Item& item : files[i]) {
      file_of.emplace(item.key, i);
      total += packed_bytes(item.dtype, volume(item.data.box.extent)).value_or(0);
    }
  std::string text = compose("{\"metadata\":{\"total_size\":{}},\"weight_map\":{", total);
  for (const auto& [key, file] : file_of) {
    if (key != file_of.begin()->first) text += ",";
    text += json_string(key) + ":" + json_string("model" + one_of(file, files.size()));
  }
  ByteVector bytes;
  append_text(bytes, text + "}}\n");
  return literal_file(std::string(kIndexFile), std::move(bytes));
}

// What is neither tensor nor text goes into the first file, whoever reads one alone.
void add_documents(const Catalog& content, const SplitValues& values, FileHeader& header,
                   EmitPlan& plan) {
  // Spaces at the end count as well.
  const std::uint64_t taken = std::min(header.text.size() + kDirectIo, kMaxHeaderBytes);
  Documents documents = documents_of(content, values, kMaxHeaderBytes - taken);
  header.text.insert(header.fields, documents.fields);
  std::ranges::move(documents.dropped, std::back_inserter(plan.dropped));
}

Result<> add_files(const EmitRequest& request, const std::vector<std::string>& keys, Rank writer,
                   std::uint32_t writers, EmitPlan& plan) {
  const SplitValues values = split(request.content.values);
  auto files = cut(items_of(request, keys, writer), request.file_bytes);
  const std::size_t count = files.size();
  if (writers == 1 && count > 1) plan.commit_files.push_back(index_of_files(files));
  for (std::size_t i = 0; i < count; ++i) {
    EBB_TRY_ASSIGN(FileHeader header,
                   header_of(request.content, std::move(files[i]),
                             writers > 1 ? Placement::boxes : Placement::whole, values));
    if (plan.files.empty()) add_documents(request.content, values, header, plan);
    EBB_TRY_ASSIGN(OutputFile file, file_of(std::move(header)));
    file.name = "model" + one_of(i, count);
    if (writers > 1)
      file.name = compose("shard-{}-{}", five_digits(index_of(writer) + 1), file.name);
    if (writers == 1 && count == 1) file.name = "model.safetensors";
    file.writer = writer;
    plan.files.push_back(std::move(file));
  }
  return {};
}

}  // namespace
}  // namespace safetensors

Result<EmitPlan> emit_safetensors(const EmitRequest& request) {
  EBB_TRY_ASSIGN(const std::vector<std::string> keys, safetensors::keys_of(request.content));
  const Layout::Spec& spec = request.layout.spec();
  const std::uint32_t writers =
      spec.policy == Policy::replicated ? 1 : spec.mesh.shard_world;  // one copy is enough
  EmitPlan plan;
  safetensors::add_lost_tensors(request.content, plan);
  for (std::uint32_t writer = 0; writer < writers; ++writer)
    EBB_TRY(safetensors::add_files(request, keys, Rank{writer}, writers, plan));
  return plan;
}

}  // namespace ebb::formats
