#include "tools/ckpt_convert/changes.h"

#include <algorithm>

#include "ebb/formats/core/json_text.h"
#include "ebb/libswap/tree/file_tree.h"

namespace ebb::tools::convert {

using formats::MomentumForm;

namespace {

constexpr std::uint64_t kMaxText = 16 << 20;  // bytes of a file of rules or names

// `flag`: as it was given, for messages.
Result<std::string> text_of_file(const std::string& flag, const std::string& path) {
  EBB_TRY_ASSIGN(const auto tree, libswap::open_tree(path));
  if (tree->entries().size() != 1)
    return Error{Code::usage, compose("{}{}: not one file", flag, printable(path))};
  EBB_TRY_ASSIGN(const auto source, tree->open(tree->entries().front().name));
  EBB_TRY_ASSIGN(const ByteVector bytes, formats::read_bytes(*source, 0, source->size(), kMaxText));
  return std::string(formats::text_of(bytes));
}

std::optional<MomentumForm> form_named(std::string_view word) {
  for (const MomentumForm form : {MomentumForm::ema, MomentumForm::sum})
    if (formats::name_of(form) == word) return form;
  return std::nullopt;
}

Result<formats::MomentumRule> momentum_of(std::string_view text) {
  formats::MomentumRule rule;
  const std::size_t colon = text.find(':');
  const auto to = form_named(colon == std::string_view::npos ? text : text.substr(colon + 1));
  if (colon != std::string_view::npos) rule.from = form_named(text.substr(0, colon));
  if (!to || (colon != std::string_view::npos && !rule.from))
    return Error{Code::usage,
                 "--momentum takes ema or sum, or what it is and what it shall be, as in sum:ema, "
                 "not '" +
                     printable(text) + "'"};
  rule.to = *to;
  return rule;
}

}  // namespace

Result<formats::Edits> edits_of(const Arguments& arguments) {
  formats::Edits edits;
  std::vector<std::string> rules;
  for (const std::string& given : arguments.texts("rename")) {
    if (!given.starts_with('@')) {
      rules.push_back(given);
      continue;
    }
    EBB_TRY_ASSIGN(std::string text, text_of_file("--rename @", given.substr(1)));
    rules.push_back(std::move(text));
  }
  EBB_TRY_ASSIGN(edits.rename, formats::RenameRules::parse(rules));
  EBB_TRY_ASSIGN(edits.dtypes, formats::DTypeRules::parse(arguments.texts("dtype")));
  if (const auto momentum = arguments.text("momentum")) {
    EBB_TRY_ASSIGN(edits.momentum, momentum_of(*momentum));
  }
  if (arguments.has("keep-names")) edits.wrappers = formats::WrapperNames::kept;
  if (const auto prefix = arguments.text("strip")) {
    EBB_TRY_ASSIGN(edits.strip,
                   formats::RenameRules::parse(std::vector<std::string>{*prefix + "*=*"}));
  }
  return edits;
}

Result<std::vector<std::vector<std::string>>> names_in_file(const std::string& path) {
  EBB_TRY_ASSIGN(const std::string text, text_of_file("--names ", path));
  std::vector<std::vector<std::string>> groups(1);
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    while (line.ends_with('\r') || line.ends_with(' ')) line.remove_suffix(1);
    if (!line.empty())
      groups.back().emplace_back(line);
    else if (!groups.back().empty())
      groups.emplace_back();
  }
  if (groups.back().empty()) groups.pop_back();
  return groups;
}

}  // namespace ebb::tools::convert
