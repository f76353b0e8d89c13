#include "examples/gpt/muon.h"

#include <utility>

#include "ebb/libmuon/spec/presets.h"

namespace ebb::gpt {
namespace {

Error about_flag(const std::string& flag, Error error) {
  error.message = compose("{}: {}", flag, error.message);
  if (error.hint.empty()) error.hint = "gpt-train --list-presets";
  return error;
}

}  // namespace

Result<libmuon::MuonSpec> muon_from(const tools::Arguments& arguments) {
  libmuon::MuonSpec muon = libmuon::MuonSpec::keller();
  if (const auto name = arguments.text("preset")) {
    auto named = libmuon::preset(*name);
    if (!named) return about_flag("--preset", std::move(named).error());
    muon = *std::move(named);
  }
  const auto change = [&](const std::string& flag, const std::string& name,
                          const std::string& value) -> Result<> {
    auto changed = libmuon::with_setting(muon, name, value);
    if (!changed) return about_flag(flag, std::move(changed).error());
    muon = *std::move(changed);
    return {};
  };
  for (const std::string& text : arguments.texts("set")) {
    const std::size_t equal = text.find('=');
    if (equal == text.npos)
      return about_flag("--set " + text,
                        {Code::usage, "wanted NAME=VALUE, as in weight_decay=0.1"});
    EBB_TRY(change("--set " + text, text.substr(0, equal), text.substr(equal + 1)));
  }
  if (const auto rate = arguments.text("lr")) EBB_TRY(change("--lr " + *rate, "lr", *rate));
  return muon;
}

std::string preset_list() {
  constexpr std::size_t kColumns = 100;
  std::string all;
  for (const libmuon::Preset& preset : libmuon::presets()) {
    all += compose("{}{}: {}\n", all.empty() ? "" : "\n", preset.name, preset.source);
    std::string line = " ";
    for (const auto& [name, value] : libmuon::to_group(preset.spec()).settings) {
      const std::string setting = compose(" {}={}", name, value);
      if (line.size() + setting.size() > kColumns) all += std::exchange(line, " ") + "\n";
      line += setting;
    }
    all += line + "\n";
  }
  return all;
}

}  // namespace ebb::gpt
