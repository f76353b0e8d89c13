#include "tools/ckpt_convert/order.h"

#include <algorithm>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/registry.h"
#include "ebb/formats/state_dict/names.h"
#include "ebb/formats/state_dict/numbers.h"
#include "tools/cli/checkpoints.h"

namespace ebb::tools::convert {

namespace {

std::optional<std::vector<std::string>> all_names(const Request& request) {
  if (request.names.empty()) return std::nullopt;
  std::vector<std::string> all;
  for (const auto& group : request.names) all.insert(all.end(), group.begin(), group.end());
  return all;
}

formats::SaidOrder order_of_names(const Request& request) {
  using Borders = formats::SaidOrder::Borders;
  formats::SaidOrder order{
      .groups = {},
      .borders = request.names.size() > 1 ? Borders::said : Borders::of_the_content,
      .by = "--names"};
  for (const auto& group : request.names) order.groups.push_back({{}, {}, group});
  return order;
}

Result<formats::SaidOrder> order_like(const Request& request, const formats::PartsSaid& said) {
  EBB_TRY_ASSIGN(const auto like, open_checkpoint(*request.like, said));
  const Catalog& catalog = like->catalog();
  formats::SaidOrder order{.groups = catalog.groups, .by = "--like " + printable(*request.like)};
  if (catalog.grouped != formats::GroupOrder::of_the_optimizer)
    return Error{Code::usage, order.by + ": it has no list of an optimizer's parameters"};
  if (!formats::mere_numbers(catalog).empty())
    return Error{Code::usage,
                 order.by +
                     ": its optimizer has numbers for names, and nothing records which "
                     "parameter has which",
                 formats::names_hint()};
  return order;
}

// "" where the names that --names says arrive in what is written.
std::string unused_names(const Request& request, const Catalog& source) {
  const bool by_order = request.names_by_order == formats::NamesByOrder::taken;
  if (request.names.empty() && !by_order) return {};
  constexpr std::string_view kNothing = "--names changes nothing here: ";
  if (request.taking == formats::Taking::weights)
    return compose("{}weights have names of their own", kNothing);
  const auto& to = request.format->traits();
  const bool keys_stay = to.keys == formats::Keys::state_dict &&
                         to.parts == formats::Parts::found &&
                         formats::format_of(source).traits().keys == formats::Keys::state_dict;
  if (keys_stay)
    return compose(
        "{}{} keeps the keys of the state dict, and the numbers in them; names are in what is "
        "written as accelerate-fsdp, safetensors, ebb, deepspeed and others",
        kNothing, to.name);
  const bool any = std::ranges::any_of(source.parts.optimizers, [](const auto& optimizer) {
    return optimizer.named == formats::NamedBy::order;
  });
  if (by_order && !any && formats::said_by_order(source).by_order == 0)
    return compose("{}no name in it is by order", kNothing);
  return {};
}

Result<Opened> opened_source(const Request& request) {
  formats::PartsSaid named = request.parts;
  named.names = all_names(request);
  Opened opened;
  const bool numbers = request.format->traits().params == formats::Params::numbered;
  if (request.like) {
    EBB_TRY_ASSIGN(opened.order, order_like(request, {.names = named.names}));
    EBB_TRY_ASSIGN(opened.source, open_checkpoint(request.source, request.parts));
    return opened;
  }
  if (numbers && named.names) {
    EBB_TRY_ASSIGN(opened.source, open_checkpoint(request.source, request.parts));
    if (!formats::has_numbers(opened.source->catalog())) {
      opened.order = order_of_names(request);
      return opened;
    }
  }
  EBB_TRY_ASSIGN(opened.source, open_checkpoint(request.source, named));
  return opened;
}

}  // namespace

Result<Opened> open_source(const Request& request) {
  EBB_TRY_ASSIGN(Opened opened, opened_source(request));
  opened.changes.push_back(unused_names(request, opened.source->catalog()));
  std::erase(opened.changes, "");
  return opened;
}

}  // namespace ebb::tools::convert
