// A committed generation that stays while it is written in another format.
#include "bindings/c/arguments.h"
#include "bindings/c/engine_calls.h"
#include "ebb/formats/conversion/convert.h"
#include "ebb/formats/registry.h"
#include "ebb/libswap/write/write_checkpoint.h"

namespace ebb::c {

Handles<PinnedObject>& pinned_ones() {
  static auto* const all = new Handles<PinnedObject>("pinned generation");
  return *all;
}

namespace {

Result<const formats::Format*> format_of(const char* given) {
  EBB_TRY_ASSIGN(const std::string_view name, text_of(given, "ebb_pinned_write: format"));
  const formats::Format* const format = formats::format_named(name);
  if (format != nullptr) return format;
  std::string known;
  for (const formats::Format* const each : formats::registered_formats())
    known += compose("{}{}", known.empty() ? "" : ", ", each->traits().name);
  return Error{Code::usage, compose("no format is called \"{}\"", name), known};
}

Result<> write(const PinnedObject& object, const char* format, uint32_t world,
               const char* destination, uint32_t workers, uint64_t* bytes) {
  EBB_TRY_ASSIGN(const formats::Format* const to, format_of(format));
  EBB_TRY_ASSIGN(const std::string_view path, text_of(destination, "ebb_pinned_write: path"));
  if (world == 0) return Error{Code::usage, "ebb_pinned_write: world = 0", "at least 1"};
  EBB_TRY_ASSIGN(const auto source, object.pinned.describe());
  EBB_TRY_ASSIGN(const auto conversion,
                 formats::plan_conversion(*source, {.from = formats::format_of(source->catalog()),
                                                    .to = *to,
                                                    .world = world,
                                                    .policy = std::nullopt}));
  const auto report = libswap::write_checkpoint(
      *object.io, *conversion.content, conversion.plan, path,
      {.becomes = libswap::becomes(*to, conversion.plan, path), .workers = workers});
  if (!report && report.error().code == Code::usage)  // whose hint is ckpt-convert's
    return Error{Code::usage, report.error().message, "name one that is not there"};
  EBB_TRY(report);
  if (bytes != nullptr) *bytes = report->bytes;
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
    return ebb::c::write(*object, format, world, path, workers, bytes);
  });
}

ebb_status ebb_pinned_close(ebb_pinned* pinned) noexcept {
  return guarded([&]() -> Result<> {
    EBB_TRY(ebb::c::pinned_ones().remove(pinned));
    return {};
  });
}
