#include <optional>
#include <utility>

#include "bindings/c/arguments.h"
#include "bindings/c/guarded.h"
#include "bindings/c/model.h"
#include "bindings/c/objects.h"
#include "bindings/c/trainer_buffers.h"
#include "ebb/formats/describe.h"
#include "ebb/formats/native/store_files.h"
#include "ebb/libswap/tree/file_tree.h"

namespace ebb::c {
namespace {

using libmuon::Engine;
using libmuon::EngineConfig;
using libswap::SwapDirectory;

Result<std::optional<std::uint64_t>> expected_number(int64_t given, std::string_view what) {
  if (given < 0) return Error{Code::usage, compose("{} = {}", what, given), "0: any"};
  if (given == 0) return std::optional<std::uint64_t>();
  return std::optional(static_cast<std::uint64_t>(given) - 1);
}

Result<libmuon::ExpectedStore> expected_of(const ebb_start& start) {
  libmuon::ExpectedStore expected;
  if (start.expected_store != nullptr) {
    expected.uuid =
        formats::native::store_in_directory_name(compose("store-{}", start.expected_store));
    if (!expected.uuid)
      return Error{Code::usage, compose("\"{}\" is no store", start.expected_store),
                   "32 hex digits, as ebb_engine_about() gives them"};
  }
  EBB_TRY_ASSIGN(expected.generation,
                 expected_number(start.expected_generation, "expected_generation"));
  EBB_TRY_ASSIGN(expected.step, expected_number(start.expected_step, "expected_step"));
  return expected;
}

// What a start points to, while the engine opens.
struct Given {
  libmuon::Start start;
  libswap::fs::path directory;
  std::vector<libswap::fs::path> sources;
  std::vector<libswap::Buffer> weights;
  std::unique_ptr<Checkpoint> checkpoint;
};

Result<std::unique_ptr<Checkpoint>> describe(const char* path) {
  EBB_TRY_ASSIGN(auto tree, libswap::open_tree(path));
  return formats::describe(std::move(tree));
}

Result<> read_start(const ebb_start* given, const Described& model, Given& out) {
  using libmuon::Begin;
  EBB_TRY_ASSIGN(const ebb_start start, sized(given, "the start"));
  EBB_TRY_ASSIGN(out.directory, text_of(start.directory, "the start's directory"));
  EBB_TRY_ASSIGN(const auto sources,
                 array_of(start.sources, start.source_count, "the start's sources"));
  for (const char* const source : sources) {
    EBB_TRY_ASSIGN(const std::string_view path, text_of(source, "one of the start's sources"));
    out.sources.emplace_back(path);
  }
  if (start.begin < EBB_STORE_OR_GIVEN || start.begin > EBB_GIVEN)
    return Error{Code::usage, compose("the start's begin = {} is none of its values", start.begin)};
  out.start.begin = start.begin == EBB_GIVEN   ? Begin::given
                    : start.begin == EBB_STORE ? Begin::store
                                               : Begin::store_or_given;
  out.start.old_store = start.old_store != EBB_KEPT_UNTIL_COMMITTED
                            ? libmuon::OldStore::dropped_first
                            : libmuon::OldStore::kept_until_committed;
  EBB_TRY_ASSIGN(out.start.expected, expected_of(start));
  EBB_TRY_ASSIGN(const auto weights,
                 array_of(start.weights, model.config.model.params.size(), "the start's weights"));
  TrainerBuffers taken(model.device.get());
  for (const ebb_buffer& buffer : weights) {
    EBB_TRY_ASSIGN(const libswap::Buffer one, taken.ready(buffer, "the start's weights"));
    out.weights.push_back(one);
  }
  out.start.weights = out.weights;
  if (start.checkpoint == nullptr) return {};
  EBB_TRY_ASSIGN(out.checkpoint, describe(start.checkpoint));
  out.start.checkpoint = out.checkpoint.get();
  return {};
}

// What this rank can find out alone, before the others are met.
struct Prepared {
  Described model;
  Given given;
  std::unique_ptr<libswap::IoQueue> io;
};
Result<> prepare(const ebb_model* model, const ebb_start* start, std::uint32_t world,
                 Prepared& out) {
  EBB_TRY_ASSIGN(out.model, described(model, world));
  EBB_TRY(read_start(start, out.model, out.given));
  EBB_TRY_ASSIGN(out.io, open_io());
  return {};
}

Result<> open(const ebb_model* model, ebb_ranks* ranks, const ebb_start* start,
              ebb_engine** place) {
  EBB_TRY(check_place(place, "ebb_engine_open: engine"));
  EBB_TRY_ASSIGN(const auto known, ranks_handles().find(ranks));
  EBB_TRY_ASSIGN(const OnlyCall call, collective_call(*known));
  const Passage passage(*known);
  auto object = std::make_shared<EngineObject>();
  object->ranks = known;
  libmuon::Communicator& comm = *known->ranks;
  Prepared mine;
  EBB_TRY(libswap::agree_all(comm, prepare(model, start, comm.world(), mine), "opening an engine"));
  EngineConfig& config = mine.model.config;
  object->device = std::move(mine.model.device);
  object->io = std::move(mine.io);
  EBB_TRY_ASSIGN(auto directory,
                 SwapDirectory::open(*object->io, mine.given.directory, comm, mine.given.sources));
  object->directories.push_back(std::move(directory));
  config.trace = &object->trace;
  EBB_TRY_ASSIGN(object->engine, Engine::open(config, comm, *object->io,
                                              *object->directories.back(), mine.given.start));
  EBB_TRY(object->engine->install_weights());
  for (const libmuon::ParamSpec& param : config.model.params) object->names.push_back(param.name);
  object->groups = static_cast<std::uint32_t>(config.model.groups.size());
  return engines().add(std::move(object), place);
}

}  // namespace

Result<std::unique_ptr<libswap::IoQueue>> open_io() {
  EBB_TRY_ASSIGN(auto disk, libswap::open_backend(libswap::BackendChoice::automatic));
  return libswap::IoQueue::start(std::move(disk.backend), {});
}

Handles<EngineObject>& engines() {
  static auto* const all = new Handles<EngineObject>("engine");
  return *all;
}

}  // namespace ebb::c

using ebb::c::guarded;

ebb_status ebb_engine_open(const ebb_model* model, ebb_ranks* ranks, const ebb_start* start,
                           ebb_engine** engine) noexcept {
  return guarded([&] { return ebb::c::open(model, ranks, start, engine); });
}

ebb_status ebb_engine_close(ebb_engine* engine) noexcept {
  return guarded([&]() -> ebb::Result<> {
    EBB_TRY(ebb::c::engines().remove(engine));
    return {};
  });
}
