#include "ebb/formats/torch_save/open_file.h"

#include "ebb/formats/catalog/key_path.h"
#include "ebb/formats/catalog/part_of_save.h"
#include "ebb/formats/core/compose.h"
#include "ebb/formats/core/number_text.h"

namespace ebb::formats::torch_save {

std::optional<std::uint32_t> rank_of_file(std::string_view name) {
  const auto part = part_name(name.substr(name.rfind('/') + 1));
  if (!part || part->family.find("rank") == std::string::npos) return std::nullopt;
  const auto rank = parse_number<std::uint32_t>(part->number);
  return rank && *rank < kMostRanks ? rank : std::nullopt;
}

TensorEntry entry_at(const std::vector<PathItem>& path) {
  TensorEntry entry;
  entry.key = joined(path);
  entry.path = path;
  entry.name = *entry.key;
  entry.state = "tensor";
  return entry;
}

UnreadForm form_of_part(const ShardedPart& part) {
  const std::string whose =
      part.rank ? compose("rank {}'s", *part.rank) : std::string("one rank's");
  UnreadForm form{compose("a {}: {} part of a tensor that {} hold", part.kind, whose,
                          plural(part.ranks->size(), "rank")),
                  "all ranks' files are needed: name the folder, where they are read as one"};
  form.dtype = part.dtype;
  form.shape = part.shape;
  return form;
}

Result<OpenFile> OpenFile::open(const SourceTree& tree, const std::string& name,
                                FileCheckpoint& checkpoint, std::optional<std::uint32_t> named) {
  EBB_TRY_ASSIGN(std::shared_ptr<const ByteSource> source, tree.open(name));
  EBB_TRY_ASSIGN(TorchFile file, TorchFile::open(source));
  checkpoint.expect(file.records());
  const std::uint32_t number = checkpoint.add_file(name, source, file.order());
  auto content = std::make_unique<Content>(std::move(file), source, named);
  return OpenFile(std::move(source), std::move(content), checkpoint, number);
}

Result<ReadablePart> OpenFile::value_at(PickleId id) const {
  if (const TorchArchive* archive = content_->file.archive())
    return readable_part_of(graph(), id, *archive);
  ReadablePart part;
  EBB_TRY_ASSIGN(part.value, value_of(graph(), id, nullptr));
  return part;
}

Result<std::uint32_t> OpenFile::number_of(const TorchTensor& tensor) {
  const auto known = records_.find(tensor.storage.key);
  if (known != records_.end() && known->second.bytes >= tensor.storage.bytes) {
    ++sharing_;
    return known->second.number;
  }
  EBB_TRY_ASSIGN(StoredRecord record, content_->file.record_of(tensor));
  const Known fresh{checkpoint_->add(std::move(record), number_), tensor.storage.bytes};
  records_.insert_or_assign(tensor.storage.key, fresh);
  return fresh.number;
}

Result<CompositePiece> OpenFile::piece_of(TorchComposite made, Box box, Rank holder) {
  CompositePiece piece{std::move(box), std::move(made), {}};
  for (const TorchComposite::Part& part : piece.made.parts) {
    EBB_TRY_ASSIGN(const std::uint32_t number, number_of(part.tensor));
    Chunk chunk = checkpoint_->chunk_of(whole(part.tensor.shape), part.tensor, number, holder);
    piece.stored.push_back({std::move(chunk), checkpoint_->crc_of(number)});
  }
  return piece;
}

Result<StoredCopy> OpenFile::copy_of(const TorchTensor& tensor) const {
  EBB_TRY_ASSIGN(StoredRecord record, content_->file.record_of(tensor));
  return StoredCopy{tensor, std::move(record), source_, content_->file.order()};
}

Result<bool> OpenFile::has_same(const TorchTensor& tensor, const StoredCopy& other) {
  EBB_TRY_ASSIGN(const StoredCopy mine, copy_of(tensor));
  return same_elements(other, mine, to_compare_);
}

}  // namespace ebb::formats::torch_save
