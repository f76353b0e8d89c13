// ebb-c-sequences SEED ENGINES CALLS [no-forks] [memory|all-memory]: random sequences of calls of
// ebb.h over so many opened engines, with so many calls each: right ones, and ones with NULLs,
// wrong sizes, closed and foreign handles, from two threads and in forked children; with `memory`,
// allocations of the calling thread fail, with `all-memory` anybody's. What it
// asks: that every call answers a status, with a sentence where it is an error, and returns; the
// rest is the sanitizer's to say. Prints what was done; exits with 1 where an answer was none.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <random>
#include <span>
#include <string_view>
#include <thread>

#include "tests/bindings/c/failing_new.h"
#include "tests/bindings/c/small_model.h"
#include "tests/bindings/c/small_swap.h"
#include "tests/support/fork_and_wait.h"

namespace ebb::c {
namespace {

constexpr unsigned kMostSeconds = 20;  // of one engine's life: an alarm ends the program

struct Counts {
  std::atomic<std::uint64_t> calls = 0, done = 0, no_memory = 0, wrong = 0;
  std::uint64_t forks = 0, threads = 0, opened = 0, refused = 0;
};
Counts counts;
const bool verbose = std::getenv("EBB_VERBOSE") != nullptr;

// An answer is a known status, and an error says something.
ebb_status noted(ebb_status status, const char* call) {
  ++counts.calls;
  if (status == EBB_DONE) ++counts.done;
  if (status == EBB_NO_MEMORY) ++counts.no_memory;
  const bool known = status == EBB_DONE || (status <= EBB_USAGE && status >= EBB_CANCELLED);
  const ebb_error& error = *ebb_last_error();
  if (known && error.code == status && (status == EBB_DONE) == (*error.message == '\0'))
    return status;
  ++counts.wrong;
  std::printf("%s answers %d, and says %d: \"%s\"\n", call, status, error.code, error.message);
  return status;
}

// What a life's calls are made with; every thread has draws of its own.
struct Life {
  SmallModel& model;
  ebb_ranks* ranks = nullptr;
  ebb_engine* engine = nullptr;
  ebb_swap* swap = nullptr;
  std::string directory;
};

class Caller {
 public:
  Caller(const Life& life, std::uint64_t seed) : life_(life), draw_(seed) {}

  void call_any() {
    const auto all = one_in(4)   ? others()
                     : one_in(4) ? models()
                     : one_in(3) ? states()
                     : one_in(4) ? swaps()
                                 : steps();
    const auto& call = all[draw_() % all.size()];
    const bool fails = failing() && one_in(6);
    if (fails) fail_allocation(1 + draw_() % (one_in(2) ? 20 : 400), *failing());
    const ebb_status status = noted(call.made(*this), call.name);
    if (verbose) std::printf("  %s: %d%s\n", call.name, status, fails ? ", allocation fails" : "");
    if (fails) fail_allocation(0, Of::this_thread);
  }
  // Whose allocations fail; nullopt: nobody's.
  static std::optional<Of>& failing() {
    static std::optional<Of> whose;
    return whose;
  }

 private:
  struct Named {
    const char* name;
    ebb_status (*made)(Caller&);
  };
  // Of steps and what they need; of state; of the rest; of models and devices; of a swap space and
  // of what is saved.
  static std::span<const Named> steps();
  static std::span<const Named> states();
  static std::span<const Named> others();
  static std::span<const Named> models();
  static std::span<const Named> swaps();

  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(draw_() % n); }
  bool one_in(std::uint32_t n) { return below(n) == 0; }
  // The engine, mostly; else what is none.
  ebb_engine* engine() {
    if (!one_in(25)) return life_.engine;
    void* const none[] = {nullptr, life_.ranks, this, reinterpret_cast<void*>(draw_() % 99)};
    return static_cast<ebb_engine*>(none[draw_() % 4]);
  }
  ebb_swap* swap() { return one_in(25) ? reinterpret_cast<ebb_swap*>(engine()) : life_.swap; }
  ebb_ranks* ranks() { return one_in(10) ? reinterpret_cast<ebb_ranks*>(engine()) : life_.ranks; }
  // A generation is pinned, written where something is already, mostly, and let go.
  ebb_status pin() {
    ebb_pinned* pinned = nullptr;
    const ebb_status status = ebb_engine_pin(engine(), one_in(9) ? nullptr : &pinned);
    if (status != EBB_DONE) return status;
    noted(ebb_pinned_write(pinned, text({"dcp", "safetensors", "none", ""}), below(3),
                           one_in(3) ? life_.directory.c_str() : text({"/proc/none", ""}), 1,
                           nullptr),
          "ebb_pinned_write");
    return noted(ebb_pinned_close(pinned), "ebb_pinned_close");
  }
  ebb_status text_of(ebb_status (*call)(ebb_engine*, char**)) {
    char* json = nullptr;
    const ebb_status status = call(engine(), one_in(9) ? nullptr : &json);
    ebb_free(json);
    return status;
  }
  const char* text(std::initializer_list<const char*> all) {
    if (one_in(12)) return nullptr;
    return all.begin()[draw_() % all.size()];
  }
  const char* const* states_named() {
    for (const char*& state : named_)
      state = text({"master", "momentum_buffer", "exp_avg", "exp_avg_sq", "none", ""});
    return one_in(25) ? nullptr : named_;
  }
  std::uint32_t count() { return one_in(8) ? below(7) : SmallModel::kParams; }
  const std::uint32_t* params() {
    for (std::uint32_t i = 0; i < 8; ++i)
      params_[i] = one_in(30) ? static_cast<std::uint32_t>(draw_()) : i % SmallModel::kParams;
    return one_in(25) ? nullptr : params_;
  }
  // Allocates nothing: it is not this program whose allocations are to fail.
  const ebb_buffer* buffers(std::vector<std::vector<float>>& of) {
    for (std::uint32_t i = 0; i < std::size(buffers_); ++i) {
      auto& elements = of[i % SmallModel::kParams];
      buffers_[i] = {elements.data(), elements.size(), EBB_F32, -1, nullptr};
    }
    if (one_in(10)) {
      ebb_buffer& one = buffers_[below(SmallModel::kParams)];
      const std::uint32_t what = below(5);
      if (what == 0) one.data = nullptr;
      if (what == 1) one.elems = below(100);
      if (what == 2) one.dtype = static_cast<std::int32_t>(draw_());
      if (what == 3) one.device = static_cast<std::int32_t>(below(3));
      if (what == 4) one.stream = this;
    }
    return one_in(25) ? nullptr : buffers_;
  }
  template <typename Struct>
  Struct sized() {
    Struct made = {};
    made.size = one_in(12) ? below(2 * sizeof(Struct)) : sizeof(Struct);
    if (made.size > sizeof(Struct)) made.size = sizeof(Struct);  // what is behind is not ours
    return made;
  }

  Life life_;
  std::mt19937_64 draw_;
  std::uint32_t params_[8] = {};
  const char* named_[2] = {};
  ebb_buffer buffers_[16] = {};  // of two states
  std::uint64_t leases_[4] = {};
  std::uint64_t swap_step_ = 0;
  // Of its own: another thread's may be borrowed by a step.
  std::vector<std::vector<float>> state_ = SmallModel().weights;
};

std::span<const Caller::Named> Caller::steps() {
  static constexpr Named kAll[] = {
      {"ebb_engine_gradients",
       [](Caller& c) {
         std::uint8_t kinds[8];
         for (auto& kind : kinds)
           kind = c.one_in(6) ? static_cast<std::uint8_t>(c.below(6)) : std::uint8_t{EBB_GRADIENT};
         return ebb_engine_gradients(c.engine(), c.params(), c.buffers(c.life_.model.gradients),
                                     c.one_in(2) ? kinds : nullptr, c.count());
       }},
      {"ebb_engine_step",
       [](Caller& c) {
         auto args = c.sized<ebb_step_args>();
         if (c.one_in(4)) args.max_norm = c.one_in(2) ? 1 : -1;
         auto result = c.sized<ebb_step_result>();
         return ebb_engine_step(c.engine(), c.one_in(2) ? &args : nullptr,
                                c.one_in(2) ? &result : nullptr);
       }},
      {"ebb_engine_begin_step",
       [](Caller& c) { return ebb_engine_begin_step(c.engine(), nullptr, nullptr); }},
      {"ebb_engine_wait_step", [](Caller& c) { return ebb_engine_wait_step(c.engine(), nullptr); }},
      {"ebb_engine_step_ended",
       [](Caller& c) {
         std::int32_t ended = 0;
         return ebb_engine_step_ended(c.engine(), c.below(3), c.one_in(9) ? nullptr : &ended);
       }},
      {"ebb_engine_wait_parameter",
       [](Caller& c) { return ebb_engine_wait_parameter(c.engine(), c.below(6)); }},
      {"ebb_engine_continue", [](Caller& c) { return ebb_engine_continue(c.engine(), nullptr); }},
      {"ebb_engine_abandon", [](Caller& c) { return ebb_engine_abandon(c.engine()); }},
      {"ebb_engine_install_weights",
       [](Caller& c) { return ebb_engine_install_weights(c.engine()); }},
      {"ebb_engine_take_weights",
       [](Caller& c) { return ebb_engine_take_weights(c.engine(), c.params(), c.count()); }},
  };
  return kAll;
}

std::span<const Caller::Named> Caller::states() {
  static constexpr Named kAll[] = {
      {"ebb_engine_read_states",
       [](Caller& c) {
         return ebb_engine_read_states(c.engine(), c.states_named(), c.below(3), c.params(),
                                       c.buffers(c.state_), c.count());
       }},
      {"ebb_engine_set_blob",
       [](Caller& c) {
         const char bytes[16] = "fifteen letters";
         return ebb_engine_set_blob(c.engine(), c.text({"a", "b", ""}),
                                    c.one_in(9) ? nullptr : bytes, c.below(16));
       }},
      {"ebb_engine_blob",
       [](Caller& c) {
         char bytes[8];
         std::uint64_t size = c.below(9);
         return ebb_engine_blob(c.engine(), c.text({"a", "b"}), c.one_in(9) ? nullptr : bytes,
                                c.one_in(9) ? nullptr : &size);
       }},
      {"ebb_engine_write_states",
       [](Caller& c) {
         return ebb_engine_write_states(c.engine(), c.states_named(), c.below(3), c.params(),
                                        c.buffers(c.state_), c.count(),
                                        static_cast<std::int64_t>(c.below(5)) - 1);
       }},
      {"ebb_engine_set",
       [](Caller& c) {
         const double values[] = {0.1, 0, -1, 1e300, std::nan("")};
         return ebb_engine_set(c.engine(), c.below(3),
                               c.text({"lr", "beta", "beta1", "eps", "weight_decay", "none"}),
                               values[c.below(5)]);
       }},
  };
  return kAll;
}

std::span<const Caller::Named> Caller::others() {
  static constexpr Named kAll[] = {
      {"ebb_engine_snapshot", [](Caller& c) { return ebb_engine_snapshot(c.engine(), nullptr); }},
      {"ebb_engine_wait_snapshot",
       [](Caller& c) {
         std::uint64_t generation = 0;
         return ebb_engine_wait_snapshot(c.engine(), &generation);
       }},
      {"ebb_engine_committed",
       [](Caller& c) {
         std::uint64_t step = 0;
         return ebb_engine_committed(c.engine(), nullptr, &step);
       }},
      {"ebb_engine_about", [](Caller& c) { return c.text_of(ebb_engine_about); }},
      {"ebb_engine_stats", [](Caller& c) { return c.text_of(ebb_engine_stats); }},
      {"ebb_engine_begin_trace", [](Caller& c) { return ebb_engine_begin_trace(c.engine()); }},
      {"ebb_engine_end_trace", [](Caller& c) { return c.text_of(ebb_engine_end_trace); }},
      {"ebb_engine_pin", [](Caller& c) { return c.pin(); }},
      {"ebb_ranks_agree",
       [](Caller& c) {
         std::int64_t smallest = 0;
         return ebb_ranks_agree(c.ranks(), 1, c.one_in(9) ? nullptr : &smallest);
       }},
  };
  return kAll;
}

std::span<const Caller::Named> Caller::models() {
  static constexpr Named kAll[] = {
      {"ebb_device_open",
       [](Caller& c) {
         ebb_device* device = nullptr;
         const char* const none[] = {"", "/nowhere/ebb-cuda.so", "libc.so.6"};
         return ebb_device_open(none[c.below(3)], 0, c.one_in(9) ? nullptr : &device);
       }},
      {"ebb_device_name",
       [](Caller& c) {
         char* name = nullptr;
         return ebb_device_name(reinterpret_cast<ebb_device*>(c.engine()), &name);
       }},
      {"ebb_device_close",
       [](Caller& c) { return ebb_device_close(reinterpret_cast<ebb_device*>(c.engine())); }},
      {"ebb_model_plan",
       [](Caller& c) {
         auto plan = c.sized<ebb_plan>();
         ebb_model model = c.life_.model.model;
         if (c.one_in(3)) model.size = c.below(sizeof(model) + 1);
         if (c.one_in(3)) model.budget_bytes = c.below(100'000);
         if (c.one_in(3)) model.tile_bytes = c.below(9000);
         if (c.one_in(9)) model.device = reinterpret_cast<ebb_device*>(c.engine());
         if (c.one_in(9)) model.weights_on_device = static_cast<std::int32_t>(c.below(3));
         if (c.one_in(3)) model.placement = static_cast<std::int32_t>(c.below(3));
         ebb_layout layout = c.life_.model.layout;
         if (c.one_in(3)) layout.policy = static_cast<std::int32_t>(c.below(9));
         if (c.one_in(3)) layout.shard_world = c.below(4);
         if (c.one_in(3)) layout.replicas = c.below(3);
         if (c.one_in(3)) model.gradients = &layout;
         if (c.one_in(3)) model.weights = c.one_in(9) ? nullptr : &layout;
         return ebb_model_plan(&model, c.below(3), c.below(4), &plan);
       }},
      {"ebb_model_pieces",
       [](Caller& c) {
         std::uint64_t offsets[4], extents[4];
         std::uint32_t boxes = c.below(3);
         return ebb_model_pieces(&c.life_.model.model, 0, 1, static_cast<std::int32_t>(c.below(3)),
                                 c.below(5), c.one_in(9) ? nullptr : offsets, extents, &boxes);
       }},
  };
  return kAll;
}

std::span<const Caller::Named> Caller::swaps() {
  static constexpr Named kAll[] = {
      {"ebb_swap_prefetch", [](Caller& c) { return ebb_swap_prefetch(c.swap(), c.below(5)); }},
      {"ebb_swap_acquire",
       [](Caller& c) {
         void* parts[SmallSwap::kParts] = {};
         std::uint64_t lease = 0;
         const ebb_status status =
             ebb_swap_acquire(c.swap(), c.below(5), c.one_in(2), c.one_in(9) ? nullptr : parts,
                              c.one_in(9) ? nullptr : &lease);
         if (status == EBB_DONE) c.leases_[c.below(4)] = lease;
         return status;
       }},
      {"ebb_swap_release",
       [](Caller& c) {
         std::uint64_t& lease = c.leases_[c.below(4)];
         return ebb_swap_release(c.swap(), c.one_in(9) ? c.draw_() : lease, c.one_in(2));
       }},
      {"ebb_swap_flush", [](Caller& c) { return ebb_swap_flush(c.swap()); }},
      {"ebb_swap_go_on", [](Caller& c) { return ebb_swap_go_on(c.swap()); }},
      {"ebb_swap_snapshot",
       [](Caller& c) { return ebb_swap_snapshot(c.swap(), ++c.swap_step_, nullptr); }},
      {"ebb_swap_wait_snapshot",
       [](Caller& c) { return ebb_swap_wait_snapshot(c.swap(), nullptr); }},
      {"ebb_swap_set_blob",
       [](Caller& c) {
         return ebb_swap_set_blob(c.swap(), c.text({"a", "b", ""}), c.one_in(9) ? nullptr : "eight",
                                  c.below(6));
       }},
      {"ebb_swap_blob",
       [](Caller& c) {
         char bytes[8];
         std::uint64_t size = c.below(9);
         return ebb_swap_blob(c.swap(), c.text({"a", "b"}), c.one_in(9) ? nullptr : bytes, &size);
       }},
      {"ebb_swap_about",
       [](Caller& c) {
         char* json = nullptr;
         const ebb_status status = ebb_swap_about(c.swap(), c.one_in(9) ? nullptr : &json);
         ebb_free(json);
         return status;
       }},
      {"ebb_checkpoint_save",  // where something is already, or cannot be
       [](Caller& c) {
         const std::uint64_t shape[2] = {4, c.below(99)};
         auto saved = c.sized<ebb_saved>();
         saved.name = c.text({"w", "a.b", ""});
         saved.state = c.one_in(2) ? nullptr : "exp_avg";
         saved.shape = c.one_in(9) ? nullptr : shape;
         saved.ndim = c.below(3);
         saved.dtype = static_cast<std::int32_t>(c.below(30));
         saved.data = c.one_in(9) ? nullptr : &c.state_[0][0];
         auto save = c.sized<ebb_save>();
         save.format = c.text({"dcp", "safetensors", "ebb", "none"});
         save.path = c.one_in(2) ? c.life_.directory.c_str() : c.text({"/proc/none", ""});
         save.tensors = &saved;
         save.tensor_count = c.below(2);
         return ebb_checkpoint_save(&save, c.one_in(2) ? nullptr : c.ranks(), nullptr);
       }},
  };
  return kAll;
}

void in_child(const Life& life, std::uint64_t seed) {
  ++counts.forks;
  std::fflush(nullptr);
  const auto live_on = [&] {
    Caller caller(life, seed);
    for (int i = 0; i < 20; ++i) caller.call_any();
    bool closed = noted(ebb_engine_close(life.engine), "close, in a child") == EBB_DONE;
    if (life.swap != nullptr)
      closed &= noted(ebb_swap_close(life.swap), "ebb_swap_close, in a child") == EBB_DONE;
    return closed && counts.wrong == 0 ? 0 : 1;
  };
  const int status = test_support::fork_and_wait(live_on, kMostSeconds);
  if (status == 0) return;
  ++counts.wrong;
  std::printf("a child ended with %d\n", status);
}

void live(std::uint64_t seed, std::uint64_t calls, const std::string& folder, bool forks) {
  std::mt19937_64 draw(seed);
  SmallModel model;
  Life life{model, nullptr, nullptr, nullptr, folder + "/" + std::to_string(seed % 3)};
  if (draw() % 2 == 0) model.model.hand_in = EBB_ADDED;
  if (draw() % 2 == 0) model.model.placement = EBB_ON_SHARDS;
  if (draw() % 3 == 0) model.model.budget_bytes = 40'000;
  SmallSwap swap(life.directory + ".swap");  // before anybody's allocations fail
  ::alarm(kMostSeconds);
  if (noted(ebb_ranks_alone(&life.ranks), "ebb_ranks_alone") != EBB_DONE) return;
  const bool fails = draw() % 4 == 0 && Caller::failing();
  if (fails) fail_allocation(1 + draw() % 3000, *Caller::failing());
  const ebb_status opened = noted(model.open(life.ranks, life.directory, &life.engine), "open");
  if (draw() % 3 == 0) swap.config.budget_bytes = 20'000;
  if (opened == EBB_DONE && draw() % 3 == 0)
    noted(ebb_swap_open(&swap.config, life.ranks, &life.swap), "ebb_swap_open");
  fail_allocation(0, Of::this_thread);
  ++(opened == EBB_DONE ? counts.opened : counts.refused);
  if (opened == EBB_DONE) {
    Caller caller(life, draw()), beside_it(life, draw());
    const bool beside = draw() % 8 == 0;
    std::thread other;
    if (beside) {
      ++counts.threads;
      other = std::thread([&beside_it, calls] {
        for (std::uint64_t i = 0; i < calls; ++i) beside_it.call_any();
      });
    }
    for (std::uint64_t i = 0; i < calls; ++i) caller.call_any();
    if (forks && draw() % 20 == 0) in_child(life, draw());
    if (beside) other.join();
    if (life.swap != nullptr) noted(ebb_swap_close(life.swap), "ebb_swap_close");
    noted(ebb_engine_close(life.engine), "ebb_engine_close");
  }
  noted(ebb_ranks_close(life.ranks), "ebb_ranks_close");
}

}  // namespace
}  // namespace ebb::c

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const auto number = [&](int at) { return std::strtoull(argv[at], nullptr, 10); };
  const auto has = [&](std::string_view word) {
    return std::any_of(argv + 4, argv + argc, [&](const char* given) { return given == word; });
  };
  if (has("memory")) ebb::c::Caller::failing() = ebb::c::Of::this_thread;
  if (has("all-memory")) ebb::c::Caller::failing() = ebb::c::Of::all_threads;
  const char* const above = std::getenv("TMPDIR");
  std::string folder =
      std::string(above != nullptr ? above : "/var/tmp") + "/ebb-c-sequences.XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) return 2;
  for (std::uint64_t i = 0; i < number(2); ++i) {
    if (ebb::c::verbose) {
      std::printf("seed %llu\n", static_cast<unsigned long long>(number(1) + i));
      std::fflush(stdout);
    }
    ebb::c::live(number(1) + i, number(3), folder, !has("no-forks"));
  }
  std::filesystem::remove_all(folder);
  const ebb::c::Counts& all = ebb::c::counts;
  std::printf(
      "%llu engines opened, %llu refused; %llu calls: %llu done, %llu out of memory; "
      "%llu children, %llu with two threads; %llu wrong\n",
      static_cast<unsigned long long>(all.opened), static_cast<unsigned long long>(all.refused),
      static_cast<unsigned long long>(all.calls.load()),
      static_cast<unsigned long long>(all.done.load()),
      static_cast<unsigned long long>(all.no_memory.load()),
      static_cast<unsigned long long>(all.forks), static_cast<unsigned long long>(all.threads),
      static_cast<unsigned long long>(all.wrong.load()));
  return all.wrong == 0 ? 0 : 1;
}
