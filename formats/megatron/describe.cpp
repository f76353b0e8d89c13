#include <algorithm>
#include <utility>

#include "ebb/formats/catalog/with_catalog.h"
#include "ebb/formats/core/folder_tree.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/dcp/dcp.h"
#include "ebb/formats/json/json_reader.h"
#include "ebb/formats/megatron/common_state.h"
#include "ebb/formats/megatron/flat_boxes.h"
#include "ebb/formats/megatron/folder.h"
#include "ebb/formats/megatron/megatron.h"
#include "ebb/formats/megatron/names.h"
#include "ebb/formats/megatron/run_args.h"
#include "ebb/formats/pickle/known_globals.h"
#include "ebb/formats/torch/archive.h"
#include "ebb/formats/torch/unread.h"

namespace ebb::formats::megatron {
namespace {

constexpr std::uint64_t kMaxCommon = 256 * MiB;

// The DCP checkpoint below, with Megatron's names, and flat boxes put back into shape.
class TorchDistCheckpoint : public Checkpoint {
 public:
  explicit TorchDistCheckpoint(std::unique_ptr<Checkpoint> stored) : stored_(std::move(stored)) {}

  const Catalog& catalog() const override { return catalog_; }

  Result<> read_chunk(const TensorEntry& tensor, const Chunk& chunk, std::uint64_t first,
                      std::span<std::byte> into) const override {
    if (chunk.tag < kPieces) return stored_->read(tensor, chunk, first, into);
    const Piece& piece = pieces_[chunk.tag - kPieces];
    return stored_->read(tensor, flat_[piece.flat], piece.first + first, into);
  }

 private:
  friend class TorchDistReader;
  static constexpr std::uint64_t kPieces = 1u << 16;  // tags below are DCP's own
  struct Piece {
    std::uint32_t flat = 0;   // index into flat_
    std::uint64_t first = 0;  // bytes into it
  };

  Catalog catalog_;
  std::unique_ptr<Checkpoint> stored_;
  std::vector<Chunk> flat_;  // chunks as they are stored
  std::vector<Piece> pieces_;
};

class TorchDistReader {
 public:
  explicit TorchDistReader(std::shared_ptr<const SourceTree> tree) : tree_(std::move(tree)) {}

  Result<std::unique_ptr<Checkpoint>> run(const std::string& folder) {
    EBB_TRY(check_config());
    EBB_TRY_ASSIGN(dcp::Opened opened, dcp::open(tree_));
    checkpoint_ = std::make_unique<TorchDistCheckpoint>(std::move(opened.checkpoint));
    catalog() = checkpoint_->stored_->catalog();
    for (TensorEntry& tensor : catalog().tensors) {
      Key key = parsed_key(*tensor.key);
      tensor.name = std::move(key.name);
      tensor.state = std::move(key.state);
      tensor.path.clear();
      const auto own = opened.flat_boxes_of.find(*tensor.key);
      if (own != opened.flat_boxes_of.end()) EBB_TRY(put_into_shape(tensor, own->second));
    }
    EBB_TRY_ASSIGN(const Value common, common_state());
    add_common_state(catalog(), common);
    if (!folder.empty())
      catalog().values.push_back({"folder", {"folder"}, Value::of_string(folder), true});
    if (std::string differ = iterations_that_differ(catalog()); !differ.empty())
      catalog().notes.push_back(std::move(differ));
    say_what_it_is(folder);
    unknown_.show_in(catalog());
    return std::unique_ptr<Checkpoint>(std::move(checkpoint_));
  }

 private:
  Catalog& catalog() { return checkpoint_->catalog_; }
  std::string at_root(std::string_view name) const { return compose("{}/{}", tree_->root(), name); }

  // metadata.json is written last: without it the save did not finish.
  Result<> check_config() const {
    if (tree_->find(kConfig) == nullptr)
      return Error{Code::incomplete,
                   compose("{}: metadata.json is missing: the save did not finish (or this is not "
                           "a torch_dist checkpoint)",
                           tree_->root()),
                   "use the checkpoint before this one"};
    EBB_TRY_ASSIGN(const std::shared_ptr<const ByteSource> source, tree_->open(kConfig));
    EBB_TRY_ASSIGN(const ByteVector text, read_bytes(*source, 0, source->size(), kMaxConfig));
    json::Reader json({std::string(source->name()), 0, "metadata.json"}, text_of(text));
    std::string backend;
    std::uint64_t version = 1;
    EBB_TRY(json.read([&](std::string_view key, json::Value value) -> Result<> {
      if (key == "sharded_backend") {
        EBB_TRY_ASSIGN(backend, json.string(value, "sharded_backend"));
      } else if (key == "sharded_backend_version") {
        EBB_TRY_ASSIGN(version, json.whole(value, "sharded_backend_version"));
      }
      return {};
    }));
    if (backend == "torch_dist" && version == 1) return {};
    return Error{Code::unsupported,
                 compose("{}:0: sharded_backend '{}' version {} is not read by this version; "
                         "torch_dist version 1 is",
                         at_root(kConfig), printable(backend), version)};
  }

  Result<> put_into_shape(TensorEntry& tensor, const Shape& own) {
    const std::string label = at_root(".metadata") + ": tensor " + json_string(*tensor.key);
    std::vector<Chunk> chunks;
    for (Chunk& stored : tensor.chunks) {
      EBB_TRY_ASSIGN(std::vector<FlatPiece> pieces,
                     pieces_of_flat_boxes(own, tensor.shape, stored.box, label));
      const auto flat = static_cast<std::uint32_t>(checkpoint_->flat_.size());
      for (FlatPiece& piece : pieces) {
        Chunk chunk = stored;
        chunk.box = std::move(piece.box);
        chunk.tag = TorchDistCheckpoint::kPieces + checkpoint_->pieces_.size();
        checkpoint_->pieces_.push_back({flat, piece.first * bytes_of(tensor.dtype)});
        chunks.push_back(std::move(chunk));
      }
      checkpoint_->flat_.push_back(std::move(stored));
    }
    tensor.chunks = std::move(chunks);
    tensor.shape = own;
    if (auto covered = prove_coverage(tensor, catalog()); !covered)
      return std::move(covered).error().within(at_root(".metadata"));
    return {};
  }

  // common.pt where there is one, as megatron-core's own reader does it; else the item.
  Result<Value> common_state() {
    auto& values = catalog().values;
    const auto item = std::find_if(values.begin(), values.end(),
                                   [](const ValueEntry& entry) { return entry.key == kCommonKey; });
    Value common;
    std::string where = at_root(kCommon);
    if (tree_->find(kCommon) != nullptr) {
      EBB_TRY_ASSIGN(common, common_file());
    } else if (item != values.end()) {
      where = at_root(".metadata") + ": " + json_string(kCommonKey);
      if (item->value.kind != Value::Kind::list || item->value.items.size() != 1)
        return Error{Code::corrupt, where + ": is no list of one dict"};
      common = item->value.items[0];
      values.erase(item);
    } else {
      return Error{Code::incomplete,
                   compose("{}: the common state is missing: neither common.pt nor the item {}",
                           tree_->root(), kCommonKey),
                   "use the checkpoint before this one"};
    }
    if (common.kind == Value::Kind::dict) return common;
    return Error{Code::corrupt, where + ": the common state is no dict"};
  }

  Result<Value> common_file() {
    EBB_TRY_ASSIGN(const std::shared_ptr<const ByteSource> source, tree_->open(kCommon));
    if (source->size() > kMaxCommon)
      return Error{Code::limit, compose("{}: {} bytes; the limit for a common state is {}",
                                        source->name(), source->size(), kMaxCommon)};
    EBB_TRY_ASSIGN(const TorchArchive archive, TorchArchive::open(source, 0, source->size()));
    catalog().files.push_back({std::string(kCommon), source->size(), std::nullopt});
    EBB_TRY_ASSIGN(ReadablePart common,
                   readable_part_of(archive.graph(), archive.graph().root(), archive));
    unknown_.look_at(archive.graph(), std::string(kCommon));
    for (UnreadInside& inside : common.unread)
      catalog().unread.push_back(entry_of(std::move(inside), {"common"}));
    return common.value.value_or(Value());
  }

  void say_what_it_is(const std::string& folder) {
    catalog().format = "megatron";
    const bool in_item = tree_->find(kCommon) == nullptr;
    catalog().producer = dcp::produced_by(
        in_item ? "Megatron-core newer than 0.15" : "Megatron-core", catalog().producer);
    if (!folder.empty())
      for (FileEntry& file : catalog().files) file.name.insert(0, folder + "/");
    if (!checkpoint_->flat_.empty()) catalog().partition += ", flat optimizer state";
    const auto whole = [&](std::string_view name) { return run_arg(catalog(), name).value_or(0); };
    const std::int64_t tp = whole("tensor_model_parallel_size");
    const std::int64_t pp = whole("pipeline_model_parallel_size");
    if (tp > 1) catalog().partition += compose(", tensor parallel {}", tp);
    if (pp > 1) catalog().partition += compose(", pipeline parallel {}", pp);
    if (std::string padded = padding_note(catalog()); !padded.empty())
      catalog().notes.push_back(std::move(padded));
  }

  std::shared_ptr<const SourceTree> tree_;
  std::unique_ptr<TorchDistCheckpoint> checkpoint_;
  UnknownNames unknown_;
};

}  // namespace

}  // namespace ebb::formats::megatron

namespace ebb::formats {

bool detect_megatron(const SourceTree& tree) {
  return megatron::look_for_place(tree).kind == megatron::Kind::torch_dist;
}

std::string_view why_bound_to_megatron(const TensorEntry& tensor) {
  if (!megatron::is_bucket_name(tensor.name)) return {};
  return "it is a flat bucket of dp_reshardable, and which of its elements are whose is known only "
         "to the job that wrote it; save with --dist-ckpt-optim-fully-reshardable";
}

Result<std::unique_ptr<Checkpoint>> describe_megatron(std::shared_ptr<const SourceTree> tree) {
  EBB_TRY_ASSIGN(const megatron::Place place, megatron::find_place(*tree));
  return megatron::TorchDistReader(folder_of(std::move(tree), place.folder)).run(place.folder);
}

Result<std::unique_ptr<Checkpoint>> describe_megatron_with_holes(
    std::shared_ptr<const SourceTree> tree) {
  EBB_TRY_ASSIGN(const megatron::Place place, megatron::find_place(*tree));
  EBB_TRY_ASSIGN(auto stored, describe_dcp_with_holes(folder_of(std::move(tree), place.folder)));
  Catalog catalog = stored->catalog();
  catalog.format = "megatron";
  for (TensorEntry& tensor : catalog.tensors) {
    megatron::Key key = megatron::parsed_key(*tensor.key);
    tensor.name = std::move(key.name);
    tensor.state = std::move(key.state);
  }
  return with_catalog(std::move(stored), std::move(catalog));
}

}  // namespace ebb::formats
