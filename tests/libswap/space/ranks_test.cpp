// Several ranks, on a real disk: what they must agree on, what the tools read of their store, and
// how another number of ranks takes it over, wherever its parts lie.
#include <thread>

#include "ebb/formats/describe.h"
#include "ebb/libmuon/comm/communicator.h"
#include "ebb/libswap/tree/file_tree.h"
#include "tests/libswap/space/space_rig.h"
#include "tests/libswap/sys/test_files.h"

namespace ebb::libswap::space_tests {
namespace {

using std::string_literals::operator""s;

// Whole tensors, as they are cut over the ranks.
struct Tensor {
  std::string name, state;
  DType dtype;
  Shape shape;
};
const std::vector<Tensor> kTensors = {
    {"embed", "master", DType::f32, {33, 100}},  {"embed", "exp_avg", DType::bf16, {33, 100}},
    {"bias", "master", DType::f64, {3}},         {"steps", "count", DType::i64, {}},
    {"mask", "bits", DType::boolean, {9, 1000}}, {"head", "master", DType::f32, {7, 11, 13}}};

std::byte value_at(std::size_t tensor, std::uint64_t at, std::uint64_t step) {
  return std::byte((tensor * 37 + at * 11 + at / 256 + step) % 251);
}

FlatRange share(std::uint64_t elems, std::uint32_t rank, std::uint32_t world) {
  const std::uint64_t first = elems * rank / world;
  return {first, elems * (rank + 1) / world - first};
}

// Where a rank pages, and which directories of an earlier run it reaches.
struct Place {
  std::filesystem::path directory;
  std::vector<std::filesystem::path> sources = {};
};

// Ranks of a trainer's own: they agree and sum, and no more.
class OwnRanks : public Ranks {
 public:
  explicit OwnRanks(Ranks& below) : below_(below) {}
  Rank rank() const override { return below_.rank(); }
  std::uint32_t world() const override { return below_.world(); }
  Result<std::int64_t> agree(std::int64_t mine) override { return below_.agree(mine); }
  Result<> sum(std::span<std::int64_t> numbers) override { return below_.sum(numbers); }

 protected:
  Ranks& below_;
};
// They pass bytes, too, but rank 1 reads none for the others in what it does second, or first.
class FailingRanks : public OwnRanks {
 public:
  FailingRanks(Ranks& below, int well) : OwnRanks(below), well_(well) {}
  Result<> together_reading(std::string_view doing, const FilesApart& files,
                            const std::function<Result<>(const ReadThere& there)>& work) override {
    FilesApart mine = files;
    if (rank() == Rank{1} && well_-- == 0)
      mine.read = [](std::uint32_t, std::uint64_t, std::span<std::byte>) -> Result<> {
        return Error{Code::io, "the disk is gone"};
      };
    return below_.together_reading(doing, mine, work);
  }

 private:
  int well_;
};
using Wrap = std::function<std::unique_ptr<Ranks>(Ranks& below)>;
std::unique_ptr<Ranks> own(Ranks& below) { return std::make_unique<OwnRanks>(below); }
Wrap failing(int well) {
  return [=](Ranks& below) { return std::make_unique<FailingRanks>(below, well); };
}

// Runs `body` as each rank of a world; what each answered.
std::vector<Result<>> at_places(const std::vector<Place>& places, std::uint64_t tile_bytes,
                                const std::function<Result<>(SwapSpace&, Ranks&)>& body,
                                const Wrap& wrap = {}) {
  auto io =
      std::move(*IoQueue::start(std::move(open_backend(BackendChoice::automatic)->backend), {}));
  const auto below = libmuon::make_thread_ranks(static_cast<std::uint32_t>(places.size()));
  std::vector<Result<>> answers(places.size());
  const auto run = [&](std::size_t rank) -> Result<> {
    const auto wrapped = wrap ? wrap(*below[rank]) : nullptr;
    Ranks& ranks = wrapped ? *wrapped : *below[rank];
    const auto& [path, sources] = places[rank];
    EBB_TRY_ASSIGN(const auto directory, SwapDirectory::open(*io, path, ranks, sources));
    SwapSpace space(*io, *directory, ranks,
                    {.budget_bytes = 12 * tile_bytes, .tile_bytes = tile_bytes});
    return body(space, ranks);
  };
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < places.size(); ++rank)
    threads.emplace_back([&, rank] { answers[rank] = run(rank); });
  for (std::thread& thread : threads) thread.join();
  return answers;
}

// In one swap directory.
void as_ranks(std::uint32_t world, const std::filesystem::path& folder, std::uint64_t tile_bytes,
              const std::function<void(SwapSpace&, Ranks&)>& body) {
  const auto answers = at_places(std::vector<Place>(world, Place{folder}), tile_bytes,
                                 [&](SwapSpace& space, Ranks& ranks) {
                                   body(space, ranks);
                                   return Result<>();
                                 });
  for (const auto& answer : answers) EXPECT_TRUE(ok(answer));
}

void register_all(SwapSpace& space, const Ranks& ranks) {
  for (const Tensor& tensor : kTensors)
    ASSERT_TRUE(ok(space.register_buffer(
        {{tensor.name, tensor.state, tensor.dtype, tensor.shape,
          share(formats::volume(tensor.shape), index_of(ranks.rank()), ranks.world())}})));
}

std::uint64_t first_byte(const Tensor& tensor, const Ranks& ranks) {
  const auto range = share(formats::volume(tensor.shape), index_of(ranks.rank()), ranks.world());
  return range.first * formats::bytes_of(tensor.dtype);
}

void fill_all(SwapSpace& space, const Ranks& ranks, std::uint64_t step) {
  for (std::uint32_t i = 0; i < kTensors.size(); ++i) {
    auto lease = space.acquire(BufferId{i}, Tier::host, Access::modify);
    ASSERT_TRUE(ok(lease));
    for (std::uint64_t k = 0; k < lease->bytes().size(); ++k)
      lease->bytes()[k] = value_at(i, first_byte(kTensors[i], ranks) + k, step);
    ASSERT_TRUE(ok(space.release(*lease, Release::dirty)));
  }
}

void expect_all(SwapSpace& space, const Ranks& ranks, std::uint64_t step) {
  EXPECT_EQ(space.step(), step);
  for (std::uint32_t i = 0; i < kTensors.size(); ++i) {
    const auto lease = space.acquire(BufferId{i}, Tier::host, Access::read);
    ASSERT_TRUE(ok(lease));
    for (std::uint64_t k = 0; k < lease->bytes().size(); ++k)
      ASSERT_EQ(lease->bytes()[k], value_at(i, first_byte(kTensors[i], ranks) + k, step));
  }
}

const SwapSpace::InitialContent kZeros = [](BufferId, std::span<std::byte>) { return Result<>(); };

void train(const std::vector<Place>& places, std::uint64_t steps) {
  const auto answers = at_places(places, kTile, [&](SwapSpace& space, Ranks& ranks) -> Result<> {
    register_all(space, ranks);
    EBB_TRY(space.open(kZeros));
    for (std::uint64_t step = 1; step <= steps; ++step) {
      fill_all(space, ranks, step);
      EBB_TRY(space.snapshot(step));
      EBB_TRY(space.wait_snapshot());
    }
    return {};
  });
  for (const auto& answer : answers) ASSERT_TRUE(ok(answer));
}
void train(const std::filesystem::path& folder, std::uint32_t world, std::uint64_t steps) {
  train(std::vector<Place>(world, Place{folder}), steps);
}

// Opens what is at a step; what each rank answered.
std::vector<Result<>> go_on(const std::vector<Place>& places, std::uint64_t step,
                            const std::string& how, const Wrap& wrap = {}) {
  const auto body = [&](SwapSpace& space, Ranks& ranks) -> Result<> {
    register_all(space, ranks);
    EBB_TRY(space.open(kZeros));
    EXPECT_TRUE(space.origin().starts_with(how)) << space.origin();
    expect_all(space, ranks, step);
    return {};
  };
  return at_places(places, kTile, body, wrap);
}

TEST(SwapSpaceRanks, TheToolsReadEveryTensorOfTheirStore) {
  const TemporaryDirectory folder;
  train(folder / "swap", 3, 4);
  auto tree = open_tree(folder / "swap");
  ASSERT_TRUE(ok(tree));
  const auto checkpoint = formats::describe(std::move(*tree));
  ASSERT_TRUE(ok(checkpoint));
  const Catalog& catalog = (*checkpoint)->catalog();
  EXPECT_EQ(catalog.format, "ebb");
  EXPECT_EQ(catalog.step, 4);
  EXPECT_EQ(catalog.world, 3u);
  EXPECT_TRUE(ok(formats::prove_coverage(catalog)));
  ASSERT_EQ(catalog.tensors.size(), kTensors.size());
  for (const TensorEntry& entry : catalog.tensors) {
    const auto tensor = std::ranges::find_if(kTensors, [&](const Tensor& one) {
      return one.name == entry.name && one.state == entry.state;
    });
    ASSERT_NE(tensor, kTensors.end()) << formats::label_of(entry);
    EXPECT_EQ(entry.dtype, tensor->dtype);
    EXPECT_EQ(entry.shape, tensor->shape);
    for (const Chunk& chunk : entry.chunks) {
      formats::ByteVector bytes(chunk.length);
      ASSERT_TRUE(ok((*checkpoint)->read(entry, chunk, 0, bytes)));
      const auto range = formats::flat_range_of(entry.shape, chunk.box);
      ASSERT_TRUE(range.has_value());
      const std::uint64_t first = range->first * formats::bytes_of(entry.dtype);
      for (std::uint64_t k = 0; k < bytes.size(); ++k)
        ASSERT_EQ(bytes[k],
                  value_at(static_cast<std::size_t>(tensor - kTensors.begin()), first + k, 4));
    }
  }
}

TEST(SwapSpaceRanks, AnotherNumberOfRanksOrTileSizeTakesTheStoreOver) {
  const TemporaryDirectory folder;
  train(folder / "swap", 2, 3);
  for (const auto& [world, tile] :
       std::vector<std::pair<std::uint32_t, std::uint64_t>>{{3, kTile}, {1, kTile}, {1, 4 * kTile}})
    for (const std::string how : {"transferred", "resumed"})
      as_ranks(world, folder / "swap", tile, [&](SwapSpace& space, Ranks& ranks) {
        register_all(space, ranks);
        ASSERT_TRUE(ok(space.open(kZeros)));
        EXPECT_TRUE(space.origin().starts_with(how)) << space.origin();
        expect_all(space, ranks, 3);
      });
}

// Three ranks with a disk each trained; each later run goes on from the one before it.
TEST(SwapSpaceRanks, AStoreOnDisksThatNotAllReachIsTakenOver) {
  struct At {
    int disk;
    std::vector<int> reached = {};
  };
  struct Move {
    std::vector<At> ranks;
    Wrap wrap = {};
  };
  const TemporaryDirectory folder;
  const auto disk = [&](int number) { return folder / ("disk-" + std::to_string(number)); };
  train({{disk(0)}, {disk(1)}, {disk(2)}}, 3);
  std::size_t before = 3;
  for (const auto& [ranks, wrap] : std::vector<Move>{
           {{{1}, {2}, {0}}},                               // as many, on each other's disks
           {{{2, {0, 1}}, {1, {0, 2}}, {0, {1, 2}}}, own},  // again, where all reach all
           {{{0, {2}}, {1}}},                               // fewer
           {{{1}, {0}, {2}, {3}}},                          // more, some on new disks
           {{{4}, {5, {0, 1, 2, 3}}}},                      // of whom one reaches all
           {{{6, {4, 5}}}, own}}) {                         // a single one
    std::vector<Place> places;
    for (const At& at : ranks) {
      places.push_back({disk(at.disk)});
      for (const int other : at.reached) places.back().sources.push_back(disk(other));
    }
    for (const std::string& how :
         {compose("transferred the store of {} ranks at step 3", before), "resumed the store"s})
      for (const auto& answer : go_on(places, 3, how, wrap)) ASSERT_TRUE(ok(answer));
    before = ranks.size();
  }
}

TEST(SwapSpaceRanks, AStoreWhosePartsCannotBeReadIsRefusedAndNothingIsMade) {
  const TemporaryDirectory folder;
  const auto old = [&](int rank) { return folder / ("old-" + std::to_string(rank)); };
  const auto fresh = [&](int rank) { return folder / ("new-" + std::to_string(rank)); };
  train({{old(0)}, {old(1)}}, 2);
  const std::vector<Place> crossed = {{fresh(0), {old(1)}}, {fresh(1), {old(0)}}};
  const std::string failed = "rank 1 could not read for this one: the disk is gone";
  struct Case {
    std::vector<Place> places;
    Wrap wrap;
    Code code;
    std::string rank_0, rank_1;
  };
  const std::string nobody = "rank-00001-of-00002/meta.ebb: this rank's file is missing, and no";
  const std::string apart = ".data: 1 of 2 ranks reaches it, and these ranks pass no bytes";
  for (const auto& [places, wrap, code, rank_0, rank_1] : std::vector<Case>{
           {crossed, own, Code::unsupported, apart, apart},
           {crossed, failing(0), Code::peer, failed, "failed while reading the earlier"},
           {crossed, failing(1), Code::peer, failed, "failed while filling its store"},
           {{{fresh(0), {old(0)}}, {fresh(1)}}, {}, Code::incomplete, nobody, nobody}}) {
    const auto answers = go_on(places, 2, "", wrap);
    EXPECT_TRUE(refused(answers[0], code, rank_0));
    EXPECT_TRUE(refused(answers[1], code, rank_1));
    for (const int rank : {0, 1})
      for (const auto& left : std::filesystem::directory_iterator(fresh(rank)))
        EXPECT_EQ(left.path().filename(), "lock");
  }
  for (const auto& answer : go_on(crossed, 2, "transferred")) EXPECT_TRUE(ok(answer));
}

TEST(SwapSpaceRanks, ATensorThatIsMissingOrAnotherIsNamedAndNothingIsLost) {
  const TemporaryDirectory folder;
  train(folder / "swap", 1, 2);
  const auto open_with = [&](const std::function<void(std::vector<BufferPart>&)>& change) {
    Result<> opened;
    as_ranks(1, folder / "swap", kTile, [&](SwapSpace& space, Ranks&) {
      std::vector<BufferPart> parts;
      for (const Tensor& tensor : kTensors)
        parts.push_back({tensor.name,
                         tensor.state,
                         tensor.dtype,
                         tensor.shape,
                         {0, formats::volume(tensor.shape)}});
      change(parts);
      for (const BufferPart& part : parts) ASSERT_TRUE(ok(space.register_buffer({part})));
      opened = space.open(kZeros);
    });
    return opened;
  };
  EXPECT_TRUE(refused(open_with([](auto& parts) { parts.pop_back(); }), Code::layout,
                      "head (master), which is not registered"));
  EXPECT_TRUE(refused(open_with([](auto& parts) { parts[1].dtype = DType::f16; }), Code::layout,
                      "embed (exp_avg) is BF16"));
  EXPECT_TRUE(refused(open_with([](auto& parts) { parts.push_back(bytes_named("new", 3)); }),
                      Code::incomplete, "has no new (state)"));
  EXPECT_TRUE(ok(open_with([](auto& parts) { std::ranges::reverse(parts); })));
  as_ranks(1, folder / "swap", kTile, [&](SwapSpace& space, Ranks& ranks) {
    register_all(space, ranks);
    ASSERT_TRUE(ok(space.open(kZeros)));
    expect_all(space, ranks, 2);
  });
}

TEST(SwapSpaceRanks, WhatTheyWereToldDifferentlyIsNamedOnAll) {
  const TemporaryDirectory folder;
  const auto open_with = [&](const std::function<BufferPart(std::uint32_t rank)>& part, Code code,
                             std::string_view naming) {
    as_ranks(2, folder / "swap", kTile, [&](SwapSpace& space, Ranks& ranks) {
      ASSERT_TRUE(ok(space.register_buffer({part(index_of(ranks.rank()))})));
      EXPECT_TRUE(refused(space.open(kZeros), code, naming));
    });
  };
  open_with([](std::uint32_t rank) { return bytes_named(rank == 0 ? "a" : "b", 9); }, Code::usage,
            "buffer 0 is not the same on all ranks");
  open_with([](std::uint32_t) { return bytes_named("a", 9); }, Code::layout, "a (state)");
  const auto share_of = [](FlatRange range) {
    BufferPart part = bytes_named("a", 9);
    part.range = range;
    return part;
  };
  open_with([&](std::uint32_t rank) { return share_of({rank * 5, 4}); }, Code::layout, "a (state)");
  open_with([&](std::uint32_t rank) { return share_of({rank * 4, 5}); }, Code::layout, "a (state)");
}

TEST(SwapSpaceRanks, ARankThatCannotEndsTheSnapshotOnAll) {
  const TemporaryDirectory folder;
  as_ranks(2, folder / "swap", kTile, [&](SwapSpace& space, Ranks& ranks) {
    register_all(space, ranks);
    ASSERT_TRUE(ok(space.open(kZeros)));
    const std::uint64_t step = 1 + index_of(ranks.rank());
    EXPECT_TRUE(refused(space.snapshot(step), Code::usage, "step of the snapshot"));
    EXPECT_TRUE(ok(space.snapshot(3)));
    EXPECT_TRUE(ok(space.wait_snapshot()));
  });
}

}  // namespace
}  // namespace ebb::libswap::space_tests
