// A committed generation that stays while it is written in another format.
#include "bindings/c/arguments.h"
#include "bindings/c/engine_calls.h"
#include "bindings/c/written.h"

namespace ebb::c {

Handles<PinnedObject>& pinned_ones() {
  static auto* const all = new Handles<PinnedObject>("pinned generation");
  return *all;
}

namespace {

Result<> write_pinned(const PinnedObject& object, const char* format, uint32_t world,
                      const char* destination, uint32_t workers, uint64_t* bytes) {
  EBB_TRY_ASSIGN(const formats::Format* const to, format_of(format, "ebb_pinned_write"));
  EBB_TRY_ASSIGN(const std::string_view path, text_of(destination, "ebb_pinned_write: path"));
  if (world == 0) return Error{Code::usage, "ebb_pinned_write: world = 0", "at least 1"};
  EBB_TRY_ASSIGN(const auto source, object.pinned.describe());
  EBB_TRY_ASSIGN(const auto report, write(*object.io, *source, {*to, world, path, workers}));
  if (bytes != nullptr) *bytes = report.bytes;
  return {};
}

}  // namespace
}  // namespace ebb::c

using ebb::Result;
using ebb::c::EngineObject;
using ebb::c::guarded;

ebb_status ebb_engine_pin(ebb_engine* engine, ebb_pinned** pinned) noexcept {
  return ebb::c::with_engine(engine, [&](EngineObject& object) -> Result<> {
    EBB_TRY(ebb::c::check_place(pinned, "ebb_engine_pin: pinned"));
    EBB_TRY_ASSIGN(auto held, object.engine->open_export());
    return ebb::c::pinned_ones().add(
        std::make_shared<ebb::c::PinnedObject>(object.io, std::move(held)), pinned);
  });
}

ebb_status ebb_pinned_write(ebb_pinned* pinned, const char* format, uint32_t world,
                            const char* path, uint32_t workers, uint64_t* bytes) noexcept {
  return guarded([&]() -> Result<> {
    EBB_TRY_ASSIGN(const auto object, ebb::c::pinned_ones().find(pinned));
    return ebb::c::write_pinned(*object, format, world, path, workers, bytes);
  });
}

ebb_status ebb_pinned_close(ebb_pinned* pinned) noexcept {
  return guarded([&]() -> Result<> {
    EBB_TRY(ebb::c::pinned_ones().remove(pinned));
    return {};
  });
}
