// A checkpoint format for tests of writing: one file a rank with every kind of fragment, and two
// files that commit it. And a disk in memory to write it to.
#pragma once

#include <map>

#include "ebb/formats/catalog/format.h"
#include "ebb/formats/core/crc32c.h"
#include "ebb/libswap/queue/io_queue.h"
#include "ebb/libswap/testing/memory_backend.h"
#include "tests/libswap/transfer/memory_checkpoint.h"

namespace ebb::libswap::testing {

// Only written, by a function of the test's.
class ToyFormat final : public formats::Format {
 public:
  using Emit = Result<EmitPlan> (*)(const formats::EmitRequest& request);
  ToyFormat(const formats::FormatTraits& traits, Emit made) : Format(traits), emit_(made) {}
  bool detect(const formats::SourceTree&) const override { return false; }
  Result<std::unique_ptr<Checkpoint>> describe(
      std::shared_ptr<const formats::SourceTree>) const override {
    return Error{Code::unsupported, "a toy is not read"};
  }
  Result<EmitPlan> emit(const formats::EmitRequest& request) const override {
    return emit_(request);
  }
  formats::ResumeRules resume_rules() const override { return {}; }

 private:
  Emit emit_;
};

inline ByteVector text_bytes(std::string_view text) {
  const ByteView view = formats::view_of(text);
  return {view.begin(), view.end()};
}

template <typename Data>
void add_fragment(OutputFile& file, std::uint64_t offset, Data data) {
  Fragment& fragment = file.fragments.emplace_back();
  fragment.offset = offset;
  fragment.data.emplace<Data>(std::move(data));
}

inline OutputFile literal_file(std::string name, std::string_view text) {
  OutputFile file;
  file.name = std::move(name);
  file.size = text.size();
  if (!text.empty()) add_fragment(file, 0, text_bytes(text));
  return file;
}

// Every piece is aligned to 64 bytes and followed by its CRC.
inline OutputFile toy_shard(const Catalog& content, const Layout& layout, Rank rank) {
  OutputFile file;
  file.name = "data/rank" + std::to_string(index_of(rank)) + ".bin";
  file.writer = rank;
  add_fragment(file, 0, text_bytes("TOY"));
  std::uint64_t end = 3;
  for (std::uint32_t t = 0; t < content.tensors.size(); ++t)
    for (const formats::Piece& piece : layout.pieces(t, rank)) {
      const std::uint64_t size =
          *formats::packed_bytes(content.tensors[t].dtype, formats::volume(piece.box.extent));
      const std::uint64_t offset = formats::align_up(end, 64);
      add_fragment(file, offset, TensorData{t, piece.box});
      const auto seal = [](std::span<const std::uint32_t> crcs) {
        ByteVector bytes;
        formats::append_le(bytes, crcs[0]);
        return bytes;
      };
      add_fragment(file, offset + size, formats::Sealed{4, {{offset, size}}, seal});
      end = offset + size + 4;
    }
  file.size = end + 5;  // ends with a gap
  return file;
}

// A file with checked blocks, the last of them a gap, and the one that tells their CRC32Cs.
inline void add_blocks(EmitPlan& plan) {
  OutputFile file = literal_file("blocks", std::string(300, 'b'));
  file.size = 407;
  file.blocks = formats::CheckedBlocks{7, 100, 4};
  OutputFile sums = literal_file("meta/sums", "");
  sums.size = 16;
  const auto seal = [](std::span<const std::uint32_t> crcs) {
    ByteVector bytes;
    for (const std::uint32_t crc : crcs) formats::append_le(bytes, crc);
    return bytes;
  };
  const auto number = static_cast<std::uint32_t>(plan.files.size());
  add_fragment(sums, 0, formats::Sealed{16, {}, seal, number});
  plan.files.push_back(std::move(file));
  plan.commit_files.push_back(std::move(sums));
}

inline ByteVector sums_of(const formats::CheckedBlocks& blocks, ByteView file) {
  ByteVector sums;
  for (std::uint64_t block = 0; block < blocks.count; ++block)
    formats::append_le(
        sums, formats::crc32c(0, file.subspan(blocks.first + block * blocks.bytes, blocks.bytes)));
  return sums;
}

inline EmitPlan toy_plan(const Catalog& content, const Layout& layout) {
  EmitPlan plan;
  for (std::uint32_t r = 0; r < layout.spec().mesh.shard_world; ++r)
    plan.files.push_back(toy_shard(content, layout, Rank{r}));
  plan.files.push_back(literal_file("empty", ""));
  plan.commit_files.push_back(literal_file("meta/index", "index"));
  plan.commit_files.push_back(literal_file(".done", "done"));
  return plan;
}

using Files = std::map<std::string, ByteVector>;

// What write_checkpoint must make of a plan, the slow way.
inline Files expected_files(const EmitPlan& plan, const MemoryCheckpoint& source) {
  Files files;
  for (const auto* list : {&plan.files, &plan.commit_files})
    for (const OutputFile& file : *list) {
      ByteVector& bytes = files[file.name];
      ByteVector data;
      for (const Fragment& fragment : file.fragments) {
        bytes.resize(fragment.offset);
        if (const auto* literal = std::get_if<ByteVector>(&fragment.data)) {
          formats::append_bytes(bytes, *literal);
        } else if (const auto* box = std::get_if<TensorData>(&fragment.data)) {
          data = source.elements(box->tensor, box->box);
          formats::append_bytes(bytes, data);
        } else if (const auto of = std::get<formats::Sealed>(fragment.data).blocks_of) {
          const OutputFile& blocks = plan.files[*of];
          formats::append_bytes(bytes, sums_of(*blocks.blocks, files.at(blocks.name)));
        } else {
          formats::append_le(bytes, formats::crc32_zip(0, data));
        }
      }
      bytes.resize(file.size);
    }
  return files;
}

inline void collect(IoQueue& io, const fs::path& path, const std::string& prefix, Files& out) {
  const auto names = io.backend().list(path);
  if (names) {
    for (const std::string& name : *names)
      collect(io, path / name, prefix.empty() ? name : prefix + "/" + name, out);
    return;
  }
  const FileId file = *io.backend().open(path, {});
  ByteVector& bytes = out[prefix];
  bytes.resize(io.backend().info(file)->size);
  if (!bytes.empty()) EBB_CHECK(io.read(file, 0, bytes).has_value());
  EBB_CHECK(io.backend().close(file).has_value());
}

// Every file below a directory, by its relative name; empty when it is not there.
inline Files files_below(IoQueue& io, const fs::path& directory) {
  Files files;
  if (*io.backend().exists(directory)) collect(io, directory, "", files);
  return files;
}

inline std::unique_ptr<IoQueue> queue_over(std::unique_ptr<IoBackend> backend) {
  auto queue = IoQueue::start(std::move(backend), {});
  EBB_CHECK(queue.has_value());
  return *std::move(queue);
}
inline constexpr std::uint64_t kDisk = std::uint64_t{64} << 20;
inline std::unique_ptr<IoQueue> queue_on(const std::shared_ptr<MemoryDisk>& disk) {
  return queue_over(make_memory_backend(disk));
}

}  // namespace ebb::libswap::testing
