#include "bindings/c/arguments.h"
#include "bindings/c/guarded.h"
#include "bindings/c/json.h"
#include "bindings/c/open_device.h"
#include "ebb/formats/registry.h"
#include "ebb/libmuon/kernels/kernels.h"
#include "ebb/libmuon/spec/presets.h"
#include "ebb/libswap/queue/io_queue.h"
#include "ebb/libswap/sys/process.h"

namespace ebb::c {
namespace {

Result<std::string> about() {
  Json json;
  json.text("version", EBB_VERSION);
  json.number("abi", std::uint64_t{EBB_ABI});
  const auto disk = libswap::open_backend(libswap::BackendChoice::automatic);
  json.text("io_backend", !disk                ? disk.error().message
                          : disk->note.empty() ? "io_uring"
                                               : disk->note);
  json.text("plugin", plugin_beside());
  json.open_list("presets");
  for (const libmuon::Preset& preset : libmuon::presets()) {
    json.open_object();
    json.text("name", preset.name);
    json.text("source", preset.source);
    json.texts("settings", libmuon::to_group(preset.spec()).settings);
    json.close_object();
  }
  json.close_list();
  json.open_list("formats");
  for (const formats::Format* const format : formats::written_formats()) json.item(format->name());
  json.close_list();
  return json.whole();
}

}  // namespace
}  // namespace ebb::c

const char* ebb_version(void) noexcept { return EBB_VERSION; }

ebb_status ebb_about(char** json) noexcept {
  return ebb::c::guarded([&]() -> ebb::Result<> {
    EBB_TRY_ASSIGN(const std::string text, ebb::c::about());
    return ebb::c::answer_text(json, text, "ebb_about: json");
  });
}

ebb_status ebb_programs_in(const char* folder) noexcept {
  return ebb::c::guarded([&]() -> ebb::Result<> {
    EBB_TRY_ASSIGN(const auto path, ebb::c::text_of(folder, "ebb_programs_in: folder"));
    ebb::libswap::look_for_programs_in(path);
    return {};
  });
}
