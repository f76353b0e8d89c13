// One file of torch.save while it is described: its pickle, the parts of tensors in it, and the
// numbers that its storages have among the checkpoint's records. For readers of such files.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "ebb/formats/torch/composite_join.h"
#include "ebb/formats/torch/sharded.h"
#include "ebb/formats/torch/unread.h"
#include "ebb/formats/torch_save/checkpoint.h"

namespace ebb::formats::torch_save {

// The rank that the name of a rank's file says; nullopt: it says none.
std::optional<std::uint32_t> rank_of_file(std::string_view name);

// A tensor at `path`, of which nothing else is known yet.
TensorEntry entry_at(const std::vector<PathItem>& path);

// How one rank's part of a tensor is named, where the other parts are not read.
UnreadForm form_of_part(const ShardedPart& part);

class OpenFile {
 public:
  // The checkpoint, which is borrowed, gets the file. `named`: as for ShardedReader.
  static Result<OpenFile> open(const SourceTree& tree, const std::string& name,
                               FileCheckpoint& checkpoint, std::optional<std::uint32_t> named);

  const PickleGraph& graph() const { return content_->file.graph(); }
  std::string where() const { return std::string(source_->name()); }
  std::string producer() const { return content_->file.producer(); }
  bool is_in_order() const { return content_->file.is_in_order(); }
  ShardedReader& sharded() { return content_->sharded; }
  // A node as a value; tensors in it, which a stream's are not read for, with their elements.
  Result<ReadablePart> value_at(PickleId id) const;
  // Its number among the checkpoint's.
  std::uint32_t number() const { return number_; }
  // The number of the record that the tensor lies in, which becomes one of the checkpoint's.
  Result<std::uint32_t> number_of(const TorchTensor& tensor);
  // Where the tensor lies, which becomes none of the checkpoint's.
  Result<StoredCopy> copy_of(const TorchTensor& tensor) const;
  // A box of a tensor, as this file has it; its parts get chunks of the checkpoint.
  Result<CompositePiece> piece_of(TorchComposite made, Box box, Rank holder);
  // Whether the tensor, which becomes none of the checkpoint's, has the elements of `other`.
  Result<bool> has_same(const TorchTensor& tensor, const StoredCopy& other);
  std::size_t sharing() const { return sharing_; }  // tensors in storages of others

 private:
  struct Content {
    Content(TorchFile of, const std::shared_ptr<const ByteSource>& source,
            std::optional<std::uint32_t> named)
        : file(std::move(of)), sharded(file, source, named) {}
    TorchFile file;
    ShardedReader sharded;  // looks into it
  };
  struct Known {
    std::uint32_t number = 0;
    std::uint64_t bytes = 0;  // as far as it was checked to reach
  };

  OpenFile(std::shared_ptr<const ByteSource> source, std::unique_ptr<Content> content,
           FileCheckpoint& checkpoint, std::uint32_t number)
      : source_(std::move(source)),
        content_(std::move(content)),
        checkpoint_(&checkpoint),
        number_(number),
        to_compare_(2 * source_->size()) {}

  std::shared_ptr<const ByteSource> source_;
  std::unique_ptr<Content> content_;
  FileCheckpoint* checkpoint_;
  std::uint32_t number_ = 0;
  std::uint64_t to_compare_ = 0;                    // bytes that may still be read to compare
  std::unordered_map<std::string, Known> records_;  // by the storage's key
  std::size_t sharing_ = 0;
};

}  // namespace ebb::formats::torch_save
