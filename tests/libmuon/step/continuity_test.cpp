// What an engine makes of stored state: the same settings, steps and places, or it says which not.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <string>

#include "ebb/formats/conversion/memory_content.h"
#include "ebb/formats/native/store_files.h"
#include "ebb/libswap/pager/tile_cache.h"
#include "ebb/libswap/queue/io_queue.h"
#include "tests/libmuon/support/reference.h"
#include "tests/libmuon/support/training.h"
#include "tests/libmuon/support/world.h"

namespace ebb::test {
namespace {

using libmuon::Communicator;
using libmuon::MuonSpec;

libmuon::ModelSpec two_parameters() {
  libmuon::ModelSpec model;
  model.groups = {MuonSpec::keller(), libmuon::AdamSpec{.lr = 1e-2, .beta2 = 0.999, .eps = 1e-8}};
  model.params = {{"matrix", {12, 20}, 0}, {"vector", {64}, 1}};
  return model;
}

libmuon::EngineConfig config_of(const libmuon::ModelSpec& model, std::uint32_t ranks = 2) {
  return test::config_of(Training{.ranks = ranks}, model);
}

// The state of two_parameters() as a checkpoint of another format would hold it.
struct Source {
  Catalog catalog;
  std::vector<std::vector<float>> data;

  Source() {
    catalog.format = "dcp";
    catalog.step = 7;
    for (const auto& [name, state, shape] :
         {std::tuple{"matrix", "param", Shape{12, 20}},
          std::tuple{"matrix", "momentum_buffer", Shape{12, 20}},
          std::tuple{"vector", "param", Shape{64}}, std::tuple{"vector", "exp_avg", Shape{64}},
          std::tuple{"vector", "exp_avg_sq", Shape{64}}})
      add(name, state, shape, 0.25f);
    catalog.groups = {{"muon", {}, {"matrix"}}, {"adamw", {}, {"vector"}}};
  }
  void add(const std::string& name, const std::string& state, const Shape& shape, float value) {
    TensorEntry tensor;
    tensor.name = name;
    tensor.state = state;
    tensor.shape = shape;
    catalog.tensors.push_back(std::move(tensor));
    data.emplace_back(formats::volume(shape), value);
  }
  formats::MemoryContent content() const {
    std::vector<formats::Held> held;
    for (std::uint32_t i = 0; i < data.size(); ++i)
      held.push_back(
          {i, formats::whole(catalog.tensors[i].shape), std::as_bytes(std::span(data[i]))});
    auto made = formats::MemoryContent::make(catalog, std::move(held));
    EBB_CHECK(made.has_value());
    return std::move(*made);
  }
};

struct Opened {
  Result<> answer;
  std::string origin;
  std::uint64_t step = 0;
};

// Opens engines of all ranks in `directory`, does what is wanted with each, closes them.
using Use = std::function<Result<>(RankEngine&, Communicator&)>;
Opened open_in(const std::filesystem::path& directory, const libmuon::EngineConfig& config,
               const Checkpoint* checkpoint = nullptr, const Use& use = nullptr) {
  World world(disk(), directory, config.partition.gradients.mesh.world());
  Opened opened;
  const auto answers = world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, config, checkpoint));
    if (ranks.rank() == Rank{0}) {
      opened.origin = rank.engine().origin();
      opened.step = rank.engine().step_count();
    }
    return use ? use(rank, ranks) : Result<>();
  });
  opened.answer = answers[0];
  return opened;
}

Result<> train_and_commit(RankEngine& rank, std::uint64_t last) {
  while (rank.engine().step_count() < last) {
    EBB_TRY(rank.hand_in(rank.engine().step_count() + 1));
    EBB_TRY(rank.step());
  }
  EBB_TRY(rank.commit());
  return {};
}

Use train_to(std::uint64_t last) {
  return [last](RankEngine& rank, Communicator&) { return train_and_commit(rank, last); };
}

TEST(Continuity, MomentumOfTheOtherConventionIsRefusedOnResumeTransferAndLoad) {
  const TempDir directory;
  const auto model = two_parameters();
  ASSERT_TRUE(open_in(directory.path(), config_of(model), nullptr, train_to(3)).answer);
  auto sums = model;
  std::get<MuonSpec>(sums.groups[0]).momentum = libmuon::Momentum::sum;
  for (const std::uint32_t ranks : {2u, 3u}) {
    const auto refused = open_in(directory.path(), config_of(sums, ranks));
    ASSERT_FALSE(refused.answer) << ranks;
    EXPECT_EQ(refused.answer.error().code, Code::layout);
    EXPECT_NE(refused.answer.error().message.find("matrix was kept as an EMA"), std::string::npos)
        << refused.answer.error().message;
    EXPECT_NE(refused.answer.error().hint.find("--momentum sum"), std::string::npos);
  }
  Source source;
  source.catalog.groups[0].settings = {{"momentum", Value::of_string("sum")}};
  const TempDir fresh;
  const auto content = source.content();
  const auto loaded = open_in(fresh.path(), config_of(model), &content);
  ASSERT_FALSE(loaded.answer);
  EXPECT_EQ(loaded.answer.error().code, Code::layout);
  EXPECT_TRUE(open_in(directory.path(), config_of(model)).answer) << "the store is as it was";
}

TEST(Continuity, OtherSettingsAreNamedInOneNote) {
  const TempDir directory;
  const auto model = two_parameters();
  ASSERT_TRUE(open_in(directory.path(), config_of(model), nullptr, train_to(3)).answer);
  auto changed = model;
  std::get<MuonSpec>(changed.groups[0]).beta = 0.8;
  std::get<MuonSpec>(changed.groups[0]).lr = 0.001;  // changes all the time: not worth a word
  std::get<libmuon::AdamSpec>(changed.groups[1]).weight_decay = 0.5;
  EXPECT_EQ(open_in(directory.path(), config_of(changed)).origin,
            "resumed the store at step 3 (group 0: beta is 0.8, was 0.95; "
            "group 1: weight_decay is 0.5, was 0)");
  EXPECT_EQ(open_in(directory.path(), config_of(model)).origin, "resumed the store at step 3");
  EXPECT_EQ(open_in(directory.path(), config_of(changed, 3)).origin,
            "transferred the store of 2 ranks at step 3 (group 0: beta is 0.8, was 0.95; "
            "group 1: weight_decay is 0.5, was 0)");
  auto two_slots = config_of(changed, 3);
  two_slots.slots = 2;
  EXPECT_NE(open_in(directory.path(), two_slots).origin.find("3 slots"), std::string::npos);
}

TEST(Continuity, TorchsNamesForTheSettingsAreUnderstood) {
  Source source;
  source.catalog.groups[0].settings = {{"momentum", Value::of_real(0.9)},
                                       {"nesterov", Value::of_bool(false)}};
  source.catalog.groups[1].settings = {
      {"betas", Value::of_list({Value::of_real(0.9), Value::of_real(0.95)})},
      {"eps", Value::of_real(1e-8)}};
  const TempDir directory;
  const auto content = source.content();
  const auto opened = open_in(directory.path(), config_of(two_parameters()), &content);
  ASSERT_TRUE(opened.answer) << opened.answer.error().message;
  EXPECT_EQ(opened.origin,
            "loaded a dcp checkpoint of 1 ranks at step 7 (group 0: beta is 0.95, was 0.9, "
            "nesterov is yes, was no; group 1: beta2 is 0.999, was 0.95)");
}

// AdamW's correction of its bias goes by the parameter's own count: kept when the store is written,
// resumed and transferred.
TEST(Continuity, StepsThatAreCountedByParameterAreKept) {
  for (const bool as_tensor : {false, true}) {
    Source source;
    source.catalog.step = 7;
    if (as_tensor)
      source.add("vector", "step", {1}, 1000);
    else
      source.catalog.param_steps = {{"vector", 1000}};
    const auto content = source.content();
    auto model = two_parameters();
    const TempDir directory;
    const auto once = [&](std::uint32_t ranks) {
      return open_in(directory.path(), config_of(model, ranks), &content, train_to(0));
    };
    const auto follow = [&](std::uint32_t ranks, std::uint64_t last) {
      const auto opened =
          open_in(directory.path(), config_of(model, ranks), &content, train_to(last));
      ASSERT_TRUE(opened.answer) << opened.answer.error().message;
      EXPECT_EQ(opened.step, last - 1);
    };
    ASSERT_TRUE(once(2).answer);
    follow(2, 8);   // resumed
    follow(3, 9);   // transferred
    follow(3, 10);  // resumed what was transferred
    const libmuon::AdamSpec adam = std::get<libmuon::AdamSpec>(model.groups[1]);
    std::vector<double> w(64, 0.25), m(64, 0.25), v(64, 0.25);
    for (int step = 1; step <= 3; ++step)
      for (std::size_t i = 0; i < w.size(); ++i) {
        const double g = noise(1, 7 + static_cast<std::uint64_t>(step), i);
        m[i] = adam.beta1 * m[i] + (1 - adam.beta1) * g;
        v[i] = adam.beta2 * v[i] + (1 - adam.beta2) * g * g;
        const double c1 = 1 - std::pow(adam.beta1, 1000 + step);
        const double c2 = 1 - std::pow(adam.beta2, 1000 + step);
        w[i] -= adam.lr * (m[i] / c1) / (std::sqrt(v[i] / c2) + adam.eps);
      }
    const auto stored = tensors_of(directory.path());
    for (std::size_t i = 0; i < w.size(); ++i)
      ASSERT_NEAR(stored.at("vector master")[i], w[i], 1e-6) << "element " << i;
  }
}

TEST(Continuity, WhereOnlyParametersAreCountedTheMostStepsAreTheRuns) {
  Source source;
  source.catalog.step.reset();
  source.catalog.param_steps = {{"vector", 41}, {"matrix", 40}};
  const TempDir directory;
  const auto content = source.content();
  EXPECT_EQ(open_in(directory.path(), config_of(two_parameters()), &content).step, 41u);
}

TEST(Continuity, StateThatACheckpointLacksOrHasInAnotherShapeIsNamed) {
  const auto refused = [](const Source& source, Code code, const std::string& part) {
    const TempDir directory;
    const auto content = source.content();
    const auto opened = open_in(directory.path(), config_of(two_parameters()), &content);
    ASSERT_FALSE(opened.answer);
    EXPECT_EQ(opened.answer.error().code, code);
    EXPECT_NE(opened.answer.error().message.find(part), std::string::npos)
        << opened.answer.error().message;
    std::vector<std::string> left;
    for (const auto& entry : std::filesystem::directory_iterator(directory.path()))
      left.push_back(entry.path().filename().string());
    EXPECT_EQ(left, std::vector<std::string>{"lock"}) << "no store was made";
  };
  for (const std::size_t gone : {1u, 3u, 4u}) {
    Source source;
    const std::string what =
        source.catalog.tensors[gone].state + " of " + source.catalog.tensors[gone].name;
    source.catalog.tensors.erase(source.catalog.tensors.begin() +
                                 static_cast<std::ptrdiff_t>(gone));
    source.data.erase(source.data.begin() + static_cast<std::ptrdiff_t>(gone));
    refused(source, Code::incomplete, what);
  }
  Source turned;
  turned.catalog.tensors[1].shape = {20, 12};
  refused(turned, Code::layout, "momentum_buffer of matrix has shape");
}

formats::native::Manifest manifest_of(const libmuon::StatePlan& plan,
                                      const libmuon::ModelSpec& model) {
  formats::native::Manifest manifest;
  manifest.states = libmuon::state_names();
  for (const auto& param : model.params)
    manifest.params.push_back({param.name, param.shape, param.group});
  for (const auto& group : model.groups)
    manifest.groups.push_back(std::visit([](const auto& spec) { return to_group(spec); }, group));
  for (const auto& visit : plan.tiles()) {
    formats::native::Tile tile;
    tile.segments = plan.segments(visit);
    tile.used_bytes = tile.segments.back().offset + tile.segments.back().count * sizeof(float);
    manifest.tiles.push_back(std::move(tile));
  }
  return manifest;
}

// Of an HSDP run, whose AdamW ranges were cut over all ranks, and not inside each shard.
TEST(Continuity, AStoreFromBeforeShardsWereSplitIsTransferredWithTheSameBits) {
  Training setup{
      .ranks = 4, .copies = 2, .gradients = Policy::zero3, .weights = Policy::zero3, .slots = 2};
  setup.model.params = {{"a", {12, 10}, 0}, {"b", {7, 9}, 0}, {"norm", {21}, 1}};
  const TempDir before, plain;
  std::filesystem::copy(std::filesystem::path(EBB_FIXTURES) / "ebb" / "hsdp_2x2" / "data",
                        before.path(), std::filesystem::copy_options::recursive);
  const Outcome on = train(setup, before.path(), 5), whole = train(setup, plain.path(), 5);
  EXPECT_EQ(on.error, "");
  EXPECT_EQ(on.origin.substr(0, on.origin.find(" (")),
            "transferred the store of 4 ranks at step 3");
  EXPECT_TRUE(on == whole);
}

// A store of the same digest whose first two tiles have changed places, as an earlier or later
// planner may have laid them.
TEST(Continuity, AStoreWithItsTilesInOtherPlacesIsTransferredNotResumed) {
  libmuon::ModelSpec model;
  model.groups = {MuonSpec::keller()};
  model.params = {{"only", {16, 16}, 0}};
  const auto config = config_of(model, 1);
  const TempDir directory;
  {
    const auto plan =
        libmuon::StatePlan::make(model, config.partition, config.tile_bytes, Rank{0}, 1u << 28);
    ASSERT_TRUE(plan);
    ASSERT_EQ((*plan).tiles().size(), 2u);
    World world(disk(), directory.path(), 1);
    libswap::Alone alone;
    const auto fresh = world.swap().fresh(alone);
    ASSERT_TRUE(fresh);
    auto store = libswap::Store::create(world.io(), {.directory = (*fresh).path,
                                                     .uuid = (*fresh).uuid,
                                                     .tile_bytes = config.tile_bytes,
                                                     .block_bytes = config.tile_bytes,
                                                     .tiles = 2,
                                                     .manifest_bytes = 1u << 20,
                                                     .layout_digest = (*plan).digest()});
    ASSERT_TRUE(store) << store.error().message;
    ASSERT_TRUE((*store)->recover(alone));
    auto manifest = manifest_of(*plan, model);
    std::swap(manifest.tiles[0], manifest.tiles[1]);
    const std::array<std::uint64_t, 2> order = {0, 1};
    libswap::Pool pool;
    auto cache = libswap::TileCache::open(world.io(), **store, pool,
                                          libswap::Homes::spread({2, 0}, order), nullptr, nullptr);
    ASSERT_TRUE(cache);
    for (const std::uint64_t tile : order) {
      const auto bytes = (*cache)->acquire(tile, libswap::TileCache::Use::create);
      ASSERT_TRUE(bytes);
      const float value = tile == 0 ? 3.0f : 0.001f;  // master, momentum
      std::ranges::fill((*bytes).as(DType::f32).floats(), value);
      (*cache)->release_changed(tile, 5, {});
    }
    (*store)->cut(5);
    (*cache)->begin_cut();
    ASSERT_TRUE((*cache)->finish_cut());
    ASSERT_EQ(*(*store)->agree(alone, (*store)->prepare(manifest)),
              libswap::Store::Settled::committed);
    ASSERT_TRUE(world.swap().adopt(alone));
  }
  const auto opened = open_in(directory.path(), config, nullptr, [](RankEngine& rank, auto&) {
    EXPECT_EQ(rank.flat_weights(), std::vector<float>(256, 3.0f));
    return Result<>();
  });
  ASSERT_TRUE(opened.answer) << opened.answer.error().message;
  EXPECT_EQ(opened.origin, "transferred the store of 1 ranks at step 5");
}

// One flipped bit in a rank's newest manifest: that generation is lost, and the run says so.
void damage_newest_manifest(const std::filesystem::path& directory, std::uint32_t rank) {
  namespace native = formats::native;
  std::filesystem::path meta;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory))
    if (entry.path().filename() == native::kMetaFile &&
        entry.path().parent_path().filename() == native::rank_directory(Rank{rank}, 2))
      meta = entry.path();
  std::fstream file(meta, std::ios::in | std::ios::out | std::ios::binary);
  const auto read = [&](std::uint64_t offset, std::size_t count) {
    ByteVector bytes(count);
    file.seekg(static_cast<std::streamoff>(offset));
    file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(count));
    return bytes;
  };
  const auto superblock = native::decode_superblock(read(0, native::kBlock), "meta", 0);
  ASSERT_TRUE(superblock);
  std::uint64_t newest = 0, place = 0;
  for (std::uint32_t region = 0; region <= (*superblock).slots; ++region) {
    const std::uint64_t offset = native::region_offset(*superblock, region);
    const auto header =
        native::decode_manifest_header(read(offset, native::kManifestHeaderBytes), "meta", offset);
    if (!header || (*header).generation <= newest) continue;
    newest = (*header).generation;
    place = offset + native::kManifestHeaderBytes + 20;
  }
  ASSERT_GT(newest, 0u);
  const char changed = static_cast<char>(std::to_integer<int>(read(place, 1)[0]) ^ 1);
  file.seekp(static_cast<std::streamoff>(place));
  file.write(&changed, 1);
}

TEST(Continuity, AGenerationThatIsPassedOverIsNamed) {
  const TempDir directory;
  const auto config = config_of(two_parameters());
  for (const std::uint64_t step : {3u, 4u})
    ASSERT_TRUE(open_in(directory.path(), config, nullptr, train_to(step)).answer);
  damage_newest_manifest(directory.path(), 1);
  const std::string origin = open_in(directory.path(), config).origin;
  EXPECT_EQ(origin.find("resumed the store at step 3 ("), 0u) << origin;
  EXPECT_NE(origin.find("was passed over"), std::string::npos) << origin;
}

ByteVector bytes_of(std::size_t count, int value) {
  return ByteVector(count, static_cast<std::byte>(value));
}

TEST(Continuity, BlobsComeBackAfterResumeAndTransferAndAreReplacedByKey) {
  const TempDir directory;
  const auto config = config_of(two_parameters());
  const auto keep = [](RankEngine& rank, Communicator&) -> Result<> {
    EXPECT_EQ(rank.engine().blob("position"), nullptr);
    EBB_TRY(rank.engine().set_blob("position", bytes_of(8, 1)));
    EBB_TRY(rank.engine().set_blob("random", bytes_of(100, 2)));
    EBB_TRY(rank.engine().set_blob("position", bytes_of(16, 3)));
    return train_and_commit(rank, 1);
  };
  ASSERT_TRUE(open_in(directory.path(), config, nullptr, keep).answer);
  const auto check = [](RankEngine& rank, Communicator&) -> Result<> {
    EXPECT_NE(rank.engine().blob("position"), nullptr);
    EXPECT_NE(rank.engine().blob("random"), nullptr);
    if (const auto* blob = rank.engine().blob("position")) {
      EXPECT_EQ(*blob, bytes_of(16, 3));
    }
    if (const auto* blob = rank.engine().blob("random")) {
      EXPECT_EQ(*blob, bytes_of(100, 2));
    }
    return {};
  };
  EXPECT_EQ(open_in(directory.path(), config, nullptr, check).origin,
            "resumed the store at step 1");
  EXPECT_EQ(open_in(directory.path(), config_of(two_parameters(), 3), nullptr, check).origin,
            "transferred the store of 2 ranks at step 1");
}

TEST(Continuity, ABlobThatIsTooLargeIsRefusedAndTheOldOneStays) {
  const TempDir directory;
  const auto use = [](RankEngine& rank, Communicator&) -> Result<> {
    EBB_TRY(rank.engine().set_blob("position", bytes_of(8, 1)));
    const auto refused = rank.engine().set_blob("position", bytes_of(1u << 20, 2));
    EXPECT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::limit);
    EXPECT_NE(rank.engine().blob("position"), nullptr);
    if (const auto* blob = rank.engine().blob("position")) {
      EXPECT_EQ(*blob, bytes_of(8, 1));
    }
    EBB_TRY(rank.engine().set_blob("position", bytes_of(200u << 10, 4)));
    return rank.engine().set_blob("position", bytes_of(200u << 10, 5));  // in place of the other
  };
  const auto opened = open_in(directory.path(), config_of(two_parameters()), nullptr, use);
  EXPECT_TRUE(opened.answer) << opened.answer.error().message;
}

TEST(Continuity, ACheckpointsBytesComeBackAndWhatIsTooManyIsNamed) {
  Source source;
  source.catalog.values.push_back(
      {.key = "pixels", .value = Value::of_bytes(bytes_of(2u << 20, 1))});
  source.catalog.values.push_back({.key = "random", .value = Value::of_bytes(bytes_of(100, 2))});
  const auto check = [](RankEngine& rank, Communicator&) -> Result<> {
    EXPECT_EQ(rank.engine().blob("pixels"), nullptr);
    EXPECT_NE(rank.engine().blob("random"), nullptr);
    if (const auto* blob = rank.engine().blob("random")) {
      EXPECT_EQ(*blob, bytes_of(100, 2));
    }
    return train_and_commit(rank, 8);
  };
  const TempDir directory;
  const auto content = source.content();
  const auto opened = open_in(directory.path(), config_of(two_parameters()), &content, check);
  ASSERT_TRUE(opened.answer) << opened.answer.error().message;
  EXPECT_EQ(opened.origin,
            "loaded a dcp checkpoint of 1 ranks at step 7 (left behind, beyond the 262144 bytes of "
            "values that a store keeps: pixels of 2097152 bytes)");
}

}  // namespace
}  // namespace ebb::test
