#include "bindings/c/written.h"

#include "bindings/c/arguments.h"
#include "ebb/formats/conversion/convert.h"

namespace ebb::c {

Result<const formats::Format*> format_of(const char* given, std::string_view function) {
  EBB_TRY_ASSIGN(const std::string_view name, text_of(given, compose("{}: format", function)));
  const formats::Format* const format = formats::format_named(name);
  if (format != nullptr && format->traits().written == formats::Written::yes) return format;
  std::string known;
  for (const formats::Format* const each : formats::written_formats())
    known += compose("{}{}", known.empty() ? "" : ", ", each->traits().name);
  return Error{Code::usage, compose("no format is called \"{}\"", name), known};
}

Result<libswap::WriteReport> hinted(Result<libswap::WriteReport> report) {
  if (report || report.error().code != Code::usage) return report;
  return Error{Code::usage, report.error().message, "name one that is not there"};
}

Result<libswap::WriteReport> write(libswap::IoQueue& io, const Checkpoint& content,
                                   const Written& to) {
  EBB_TRY_ASSIGN(const auto conversion,
                 formats::plan_conversion(content, {.from = formats::format_of(content.catalog()),
                                                    .to = to.format,
                                                    .world = to.world,
                                                    .policy = std::nullopt}));
  if (to.whole && !conversion.plan.dropped.empty())
    return Error{Code::unsupported,
                 compose("{} cannot hold {}", to.format.name(), conversion.plan.dropped.front()),
                 "choose another format"};
  return hinted(libswap::write_checkpoint(
      io, *conversion.content, conversion.plan, to.path,
      {.becomes = libswap::becomes(to.format, conversion.plan, to.path), .workers = to.workers}));
}

}  // namespace ebb::c
