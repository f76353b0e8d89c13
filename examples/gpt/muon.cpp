#include "examples/gpt/muon.h"

#include <utility>

#include "ebb/formats/core/number_text.h"
#include "ebb/libmuon/spec/presets.h"

namespace ebb::gpt {
namespace {

Error about_flag(const std::string& flag, Error error) {
  error.message = compose("{}: {}", flag, error.message);
  if (error.hint.empty()) error.hint = "gpt-train --list-presets";
  return error;
}

using libmuon::GroupSpec;

Result<GroupSpec> optimizer_from(const tools::Arguments& arguments) {
  const std::string optimizer = arguments.text("optimizer").value_or("muon");
  const auto preset = arguments.text("preset");
  if (optimizer == "adamw") {
    if (preset)
      return Error{Code::usage, "--preset " + *preset + ": presets are Muon's, not AdamW's",
                   "leave --optimizer adamw out"};
    return GroupSpec(libmuon::AdamSpec{.lr = 3e-3});
  }
  if (optimizer != "muon")
    return Error{Code::usage, "--optimizer " + optimizer + ": wanted muon or adamw",
                 "gpt-train -h"};
  if (!preset) return GroupSpec(libmuon::MuonSpec::keller());
  auto named = libmuon::preset(*preset);
  if (!named) return about_flag("--preset", std::move(named).error());
  return GroupSpec(*std::move(named));
}

}  // namespace

Result<GroupSpec> matrices_from(const tools::Arguments& arguments) {
  EBB_TRY_ASSIGN(GroupSpec spec, optimizer_from(arguments));
  const auto change = [&](const std::string& flag, const std::string& name,
                          const std::string& value) -> Result<> {
    const auto changed = [&](const auto& one) -> Result<GroupSpec> {
      EBB_TRY_ASSIGN(auto other, libmuon::with_setting(one, name, value));
      return GroupSpec(std::move(other));
    };
    auto other = std::visit(changed, spec);
    if (!other) return about_flag(flag, std::move(other).error());
    spec = *std::move(other);
    return {};
  };
  for (const std::string& text : arguments.texts("set")) {
    const std::size_t equal = text.find('=');
    if (equal == text.npos)
      return about_flag("--set " + text,
                        {Code::usage, "wanted NAME=VALUE, as in weight_decay=0.1"});
    EBB_TRY(change("--set " + text, text.substr(0, equal), text.substr(equal + 1)));
  }
  if (const auto rate = arguments.text("lr")) {
    if (!formats::parse_number<double>(*rate))
      return Error{Code::usage, compose("--lr wants a number, not '{}'", *rate),
                   "as in --lr 0.02; without it the preset's is taken"};
    EBB_TRY(change("--lr " + *rate, "lr", *rate));
  }
  const auto* const muon = std::get_if<libmuon::MuonSpec>(&spec);
  if (muon != nullptr && muon->out == libmuon::Out::update)
    return about_flag("--set out=update",
                      {Code::usage, "this trainer has no masters that an update could be added to",
                       "leave it out: the engine keeps them"});
  return spec;
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
