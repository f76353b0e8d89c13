// Stores that an engine of an earlier commit wrote, one of each option that stored state depends
// on: they are resumed, and what is trained on has the bits that the earlier engine came to itself.
// tests/fixtures/ebb/README.md says which commit that was.
#include <gtest/gtest.h>

#include <sstream>

#include "ebb/formats/core/crc32c.h"
#include "ebb/libmuon/spec/presets.h"
#include "ebb/libswap/queue/io_queue.h"
#include "tests/libmuon/support/said_gradients.h"
#include "tests/libmuon/support/training.h"
#include "tests/libmuon/support/world.h"
#include "tests/support/program.h"

namespace ebb::test {
namespace {

using libmuon::Communicator;
using libmuon::EngineConfig;
using libmuon::MuonSpec;

constexpr std::uint64_t kLastStep = 6;
constexpr const char* kBlob = "data_position";  // of the trainer, kept with the state
constexpr std::uint32_t kMatrices = 0, kGram = 2, kHeads = 3;  // groups of Muon

libmuon::ModelSpec model_of_stores() {
  auto gram = libmuon::preset("gram"), heads = libmuon::preset("torch");
  EBB_CHECK(gram.has_value() && heads.has_value());
  gram->weight_decay = heads->weight_decay = 0;
  heads->split = {libmuon::Split::Kind::heads, {4}};
  libmuon::ModelSpec model;
  model.groups = {MuonSpec::keller(), libmuon::AdamSpec{.lr = 1e-2, .weight_decay = 0.01}, *gram,
                  *heads};
  model.params = {{"emb", {9, 16}, 1},  {"square", {24, 24}, 0},  {"wide", {12, 40}, 2},
                  {"norm", {21}, 1},    {"stack", {2, 8, 12}, 0}, {"heads", {16, 20}, 3},
                  {"long", {300, 2}, 2}};
  return model;
}

// What is trained, and of which parameters there are gradients.
struct Trains {
  EngineConfig config;
  Script script = always;
};
MuonSpec& group(Trains& trains, std::uint32_t number) {
  return std::get<MuonSpec>(trains.config.model.groups[number]);
}
void in_bf16(Trains& trains) {
  for (libmuon::ParamSpec& param : trains.config.model.params) param.weight = DType::bf16;
}
void in_halves(Trains& trains) {
  in_bf16(trains);
  trains.config.dtypes["master"] = DType::u16;
}
void with_moments(Trains& trains, libmuon::SecondMoment which) {
  group(trains, kMatrices).second_moment = which;
  group(trains, kHeads).second_moment = libmuon::SecondMoment::rows;
}
void updates(Trains& trains) {
  for (const std::uint32_t number : {kMatrices, kGram, kHeads})
    group(trains, number).out = libmuon::Out::update;
}
void decays(Trains& trains, libmuon::Decay decay) {
  for (const std::uint32_t number : {kMatrices, kHeads}) {
    group(trains, number).decay = decay;
    group(trains, number).weight_decay = 0.1;
  }
}
// Embeddings and two matrices have no gradient in some steps, each in its own.
Said in_some_steps(std::uint32_t param, std::uint64_t step) {
  if (param < 3 && step % 3 == param)
    return {.noise = {}, .none = libmuon::WithoutGradient::untouched};
  return always(param, step);
}
EngineConfig config_cut_as(Policy policy, const libmuon::ModelSpec& model) {
  return config_of(Training{.ranks = 2, .gradients = policy, .weights = policy, .slots = 2}, model);
}
void cut(Trains& trains, Policy policy) {
  trains.config.partition = config_cut_as(policy, trains.config.model).partition;
}
// The square by rows, the wide one by columns, over the one axis there is.
void cut_slices(Trains& trains) {
  const Layout::Spec spec{.policy = Policy::zero3, .align_elems = 4};
  const libmuon::AxisLayout slices{spec, {"data"}, {}}, others{spec, {"data"}, {"tensor"}};
  auto& partition = trains.config.partition;
  partition.axes = {{"tensor", 2}, {"data", 1}};
  partition.parts = {{"slices", slices, slices}, {"others", others, others}};
  for (libmuon::ParamSpec& param : trains.config.model.params) {
    param.partition = "others";
    for (const auto& [name, dimension] : {std::pair{"square", 0u}, {"wide", 1u}})
      if (param.name == name) {
        param.partition = "slices";
        param.cuts = {{"tensor", dimension}};
      }
  }
}
void on_shards(Trains& trains) { trains.config.partition.placement = libmuon::Placement::shard; }

struct Option {
  const char* name;
  void (*set)(Trains&);
};

void PrintTo(const Option& option, std::ostream* out) { *out << option.name; }

// What a store's bytes depend on.
const Option kStored[] = {
    {"plain", [](Trains&) {}},
    {"momentum_bf16",
     [](Trains& trains) { trains.config.dtypes["momentum_buffer"] = DType::bf16; }},
    {"momentum_int8", [](Trains& trains) { trains.config.dtypes["momentum_buffer"] = DType::i8; }},
    {"momentum_sum",
     [](Trains& trains) { group(trains, kMatrices).momentum = libmuon::Momentum::sum; }},
    {"weights_bf16", in_bf16},
    {"masters_in_halves", in_halves},
    {"moments_of_rows", [](Trains& trains) { with_moments(trains, libmuon::SecondMoment::rows); }},
    {"moments_of_the_longer",
     [](Trains& trains) { with_moments(trains, libmuon::SecondMoment::longer); }},
    {"updates", updates},
    {"decoupled_decay", [](Trains& trains) { decays(trains, libmuon::Decay::decoupled); }},
    {"l2_decay", [](Trains& trains) { decays(trains, libmuon::Decay::l2); }},
    {"products_bf16",
     [](Trains& trains) { group(trains, kMatrices).precision = libmuon::Precision::bf16; }},
    {"absent", [](Trains& trains) { trains.script = in_some_steps; }},
    {"streamed", [](Trains& trains) { trains.config.stream_above_bytes = 0; }},
    {"strips", [](Trains& trains) { trains.config.stream_above_bytes = 1000; }},
    {"replicated", [](Trains& trains) { cut(trains, Policy::replicated); }},
    {"zero12", [](Trains& trains) { cut(trains, Policy::zero12); }},
    {"boundary", [](Trains& trains) { cut(trains, Policy::zero12_boundary); }},
    {"rows", [](Trains& trains) { cut(trains, Policy::rows); }},
    {"uneven_rows", [](Trains& trains) { cut(trains, Policy::uneven_rows); }},
    {"layer_wise", [](Trains& trains) { cut(trains, Policy::layer_wise); }},
    {"slices", cut_slices},
    {"shards", on_shards},
    {"shards_momentum_bf16",
     [](Trains& trains) {
       on_shards(trains);
       trains.config.dtypes["momentum_buffer"] = DType::bf16;
     }},
    {"shards_in_halves",
     [](Trains& trains) {
       on_shards(trains);
       in_halves(trains);
     }},
    {"shards_with_moments",
     [](Trains& trains) {
       on_shards(trains);
       with_moments(trains, libmuon::SecondMoment::rows);
     }},
    {"shards_updates",
     [](Trains& trains) {
       on_shards(trains);
       updates(trains);
     }},
};

Trains trains_of(const Option& option) {
  Trains trains{.config = config_cut_as(Policy::zero3, model_of_stores())};
  option.set(trains);
  return trains;
}

ByteVector blob_of_all() { return {std::byte{7}, std::byte{0}, std::byte{255}}; }

// Opens what lies in `directory`, trains to `last`, commits; what the store says it is.
std::string train_to(const Trains& trains, std::uint64_t last,
                     const std::filesystem::path& directory) {
  World world(disk(), directory, 2);
  std::string origin;
  const auto answers = world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, trains.config));
    if (ranks.rank() == Rank{0}) origin = rank.engine().origin();
    if (rank.engine().step_count() == 0) EBB_TRY(rank.engine().set_blob(kBlob, blob_of_all()));
    for (std::uint64_t step = rank.engine().step_count() + 1; step <= last; ++step) {
      EBB_TRY(hand_in(rank, step, trains.script));
      EBB_TRY(rank.step());
    }
    EBB_TRY(rank.commit());
    const ByteVector* const blob = rank.engine().blob(kBlob);
    EXPECT_TRUE(blob != nullptr && *blob == blob_of_all());
    return {};
  });
  for (const auto& answer : answers) EXPECT_TRUE(answer) << answer.error().message;
  return origin;
}

// Of each stored tensor, "name state checksum".
std::string sums_of(const std::filesystem::path& directory) {
  std::ostringstream lines;
  for (const auto& [name, values] : tensors_of(directory))
    lines << name << ' ' << std::hex << formats::crc32c(0, std::as_bytes(std::span(values)))
          << '\n';
  return lines.str();
}

class EarlierStores : public testing::TestWithParam<Option> {
 protected:
  // What the earlier engine wrote with `option`, in a folder of its own.
  static void copy(const char* option, const TempDir& to) {
    std::filesystem::copy(stores() / option / "data", to.path(),
                          std::filesystem::copy_options::recursive);
  }
  // What it came to itself.
  static std::string after(const char* option) {
    return test_support::text_of_file(stores() / option / "after");
  }
  // The store of no option goes on with it, where the mathematics are the same.
  static void expect_plain_goes_on_with(const Option& option) {
    SCOPED_TRACE(option.name);
    const TempDir directory;
    copy("plain", directory);
    train_to(trains_of(option), kLastStep, directory.path());
    EXPECT_EQ(sums_of(directory.path()), after("plain"));
  }

 private:
  static std::filesystem::path stores() { return EBB_EARLIER_STORES; }
};

TEST_P(EarlierStores, IsResumedWithTheBitsItHadGoneOnTo) {
  const TempDir directory;
  copy(GetParam().name, directory);
  const std::string origin = train_to(trains_of(GetParam()), kLastStep, directory.path());
  EXPECT_EQ(origin.substr(0, origin.find(" (")), "resumed the store at step 3");
  EXPECT_EQ(sums_of(directory.path()), after(GetParam().name));
}

INSTANTIATE_TEST_SUITE_P(All, EarlierStores, testing::ValuesIn(kStored),
                         [](const auto& option) { return std::string(option.param.name); });

TEST_F(EarlierStores, OfNoOptionGoOnWithEachOfTheSameMathematics) {
  std::size_t same = 0;
  for (const Option& option : kStored) {
    if (after(option.name) != after("plain")) continue;
    expect_plain_goes_on_with(option);
    ++same;
  }
  EXPECT_EQ(same, 14u);
}

TEST_F(EarlierStores, OfNoOptionGoOnWithOptionsThatStoreNothing) {
  const Option options[] = {
      {"early", [](Trains& trains) { trains.config.early_gradient_bytes = 8192; }},
      {"small chunks", [](Trains& trains) { trains.config.chunk_bytes = 1; }},
      {"threads", [](Trains& trains) { trains.config.threads = 5; }},
      {"added", [](Trains& trains) { trains.config.partition.hand_in = libmuon::HandIn::added; }},
      {"on the disk",
       [](Trains& trains) {
         for (const char* state : {"momentum_buffer", "master", "exp_avg"})
           trains.config.tiers[state] = libswap::Tier::nvme;
       }},
      {"masters are the weights", [](Trains& trains) { trains.config.dtypes["master"] = {}; }},
  };
  for (const Option& option : options) expect_plain_goes_on_with(option);
}

}  // namespace
}  // namespace ebb::test
