// A trainer's own state, from C: libswap's SwapSpace.
#include "bindings/c/arguments.h"
#include "bindings/c/blobs.h"
#include "bindings/c/engine_calls.h"
#include "bindings/c/json.h"
#include "bindings/c/model.h"

namespace ebb::c {

Handles<SwapObject>& swaps() {
  static auto* const all = new Handles<SwapObject>("swap space");
  return *all;
}

namespace {

using libswap::BufferId;
using libswap::BufferPart;
using libswap::SwapDirectory;
using libswap::SwapSpace;
using Parts = std::vector<std::vector<BufferPart>>;  // of each buffer

Result<BufferPart> part_of(const ebb_swap_part& given, std::string_view what) {
  BufferPart part;
  EBB_TRY_ASSIGN(part.tensor, text_of(given.tensor, compose("{}: tensor", what)));
  EBB_TRY_ASSIGN(part.state, text_of(given.state, compose("{}: state", what)));
  EBB_TRY_ASSIGN(part.dtype, dtype_of(given.dtype, compose("{}: dtype", part.tensor)));
  EBB_TRY_ASSIGN(const auto shape,
                 array_of(given.shape, given.ndim, compose("{}: shape", part.tensor)));
  part.shape = Shape(shape.begin(), shape.end());
  part.range = {given.first, given.elems};
  return part;
}

Result<Parts> parts_of(const ebb_swap_config& config) {
  EBB_TRY_ASSIGN(const auto given,
                 all_sized(config.parts, config.part_count, "ebb_swap_config: parts", "part"));
  Parts buffers;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const std::string what = compose("part {}", i);
    EBB_TRY_ASSIGN(BufferPart part, part_of(given[i], what));
    const uint64_t buffer = given[i].buffer;
    if (buffer == buffers.size()) buffers.emplace_back();
    if (buffer + 1 != buffers.size())
      return Error{Code::usage,
                   compose("{} ({}, {}) is of buffer {}, behind buffer {}", what, part.tensor,
                           part.state, buffer, buffers.size() - 1),
                   "buffers count up from 0, and the parts of one lie side by side"};
    buffers.back().push_back(std::move(part));
  }
  return buffers;
}

// What this rank can find out alone, before the others are met.
struct Prepared {
  ebb_swap_config config{};
  Parts parts;
  libswap::Buffers buffers;  // where the parts lie in theirs
  libswap::fs::path directory;
  std::vector<libswap::fs::path> sources;
  std::unique_ptr<libswap::IoQueue> io;
};
Result<> prepare(const ebb_swap_config* given, Prepared& out) {
  EBB_TRY_ASSIGN(out.config, sized(given, "the swap space's config"));
  EBB_TRY_ASSIGN(out.directory, text_of(out.config.directory, "ebb_swap_config: directory"));
  EBB_TRY_ASSIGN(const auto sources,
                 array_of(out.config.sources, out.config.source_count, "ebb_swap_config: sources"));
  for (const char* const source : sources) {
    EBB_TRY_ASSIGN(const std::string_view path, text_of(source, "one of the sources"));
    out.sources.emplace_back(path);
  }
  EBB_TRY_ASSIGN(out.parts, parts_of(out.config));
  for (const auto& parts : out.parts) EBB_TRY(out.buffers.add(parts));
  EBB_TRY_ASSIGN(out.io, open_io());
  return {};
}

libswap::SwapSpaceConfig config_of(const ebb_swap_config& given) {
  libswap::SwapSpaceConfig config{.budget_bytes = given.budget_bytes};
  if (given.tile_bytes != 0) config.tile_bytes = given.tile_bytes;
  if (given.slots != 0) config.slots = given.slots;
  if (given.threads != 0) config.threads = given.threads;
  return config;
}

SwapSpace::InitialContent filling(const ebb_swap_config& config, const libswap::Buffers& buffers) {
  if (config.fill == nullptr) return nullptr;
  return [&](BufferId buffer, std::span<std::byte> bytes) -> Result<> {
    std::vector<void*> places;
    for (const auto& part : buffers.all()[index_of(buffer)].parts)
      places.push_back(part.bytes == 0 ? nullptr : bytes.data() + part.offset);
    const ebb_status status = config.fill(config.self, index_of(buffer), places.data());
    if (status == EBB_DONE) return {};
    return Error{Code::cancelled, compose("buffer {} was not filled: the caller answered {}",
                                          index_of(buffer), status)};
  };
}

Result<> open(const ebb_swap_config* given, ebb_ranks* ranks, ebb_swap** place) {
  EBB_TRY(check_place(place, "ebb_swap_open: swap"));
  EBB_TRY_ASSIGN(const auto known, ranks_handles().find(ranks));
  EBB_TRY_ASSIGN(const OnlyCall call, collective_call(*known));
  const Passage passage(*known);
  libmuon::Communicator& comm = *known->ranks;
  Prepared mine;
  EBB_TRY(libswap::agree_all(comm, prepare(given, mine), "opening a swap space"));
  auto object = std::make_shared<SwapObject>();
  object->ranks = known;
  object->io = std::move(mine.io);
  EBB_TRY_ASSIGN(object->directory,
                 SwapDirectory::open(*object->io, mine.directory, comm, mine.sources));
  object->space =
      std::make_unique<SwapSpace>(*object->io, *object->directory, comm, config_of(mine.config));
  for (auto& parts : mine.parts) {
    object->parts.push_back(static_cast<std::uint32_t>(parts.size()));
    EBB_TRY(object->space->register_buffer(std::move(parts)));
  }
  EBB_TRY(object->space->open(filling(mine.config, mine.buffers)));
  return swaps().add(std::move(object), place);
}

Result<BufferId> buffer_of(const SwapObject& object, uint32_t number) {
  if (number < object.parts.size()) return BufferId{number};
  return Error{Code::usage, compose("buffer {}: there are {}", number, object.parts.size())};
}

Result<> acquire(SwapObject& object, uint32_t number, bool modify, void** parts, uint64_t* place) {
  EBB_TRY(check_place(parts, "ebb_swap_acquire: parts"));
  EBB_TRY(check_place(place, "ebb_swap_acquire: lease"));
  EBB_TRY_ASSIGN(const BufferId buffer, buffer_of(object, number));
  const auto access = modify ? SwapSpace::Access::modify : SwapSpace::Access::read;
  EBB_TRY_ASSIGN(SwapSpace::Lease lease,
                 object.space->acquire(buffer, libswap::Tier::host, access));
  for (std::uint32_t i = 0; i < object.parts[number]; ++i)
    parts[i] = lease.part(i).empty() ? nullptr : lease.part(i).data();
  object.leases.emplace(++object.leased, std::move(lease));
  *place = object.leased;
  return {};
}

Result<> release(SwapObject& object, uint64_t number, bool keep) {
  const auto found = object.leases.find(number);
  if (found == object.leases.end())
    return Error{Code::usage, compose("there is no such lease: {}", number),
                 "each is released once"};
  EBB_TRY(object.space->release(found->second,
                                keep ? SwapSpace::Release::dirty : SwapSpace::Release::clean));
  object.leases.erase(found);
  return {};
}

std::string about(const SwapObject& object) {
  const SwapSpace& space = *object.space;
  const libswap::SwapSpaceStats stats = space.stats();
  Json json;
  json.number("step", space.step());
  json.text("origin", space.origin());
  json.text("store", space.store_directory().string());
  json.number("useful_bytes_ahead", space.useful_bytes_ahead());
  json.number("acquires", stats.acquires);
  json.number("stalls", stats.stalls);
  json.number("copied_bytes", stats.copied_bytes);
  json.number("snapshots_put_off", stats.snapshots_put_off);
  json.counters(libswap::stats_of(stats.pager));
  return json.whole();
}

}  // namespace
}  // namespace ebb::c

using ebb::Result;
using ebb::c::alone;
using ebb::c::collectively;
using ebb::c::guarded;
using ebb::c::SwapObject;
using ebb::c::swaps;

ebb_status ebb_swap_open(const ebb_swap_config* config, ebb_ranks* ranks,
                         ebb_swap** swap) noexcept {
  return guarded([&] { return ebb::c::open(config, ranks, swap); });
}

ebb_status ebb_swap_prefetch(ebb_swap* swap, uint32_t buffer) noexcept {
  return alone(swaps(), swap, [&](SwapObject& object) -> Result<> {
    EBB_TRY_ASSIGN(const auto known, ebb::c::buffer_of(object, buffer));
    return object.space->prefetch(known);
  });
}

ebb_status ebb_swap_acquire(ebb_swap* swap, uint32_t buffer, int32_t modify, void** parts,
                            uint64_t* lease) noexcept {
  return alone(swaps(), swap, [&](SwapObject& object) {
    return ebb::c::acquire(object, buffer, modify != 0, parts, lease);
  });
}

ebb_status ebb_swap_release(ebb_swap* swap, uint64_t lease, int32_t keep) noexcept {
  return alone(swaps(), swap,
               [&](SwapObject& object) { return ebb::c::release(object, lease, keep != 0); });
}

ebb_status ebb_swap_flush(ebb_swap* swap) noexcept {
  return alone(swaps(), swap, [](SwapObject& object) { return object.space->flush(); });
}

ebb_status ebb_swap_go_on(ebb_swap* swap) noexcept {
  return alone(swaps(), swap, [](SwapObject& object) -> Result<> {
    object.space->go_on();
    return {};
  });
}

ebb_status ebb_swap_snapshot(ebb_swap* swap, uint64_t step, int32_t* begun) noexcept {
  return collectively(swaps(), swap, [&](SwapObject& object) -> Result<> {
    EBB_TRY_ASSIGN(const bool marked, object.space->snapshot(step));
    if (begun != nullptr) *begun = marked ? 1 : 0;
    return {};
  });
}

ebb_status ebb_swap_wait_snapshot(ebb_swap* swap, uint64_t* generation) noexcept {
  return collectively(swaps(), swap, [&](SwapObject& object) -> Result<> {
    EBB_TRY_ASSIGN(const std::uint64_t committed, object.space->wait_snapshot());
    if (generation != nullptr) *generation = committed;
    return {};
  });
}

ebb_status ebb_swap_set_blob(ebb_swap* swap, const char* key, const void* bytes,
                             uint64_t size) noexcept {
  return alone(swaps(), swap, [&](SwapObject& object) {
    return ebb::c::set_blob(*object.space, {key, "ebb_swap_set_blob"}, bytes, size);
  });
}

ebb_status ebb_swap_blob(ebb_swap* swap, const char* key, void* bytes, uint64_t* size) noexcept {
  return alone(swaps(), swap, [&](SwapObject& object) {
    return ebb::c::blob(*object.space, {key, "ebb_swap_blob"}, bytes, size);
  });
}

ebb_status ebb_swap_about(ebb_swap* swap, char** json) noexcept {
  return alone(swaps(), swap, [&](SwapObject& object) {
    return ebb::c::answer_text(json, ebb::c::about(object), "ebb_swap_about: json");
  });
}

ebb_status ebb_swap_close(ebb_swap* swap) noexcept {
  return guarded([&]() -> Result<> {
    EBB_TRY(swaps().remove(swap));
    return {};
  });
}
