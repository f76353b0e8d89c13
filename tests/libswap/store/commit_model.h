// The commit protocol of docs/formats/commit.md as a small model, searched exhaustively: every
// interleaving of the ranks, one failure anywhere, a power loss in every state with every subset of
// the writes that were not yet synced. model_test.cpp judges the protocol by it, commit_paths_test
// drives the real store along its paths.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace ebb::commit_model {

constexpr int kSlots = 2;
constexpr int kRegions = kSlots + 1;
constexpr int kGenerations = 3;

enum class Protocol {
  as_written,
  no_second_agreement,       // slots are free once the own invalidation is done
  no_invalidation,           // step 7 leaves the manifests
  free_after_own_prepare,    // g - 1 is free before the others are known to have g
  manifest_before_data_sync  // steps 2 and 3 exchanged
};

enum class Failure {
  none,
  data_write,      // no manifest is ever issued
  manifest_write,  // said to have failed; the void header is written
  all_meta,        // the manifest, and then its void header
  says_no,         // prepared in full, and then votes against
  data_sync,
  meta_sync
};
struct Fault {
  Failure kind = Failure::none;
  int rank = 0;
  int generation = 1;
  bool reached = false;  // whether what "failed" arrived in the cache nevertheless
};

enum Pc : std::uint8_t {
  write_tile,
  sync_data,
  write_manifest,
  sync_meta,
  vote,
  after_vote,
  write_void,
  sync_void,
  second_vote,
  after_second_vote,
  done,
  stopped
};

struct Write {
  std::uint8_t place = 0;  // slot or region
  std::uint8_t value = 0;  // step in a slot; generation in a region, 0 = void
};

// One rank with one tile. A tile's content is the step, which is also the generation's number.
struct RankState {
  Pc pc = write_tile;
  std::uint8_t generation = 1;
  std::array<std::uint8_t, kSlots> slots{};      // durable
  std::array<std::uint8_t, kRegions> regions{};  // durable
  std::vector<Write> data_cache, meta_cache;
  std::array<std::uint8_t, kGenerations + 1> slot_of{};  // what manifest g says
  std::uint8_t committed = 0, committed_slot = kSlots, committed_region = kRegions;
  std::uint8_t newest_slot = 0, region = 0;
  bool issued = false;
  std::uint8_t my_vote = 0, verdict = 0;
  // Operations that change the disk, those that failed among them; follows from the rest.
  std::uint64_t operations = 0;
};

struct State {
  std::vector<RankState> ranks;
  std::uint8_t told = 0;  // the newest generation any rank was told is committed

  std::string key() const {
    std::string key(1, static_cast<char>(told));
    const auto add = [&](std::uint8_t byte) { key += static_cast<char>(byte); };
    for (const RankState& r : ranks) {
      for (const std::uint8_t byte :
           {std::uint8_t{r.pc}, r.generation, r.committed, r.committed_slot, r.committed_region,
            r.newest_slot, r.region, static_cast<std::uint8_t>(r.issued), r.my_vote, r.verdict})
        add(byte);
      for (const std::uint8_t byte : r.slots) add(byte);
      for (const std::uint8_t byte : r.regions) add(byte);
      for (const std::uint8_t byte : r.slot_of) add(byte);
      for (const auto* cache : {&r.data_cache, &r.meta_cache}) {
        add(static_cast<std::uint8_t>(cache->size()));
        for (const Write& write : *cache) add(write.place), add(write.value);
      }
    }
    return key;
  }
};

struct Image {
  std::array<std::uint8_t, kSlots> slots{};
  std::array<std::uint8_t, kRegions> regions{};
};

class Model {
 public:
  Model(int ranks, Protocol protocol, Fault fault) : protocol_(protocol), fault_(fault) {
    start_.ranks.resize(static_cast<std::size_t>(ranks));
  }

  void search() {
    std::vector<State> open = {start_};
    seen_.insert(start_.key());
    while (!open.empty()) {
      const State state = std::move(open.back());
      open.pop_back();
      crash(state);
      for (std::size_t rank = 0; rank < state.ranks.size(); ++rank) {
        State next = state;
        if (advance(next, rank) && seen_.insert(next.key()).second) open.push_back(std::move(next));
      }
    }
  }
  std::uint64_t images = 0;
  std::uint64_t violations = 0;
  bool finished = false;  // some path went through all generations
  // Which of the faulty rank's operations fail, by their numbers from 0.
  std::set<std::uint64_t> failing;
  // Called with each state and the generations that recovery finds in what it may leave; 0: none.
  std::function<void(const State&, const std::set<std::uint8_t>&)> visit = nullptr;

 private:
  bool says(const RankState& r, std::size_t rank, Failure kind) const {
    return fault_.kind == kind && fault_.rank == static_cast<int>(rank) &&
           fault_.generation == r.generation;
  }
  // Of the operation that is about to be counted.
  bool fails(const RankState& r, std::size_t rank, Failure kind) {
    if (!says(r, rank, kind)) return false;
    failing.insert(r.operations);
    return true;
  }

  // I1 for k = 2, as SlotTable does it.
  static std::uint8_t free_slot(const RankState& r) {
    return r.newest_slot != r.committed_slot ? r.newest_slot
                                             : static_cast<std::uint8_t>(1 - r.newest_slot);
  }
  static std::uint8_t free_region(const RankState& r) { return r.committed_region == 0 ? 1 : 0; }

  static void flush_data(RankState& r) {
    for (const Write& write : r.data_cache) r.slots[write.place] = write.value;
    r.data_cache.clear();
  }
  static void flush_meta(RankState& r) {
    for (const Write& write : r.meta_cache) r.regions[write.place] = write.value;
    r.meta_cache.clear();
  }
  static void vote_with(RankState& r, std::uint8_t value) {
    r.my_vote = value;
    r.pc = vote;
  }
  static void next_generation(RankState& r) {
    r.issued = false;
    r.pc = r.generation == kGenerations ? done : write_tile;
    if (r.pc != done) ++r.generation;
  }
  static void commit(RankState& r) {
    r.committed = r.generation;
    r.committed_slot = r.slot_of[r.generation];
    r.committed_region = r.region;
  }
  // The last to arrive releases all: each goes on by itself, with the smallest vote.
  static void release(State& state, Pc waiting, Pc then) {
    std::uint8_t lowest = 255;
    for (const RankState& r : state.ranks) {
      if (r.pc != waiting) return;
      lowest = std::min(lowest, r.my_vote);
    }
    for (RankState& r : state.ranks) {
      r.verdict = lowest;
      r.pc = then;
    }
  }

  // One step of one rank; false when it has none.
  bool advance(State& state, std::size_t rank) {
    RankState& r = state.ranks[rank];
    switch (r.pc) {
      case write_tile:
        return do_write_tile(r, rank);
      case sync_data:
        return do_sync_data(r, rank);
      case write_manifest:
        return do_write_manifest(r, rank);
      case sync_meta:
        return do_sync_meta(r, rank);
      case after_vote:
        return do_after_vote(state, r);
      case write_void:
        return do_write_void(r, rank);
      case sync_void:
        ++r.operations;
        flush_meta(r);
        r.my_vote = 1;
        r.pc = second_vote;
        return true;
      case after_second_vote:
        if (r.verdict == 1)
          next_generation(r);
        else
          r.pc = stopped;
        return true;
      case vote:
        return arrive(state, vote, after_vote);
      case second_vote:
        if (protocol_ == Protocol::no_second_agreement) {
          next_generation(r);
          return true;
        }
        return arrive(state, second_vote, after_second_vote);
      case done:
        finished = true;
        return false;
      case stopped:
        return false;
    }
    return false;
  }
  static bool arrive(State& state, Pc waiting, Pc then) {
    const bool all =
        std::ranges::all_of(state.ranks, [&](const RankState& r) { return r.pc == waiting; });
    if (all) release(state, waiting, then);
    return all;
  }

  bool do_write_tile(RankState& r, std::size_t rank) {
    const bool failed = fails(r, rank, Failure::data_write);
    const std::uint8_t slot = free_slot(r);
    r.slot_of[r.generation] = slot;
    if (!failed || fault_.reached) r.data_cache.push_back({slot, r.generation});
    if (!failed) r.newest_slot = slot;
    r.pc = protocol_ == Protocol::manifest_before_data_sync ? write_manifest : sync_data;
    ++r.operations;
    if (failed) vote_with(r, 1);
    return true;
  }
  bool do_sync_data(RankState& r, std::size_t rank) {
    const bool failed = fails(r, rank, Failure::data_sync);
    ++r.operations;
    if (failed) {
      vote_with(r, 0);
      return true;
    }
    flush_data(r);
    r.pc = protocol_ == Protocol::manifest_before_data_sync ? sync_meta : write_manifest;
    return true;
  }
  bool do_write_manifest(RankState& r, std::size_t rank) {
    const bool failed =
        fails(r, rank, Failure::manifest_write) || fails(r, rank, Failure::all_meta);
    r.region = free_region(r);
    r.issued = true;
    ++r.operations;
    if (!failed || fault_.reached) r.meta_cache.push_back({r.region, r.generation});
    r.pc = protocol_ == Protocol::manifest_before_data_sync ? sync_data : sync_meta;
    if (failed) vote_with(r, 1);
    return true;
  }
  bool do_sync_meta(RankState& r, std::size_t rank) {
    const bool failed = fails(r, rank, Failure::meta_sync);
    ++r.operations;
    if (failed) {
      vote_with(r, 0);
      return true;
    }
    flush_meta(r);
    if (protocol_ == Protocol::free_after_own_prepare) {
      commit(r);
      next_generation(r);
      return true;
    }
    vote_with(r, says(r, rank, Failure::says_no) ? 1 : 2);
    return true;
  }
  bool do_after_vote(State& state, RankState& r) {
    if (r.verdict == 2) {
      commit(r);
      state.told = std::max(state.told, r.generation);
      next_generation(r);
    } else if (r.verdict == 0) {
      r.pc = stopped;
    } else if (r.issued && protocol_ != Protocol::no_invalidation) {
      r.pc = write_void;
    } else {
      r.my_vote = 1;
      r.pc = second_vote;
    }
    return true;
  }
  bool do_write_void(RankState& r, std::size_t rank) {
    const bool failed = fails(r, rank, Failure::all_meta);
    ++r.operations;
    if (failed) {
      r.my_vote = 2;
      r.pc = second_vote;
      return true;
    }
    r.meta_cache.push_back({r.region, 0});
    r.pc = sync_void;
    return true;
  }

  // Everything one rank's disk may hold after a power loss now.
  static std::vector<Image> images_of(const RankState& r) {
    std::vector<Image> images;
    const std::size_t data = r.data_cache.size(), meta = r.meta_cache.size();
    for (std::size_t subset = 0; subset < (std::size_t{1} << (data + meta)); ++subset) {
      Image image{r.slots, r.regions};
      for (std::size_t i = 0; i < data; ++i)
        if ((subset >> i) & 1) image.slots[r.data_cache[i].place] = r.data_cache[i].value;
      for (std::size_t i = 0; i < meta; ++i)
        if ((subset >> (data + i)) & 1)
          image.regions[r.meta_cache[i].place] = r.meta_cache[i].value;
      images.push_back(image);
    }
    return images;
  }

  void crash(const State& state) {
    std::vector<std::vector<Image>> choices;
    for (const RankState& r : state.ranks) choices.push_back(images_of(r));
    std::vector<const Image*> chosen;
    std::set<std::uint8_t> found;
    combine(state, choices, chosen, found);
    if (visit) visit(state, found);
  }
  void combine(const State& state, const std::vector<std::vector<Image>>& choices,
               std::vector<const Image*>& chosen, std::set<std::uint8_t>& found) {
    if (chosen.size() == choices.size()) {
      ++images;
      const auto [generation, whole] = recover(state, chosen);
      found.insert(generation);
      if (!whole || generation < state.told) ++violations;
      return;
    }
    for (const Image& image : choices[chosen.size()]) {
      chosen.push_back(&image);
      combine(state, choices, chosen, found);
      chosen.pop_back();
    }
  }
  // The newest common generation, and whether every rank holds its content.
  static std::pair<std::uint8_t, bool> recover(const State& state,
                                               const std::vector<const Image*>& images) {
    for (std::uint8_t g = kGenerations; g >= 1; --g) {
      const bool common = std::ranges::all_of(images, [&](const Image* image) {
        return std::ranges::find(image->regions, g) != image->regions.end();
      });
      if (!common) continue;
      for (std::size_t rank = 0; rank < images.size(); ++rank)
        if (images[rank]->slots[state.ranks[rank].slot_of[g]] != g) return {g, false};
      return {g, true};
    }
    return {0, true};
  }

  const Protocol protocol_;
  const Fault fault_;
  State start_;
  std::unordered_set<std::string> seen_;
};

// None, and each at each rank and generation.
inline std::vector<Fault> all_faults(int ranks) {
  std::vector<Fault> all = {{}};
  for (const Failure kind : {Failure::data_write, Failure::manifest_write, Failure::all_meta,
                             Failure::says_no, Failure::data_sync, Failure::meta_sync})
    for (int rank = 0; rank < ranks; ++rank)
      for (int generation = 1; generation <= kGenerations; ++generation)
        for (const bool reached : {false, true}) all.push_back({kind, rank, generation, reached});
  return all;
}

}  // namespace ebb::commit_model
