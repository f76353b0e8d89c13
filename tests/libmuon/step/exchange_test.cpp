// Ranges of parameters from every layout to every layout: what arrives, what is sent, and that no
// round is more than a rank can take. ReshardPlan, which knows boxes only, is the witness.
#include "ebb/libmuon/step/exchange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <thread>
#include <utility>

#include "ebb/formats/layout/reshard_plan.h"
#include "ebb/libswap/testing/late_device.h"
#include "tests/formats/layout/oracle.h"
#include "tests/libmuon/support/trainer_buffer.h"
#include "tests/libmuon/support/world.h"

namespace ebb::libmuon {
namespace {

using formats::oracle::kEveryPolicy;
using formats::oracle::Random;
const std::vector<Shape> kShapes = {{37, 24}, {24}, {96, 8}, {1, 5}, {}, {13, 31}};

Layout layout_of(Policy policy, const formats::Mesh& mesh, Random& random) {
  Layout::Spec spec{.policy = policy, .mesh = mesh, .align_elems = 4};
  formats::oracle::add_lists(random, kShapes, spec);
  auto made = Layout::make(std::move(spec), kShapes);
  EBB_CHECK(made.has_value());
  return std::move(*made);
}

float value_of(std::uint32_t param, std::uint64_t element) {
  return static_cast<float>(param * 10000 + element + 1);
}

// Of one rank: its parts of all parameters, as a trainer holds them.
class Buffers {
 public:
  Buffers(const ModelLayout& layout, Rank rank, libswap::Device* device)
      : layout_(layout), rank_(rank) {
    for (std::uint32_t param = 0; param < kShapes.size(); ++param)
      values_.emplace_back(device, layout.held(param, rank).count);
  }
  libswap::Buffer at(const Transit& transit) {
    const FlatRange held = layout_.held(transit.param, rank_);
    return values_[transit.param].buffer().sub(transit.range.first - held.first,
                                               transit.range.count);
  }
  // Behind the event.
  libswap::Event fill() {
    std::vector<libswap::Event> sent;
    for (std::uint32_t param = 0; param < values_.size(); ++param) {
      const std::span<float> values = values_[param].values();
      for (std::uint64_t i = 0; i < values.size(); ++i)
        values[i] = value_of(param, layout_.held(param, rank_).first + i);
      sent.push_back(values_[param].send());
    }
    return libswap::all_of(sent);
  }
  void expect(const std::vector<std::vector<bool>>& travelled, const std::string& what) {
    for (std::uint32_t param = 0; param < values_.size(); ++param) {
      const std::span<const float> values = values_[param].fetch();
      for (std::uint64_t i = 0; i < values.size(); ++i) {
        const std::uint64_t element = layout_.held(param, rank_).first + i;
        ASSERT_EQ(values[i], travelled[param][element] ? value_of(param, element) : 0.0f)
            << what << ", parameter " << param << " at " << element;
      }
    }
  }

 private:
  const ModelLayout& layout_;
  Rank rank_;
  std::vector<test::TrainerBuffer> values_;
};

// The most that passed in one call.
class Measured : public test::RanksBelow {
 public:
  using RanksBelow::RanksBelow;
  std::uint64_t most = 0, sent = 0;
  Result<libswap::Event> begin_exchange(std::span<const SendBuffer> sends,
                                        std::span<const ReceiveBuffer> receives,
                                        std::span<const libswap::Event> after) override {
    const auto bytes = [](const auto& buffers) {
      std::uint64_t total = 0;
      for (const auto& buffer : buffers) total += buffer.data.size();
      return total;
    };
    most = std::max({most, bytes(sends), bytes(receives)});
    sent += bytes(sends);
    return RanksBelow::begin_exchange(sends, receives, after);
  }
};

void run_ranks(std::uint32_t world, const std::function<void(Communicator&)>& body) {
  const auto ranks = make_thread_ranks(world);
  std::vector<std::thread> threads;
  for (const auto& rank : ranks) threads.emplace_back([&] { body(*rank); });
  for (std::thread& thread : threads) thread.join();
}

std::vector<Transit> some_ranges(Random& random) {
  std::vector<Transit> transits;
  for (std::uint32_t param = 0; param < kShapes.size(); ++param) {
    const std::uint64_t elems = formats::volume(kShapes[param]);
    const std::uint64_t first = random() % 3 == 0 ? 0 : random() % elems;
    const std::uint64_t count = random() % 3 == 0 ? elems - first : random() % (elems - first + 1);
    if (count > 0) transits.push_back({param, {first, count}});
  }
  return transits;
}

void expect_to_arrive(const ModelLayout& from, const ModelLayout& to,
                      std::span<const Transit> transits, std::uint64_t most_bytes,
                      const std::string& what) {
  std::vector<std::vector<bool>> travelled;
  for (const Shape& shape : kShapes) travelled.emplace_back(formats::volume(shape));
  for (const Transit& transit : transits)
    for (std::uint64_t i = 0; i < transit.range.count; ++i)
      travelled[transit.param][transit.range.first + i] = true;
  run_ranks(from.layout(0).spec().mesh.world(), [&](Communicator& below) {
    Measured ranks(below);
    Wire wire(ranks, {});
    const Exchange exchange(from, to, ranks.rank());
    Buffers source(from, ranks.rank(), nullptr), target(to, ranks.rank(), nullptr);
    source.fill();
    std::uint64_t said = 0;
    for (const auto& round : exchange.rounds(transits, most_bytes)) {
      const auto sent = exchange.run(wire, round,
                                     {[&](const Transit& part) { return source.at(part); },
                                      [&](const Transit& part) { return target.at(part); }});
      ASSERT_TRUE(sent) << sent.error().message;
      said += *sent;
    }
    target.expect(travelled, what);
    EXPECT_LE(ranks.most, most_bytes) << what;
    EXPECT_EQ(said, ranks.sent) << what;
    EXPECT_EQ(exchange.sent_bytes(transits), ranks.sent) << what;
  });
}

TEST(Exchange, BringsRangesFromEveryLayoutToEveryOtherInRoundsThatFit) {
  Random random(3);
  for (const formats::Mesh& mesh : {formats::Mesh{1, 1}, {3, 1}, {2, 2}, {1, 4}, {8, 1}})
    for (const Policy a : kEveryPolicy)
      for (const Policy b : kEveryPolicy) {
        const formats::Mesh whole{mesh.world(), 1};
        const ModelLayout from(layout_of(a, random() % 2 == 0 ? mesh : whole, random));
        const ModelLayout to(layout_of(b, random() % 2 == 0 ? mesh : whole, random));
        for (const std::uint64_t most : {64u, 1000u, 1u << 28})
          expect_to_arrive(from, to, some_ranges(random), most,
                           compose("{} to {} on {} x {}", name_of(a), name_of(b), mesh.shard_world,
                                   mesh.replicas));
      }
}

// Ranks that take no device's memory: what lies there passes through as much of the host's as is
// said.
TEST(Exchange, OfADevicePassesThroughTheHostsMemory) {
  class OnTheHost : public Measured {
   public:
    using Measured::Measured;
    std::uint64_t bounced = 0;
    bool takes(const libswap::Device& /*device*/) const override { return false; }
    Result<libswap::Event> begin_exchange(std::span<const SendBuffer> sends,
                                          std::span<const ReceiveBuffer> receives,
                                          std::span<const libswap::Event> after) override {
      std::map<const std::byte*, std::uint64_t> once;
      std::uint64_t bytes = 0;
      for (const SendBuffer& send : sends) {
        EXPECT_EQ(send.data.device, nullptr);
        once[send.data.data] = send.data.size();
      }
      for (const auto& [data, size] : once) bytes += size;
      for (const ReceiveBuffer& receive : receives) {
        EXPECT_EQ(receive.data.device, nullptr);
        bytes += receive.data.size();
      }
      bounced = std::max(bounced, bytes);
      return Measured::begin_exchange(sends, receives, after);
    }
  };
  Random random(7);
  libswap::LateDevice device(7, 20);
  const auto expect_through = [&](Policy a, Policy b, std::uint64_t most, const Travels& travels) {
    const ModelLayout from(layout_of(a, {2, 2}, random)), to(layout_of(b, {4, 1}, random));
    std::vector<Transit> all;
    std::vector<std::vector<bool>> travelled;
    for (std::uint32_t param = 0; param < kShapes.size(); ++param) {
      all.push_back({param, {0, formats::volume(kShapes[param])}});
      travelled.emplace_back(formats::volume(kShapes[param]), !travels || travels(param));
    }
    run_ranks(4, [&](Communicator& below) {
      OnTheHost ranks(below);
      const Exchange exchange(from, to, ranks.rank(), most);
      const auto any = [](const Transit&) { return true; };
      const std::uint64_t bytes = exchange.bounce_bytes(all, {any, any});
      auto bounce = libswap::allocate(nullptr, bytes);
      ASSERT_TRUE(bounce);
      Wire wire(ranks, *bounce);
      Buffers source(from, ranks.rank(), &device), target(to, ranks.rank(), &device);
      source.fill().wait();
      const auto sent = exchange.run(wire, all,
                                     {[&](const Transit& part) { return source.at(part); },
                                      [&](const Transit& part) { return target.at(part); }},
                                     travels);
      ASSERT_TRUE(sent) << sent.error().message;
      const std::string what = compose("{} to {}, rounds of {}", name_of(a), name_of(b), most);
      target.expect(travelled, what);
      if (travels)
        EXPECT_LE(ranks.bounced, bytes) << what;
      else
        EXPECT_EQ(ranks.bounced, bytes) << what;
    });
  };
  for (const Policy a : kEveryPolicy)
    for (const Policy b : kEveryPolicy)
      for (const std::uint64_t most : {std::uint64_t{500}, std::uint64_t{3000}, kMostRoundBytes}) {
        expect_through(a, b, most, {});
        const std::uint64_t some = random();
        expect_through(a, b, most,
                       [some](std::uint32_t param) { return (some >> param & 1) != 0; });
      }
}

// Parameters of kShapes, some of them at places of the first axis; matrices are Muon's.
StatePlan plan_with_places(Policy gradients, Policy weights, Random& random) {
  ModelSpec model;
  model.groups = {MuonSpec::keller(), AdamSpec{}};
  PartitionSpec partition{.gradients = {.policy = gradients}, .weights = {.policy = weights}};
  partition.axes = {{"expert", 2}, {"data", 2}, {"replica", 2}};
  const bool copies = random() % 2 == 0;
  const auto side = [&](Policy policy) {
    AxisLayout cut{{.policy = policy, .align_elems = 4}, {"data"}, {"replica"}};
    if (!copies) cut.shards.insert(cut.shards.begin(), std::exchange(cut.copies, {}).front());
    return cut;
  };
  AxisPartition experts{"experts", side(gradients), side(weights)};
  for (std::uint32_t i = 0; i < kShapes.size(); ++i) {
    ParamSpec& param = model.params.emplace_back(
        ParamSpec{std::to_string(i), kShapes[i], kShapes[i].size() == 2 ? 0u : 1u});
    const bool expert = random() % 3 != 0;
    if (expert)
      param.partition = "experts",
      param.at = {{"expert", static_cast<std::uint32_t>(random() % 2)}};
    const std::size_t shards = expert ? (copies ? 2 : 4) : 8;
    const auto own = [&](Layout::Spec& spec) {
      Layout::Spec one{.policy = spec.policy, .mesh = {static_cast<std::uint32_t>(shards), 1}};
      formats::oracle::add_lists(random, {kShapes[i]}, one);
      spec.owners.insert(spec.owners.end(), one.owners.begin(), one.owners.end());
      spec.rows.insert(spec.rows.end(), one.rows.begin(), one.rows.end());
    };
    own(expert ? experts.gradients.layout : partition.gradients);
    own(expert ? experts.weights.layout : partition.weights);
  }
  partition.parts = {std::move(experts)};
  auto plan = StatePlan::make(model, partition, 4096, Rank{0}, 1u << 28);
  EBB_CHECK(plan.has_value());
  return std::move(*plan);
}

TEST(Exchange, BringsParametersOfDifferentRanksInTheSameRounds) {
  Random random(7);
  for (const Policy gradients : kEveryPolicy)
    for (const Policy weights : kEveryPolicy) {
      const StatePlan plan = plan_with_places(gradients, weights, random);
      std::vector<Transit> matrices, others;
      for (const Transit& transit : some_ranges(random))
        (plan.muon(transit.param) ? matrices : others).push_back(transit);
      const std::string what = compose("{}, {}", name_of(gradients), name_of(weights));
      for (const std::uint64_t most : {64u, 1000u, 1u << 28}) {
        expect_to_arrive(plan.gradients(), plan.matrices(), matrices, most, "to owners, " + what);
        expect_to_arrive(plan.matrices(), plan.weights(), matrices, most, "from owners, " + what);
        expect_to_arrive(plan.gradients(), plan.shards(), others, most, "to shards, " + what);
        expect_to_arrive(plan.shards(), plan.weights(), others, most, "from shards, " + what);
      }
    }
}

TEST(Exchange, SendsWhatThePlanOfBoxesSends) {
  Random random(5);
  std::vector<Transit> all;
  for (std::uint32_t param = 0; param < kShapes.size(); ++param)
    all.push_back({param, {0, formats::volume(kShapes[param])}});
  for (const formats::Mesh& mesh : {formats::Mesh{3, 1}, {2, 2}, {8, 1}})
    for (const Policy a : kEveryPolicy)
      for (const Policy b : kEveryPolicy) {
        const Layout from = layout_of(a, mesh, random), to = layout_of(b, mesh, random);
        const ModelLayout all_from(from), all_to(to);
        for (std::uint32_t rank = 0; rank < mesh.world(); ++rank) {
          const auto plan = formats::ReshardPlan::between(from, to, Rank{rank});
          ASSERT_TRUE(plan);
          EXPECT_EQ(Exchange(all_from, all_to, Rank{rank}).sent_bytes(all), 4 * sent_elems(*plan))
              << name_of(a) << " to " << name_of(b);
        }
      }
}

// Where every rank holds an even part, a round is as full as the limit lets it be.
TEST(Exchange, NeedsFewRoundsWhereShardsAreEven) {
  const std::vector<Shape> shapes(20, Shape{64, 16});
  Layout::Spec owners{.policy = Policy::layer_wise, .mesh = {4, 1}};
  for (std::uint32_t i = 0; i < 20; ++i) owners.owners.push_back(i % 4);
  const auto rows = Layout::make({.policy = Policy::zero3, .mesh = {4, 1}}, shapes);
  const auto whole = Layout::make(owners, shapes);
  ASSERT_TRUE(rows && whole);
  std::vector<Transit> all;
  for (std::uint32_t param = 0; param < 20; ++param) all.push_back({param, {0, 1024}});
  // An owner gets 5 matrices of 4 KiB, a rank gives a quarter of 20.
  const ModelLayout from(*rows), to(*whole);
  EXPECT_EQ(Exchange(from, to, Rank{0}).rounds(all, 20480).size(), 1u);
  EXPECT_EQ(Exchange(from, to, Rank{0}).rounds(all, 10240).size(), 3u);
}

// What travels between some ranks takes no room in a round from what does between others.
TEST(Exchange, NeedsNoMoreRoundsForPlacesThatShareNoRank) {
  for (const std::uint32_t places : {1u, 8u}) {
    ModelSpec model;
    model.groups = {MuonSpec::keller()};
    for (std::uint32_t i = 0; i < 20 * places; ++i)
      model.params.push_back(
          {"e" + std::to_string(i), {64, 16}, 0, "experts", {{"expert", i % places}}});
    for (std::uint32_t i = 0; i < 4 * places; ++i)
      model.params.push_back({"d" + std::to_string(i), {64, 16}, 0});
    const AxisLayout cut{{.policy = Policy::zero3}, {"data"}};
    PartitionSpec partition{.gradients = cut.layout, .weights = cut.layout};
    partition.axes = {{"expert", places}, {"data", 4}};
    partition.parts = {{"experts", cut, cut}};
    const auto plan = StatePlan::make(model, partition, 4096, Rank{0}, 1u << 28);
    ASSERT_TRUE(plan) << plan.error().message;
    std::vector<Transit> all;
    for (std::uint32_t param = 0; param < model.params.size(); ++param)
      all.push_back({param, {0, 1024}});
    // A rank gives a quarter of 20 matrices of its experts, and of the others one; it owns 6.
    const Exchange exchange((*plan).gradients(), (*plan).matrices(), Rank{0});
    EXPECT_EQ(exchange.rounds(all, 6 * 4096).size(), 1u) << places;
    EXPECT_EQ(exchange.rounds(all, 6 * 4096 - 4).size(), 2u) << places;
  }
}

}  // namespace
}  // namespace ebb::libmuon
