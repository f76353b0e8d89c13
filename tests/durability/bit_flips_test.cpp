// Each bit of a stored generation, flipped: reading says so, and names the file, the block and the
// tensor. Bits of the manifest: the generation is not taken, and the file is named.
#include <array>
#include <cstdio>
#include <map>

#include "ebb/formats/describe.h"
#include "ebb/formats/native/ebb.h"
#include "ebb/formats/native/store_files.h"
#include "ebb/formats/native/survey.h"
#include "tests/durability/disk_tree.h"
#include "tests/durability/machines.h"

namespace ebb::test {
namespace {

using formats::ByteSource;
using formats::SourceTree;
using libmuon::Communicator;
using libswap::IoQueue;

// One bit of one file, wrong whenever it is read.
struct Flip {
  std::string file;  // in the tree
  std::uint64_t byte = 0;
  std::uint8_t bit = 0;
};

class FlippedSource : public ByteSource {
 public:
  FlippedSource(std::shared_ptr<const ByteSource> real, std::string name, const Flip& flip)
      : real_(std::move(real)), name_(std::move(name)), flip_(flip) {}
  std::uint64_t size() const override { return real_->size(); }
  std::string_view name() const override { return real_->name(); }
  Result<> read(std::uint64_t offset, std::span<std::byte> into) const override {
    EBB_TRY(real_->read(offset, into));
    if (flip_.file == name_ && flip_.byte >= offset && flip_.byte - offset < into.size())
      into[flip_.byte - offset] ^= std::byte{1} << flip_.bit;
    return {};
  }

 private:
  const std::shared_ptr<const ByteSource> real_;
  const std::string name_;
  const Flip& flip_;
};

// Opens each file of the tree below once.
class FlippedTree : public test_support::ForwardingTree {
 public:
  FlippedTree(const std::shared_ptr<const SourceTree>& real, const Flip& flip)
      : ForwardingTree(real) {
    for (const Entry& entry : real->entries()) {
      auto file = real->open(entry.name);
      EBB_CHECK(file.has_value());
      files_[entry.name] = std::make_shared<const FlippedSource>(*file, entry.name, flip);
    }
  }
  Result<std::shared_ptr<const ByteSource>> open(std::string_view name) const override {
    const auto found = files_.find(name);
    EBB_CHECK(found != files_.end());
    return found->second;
  }

 private:
  std::map<std::string, std::shared_ptr<const ByteSource>, std::less<>> files_;
};

// 4,096,000 bits of state.
libmuon::ModelSpec model_of_four_million_bits() {
  libmuon::ModelSpec model;
  model.groups = {libmuon::MuonSpec::keller(), libmuon::AdamSpec{}};
  model.params = {{"matrix", {200, 200}, 0}, {"table", {160, 100}, 1}};
  return model;
}

// A store of two ranks with two generations, as files.
std::shared_ptr<const SourceTree> stored_generation() {
  const auto disk = empty_disk();
  Machines machines(disk);
  const auto config = config_of(Training{.ranks = 2}, model_of_four_million_bits());
  std::shared_ptr<const SourceTree> tree;
  for (const auto& answer : machines.run([&](Communicator& ranks, IoQueue& io) -> Result<> {
         EBB_TRY_ASSIGN(const auto swap, libswap::SwapDirectory::open(io, "/swap", ranks));
         EBB_TRY_ASSIGN(auto rank, RankEngine::open(io, *swap, ranks, config));
         EBB_TRY(rank.hand_in(1));
         EBB_TRY(rank.step());
         EBB_TRY(rank.commit());
         if (ranks.rank() == Rank{0}) {
           EBB_TRY_ASSIGN(tree, tree_on_disk(io, rank.engine().store_directory()));
         }
         return {};
       }))
    EXPECT_TRUE(answer) << answer.error().message;
  return tree;
}

// The bits of a chunk, one after another; how many were found where they are.
std::uint64_t flip_chunk(const Checkpoint& checkpoint, const TensorEntry& tensor,
                         const Chunk& chunk, std::uint64_t stride, Flip& flip) {
  constexpr std::uint64_t kBlock = 4096;
  flip.file = checkpoint.catalog().files[chunk.file].name;
  std::uint64_t located = 0;
  std::array<std::byte, 1> element{};
  for (std::uint64_t bit = 0; bit < chunk.length * 8; bit += stride) {
    flip.byte = chunk.offset + bit / 8;
    flip.bit = static_cast<std::uint8_t>(bit % 8);
    const auto read = checkpoint.read(tensor, chunk, bit / 8, element);
    if (read) continue;
    const Error& error = read.error();
    const std::uint64_t block = flip.byte / kBlock * kBlock;
    located += error.code == Code::corrupt && error.place.offset == block &&
                       error.place.tensor == formats::label_of(tensor) &&
                       error.place.file.ends_with(flip.file) &&
                       error.message.find(error.place.tensor) != std::string::npos
                   ? 1
                   : 0;
  }
  return located;
}

TEST(BitFlips, OfAGenerationAreLocatedToFileBlockAndTensor) {
  const auto stored = stored_generation();
  ASSERT_NE(stored, nullptr);
  const std::uint64_t stride = brief_or(97, 1);
  std::uint64_t flips = 0, located = 0, bits = 0;
  Flip flip;
  const auto checkpoint = formats::describe(std::make_shared<FlippedTree>(stored, flip));
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  for (const TensorEntry& tensor : (*checkpoint)->catalog().tensors)
    for (const Chunk& chunk : tensor.chunks) {
      bits += chunk.length * 8;
      flips += formats::div_ceil(chunk.length * 8, stride);
      located += flip_chunk(**checkpoint, tensor, chunk, stride, flip);
    }
  EXPECT_EQ(bits, 4096000u);
  EXPECT_EQ(located, flips);
  std::printf("bit flips: %llu of %llu located, of %llu bits of a generation\n",
              static_cast<unsigned long long>(located), static_cast<unsigned long long>(flips),
              static_cast<unsigned long long>(bits));
}

// What a description says beside its tensors.
std::string said(const Result<std::unique_ptr<Checkpoint>>& described) {
  if (!described) return described.error().message;
  std::string all = compose("step {}", (*described)->catalog().step.value_or(-1));
  for (const std::string& note : (*described)->catalog().notes) all += "; " + note;
  return all;
}

TEST(BitFlips, OfAManifestAreSeenAndTheFileIsNamed) {
  const auto stored = stored_generation();
  ASSERT_NE(stored, nullptr);
  const std::string name = "rank-00001-of-00002/meta.ebb";
  const auto meta = stored->open(name);
  ASSERT_TRUE(meta);
  const auto scan = formats::native::scan_meta(**meta);
  ASSERT_TRUE(scan);
  const auto* newest = (*scan).newest_valid(formats::native::kMaxGeneration);
  ASSERT_NE(newest, nullptr);
  const std::uint64_t begin = formats::native::region_offset((*scan).superblock, newest->region);
  const std::uint64_t bits = 8 * newest->header.bytes;
  const std::uint64_t seed = seed_for("flips of a manifest");
  const std::uint64_t flips = brief_or(200, 4000);
  constexpr std::uint64_t kHeaderBits = 8 * formats::native::kManifestHeaderBytes;
  Draws draws(seed);
  Flip flip;
  const auto tree = std::make_shared<FlippedTree>(stored, flip);
  const std::string clean = said(formats::describe(tree));
  std::uint64_t seen = 0;
  for (std::uint64_t i = 0; i < flips; ++i) {
    const std::uint64_t bit = draws.below(i % 2 == 0 ? kHeaderBits : bits);
    flip = {name, begin + bit / 8, static_cast<std::uint8_t>(bit % 8)};
    const std::string damaged = said(formats::describe(tree));
    const bool named = damaged != clean && damaged.find("meta.ebb") != std::string::npos;
    EXPECT_TRUE(named) << "byte " << flip.byte - begin << " of the manifest: " << damaged;
    seen += named ? 1 : 0;
  }
  std::printf("flips of a manifest: %llu of %llu named, of %llu bits\n",
              static_cast<unsigned long long>(seen), static_cast<unsigned long long>(flips),
              static_cast<unsigned long long>(bits));
}

}  // namespace
}  // namespace ebb::test
