#include <algorithm>
#include <array>
#include <bit>

#include "ebb/formats/pickle/pickle.h"

namespace ebb::formats {

std::string_view name_of(PickleKind kind) {
  constexpr std::array<std::string_view, 14> kNames = {
      "None",  "bool", "int",  "int", "float",       "str",    "bytes",
      "tuple", "list", "dict", "set", "global name", "object", "persistent id"};
  return kNames[static_cast<std::size_t>(kind)];
}

double PickleGraph::real(PickleId id) const {
  return std::bit_cast<double>(node(id, PickleKind::real).n);
}

std::optional<std::uint64_t> PickleGraph::offset(PickleId id) const {
  const Node& at = nodes_[id];
  if (at.kind == PickleKind::global) return names_[at.a].offset;
  const bool text = at.kind == PickleKind::string || at.kind == PickleKind::bytes;
  return text && at.text == Text::in_stream ? std::optional(at.n) : std::nullopt;
}

PickleId PickleGraph::find(PickleId dict, std::string_view key) const {
  if (dict == kNoPickle || !is(dict, PickleKind::dict)) return kNoPickle;
  const std::span<const PickleId> entries = items(dict);
  for (std::size_t i = 0; i + 1 < entries.size(); i += 2)
    if (is(entries[i], PickleKind::string) && text(entries[i]) == key) return entries[i + 1];
  return kNoPickle;
}

PickleId PickleGraph::find(PickleId dict, PickleName& key) const {
  if (dict == kNoPickle || !is(dict, PickleKind::dict)) return kNoPickle;
  const std::span<const PickleId> entries = items(dict);
  for (std::size_t i = 0; i + 1 < entries.size(); i += 2)
    if (entries[i] == key.last) return entries[i + 1];
  for (std::size_t i = 0; i + 1 < entries.size(); i += 2)
    if (is(entries[i], PickleKind::string) && text(entries[i]) == key.text) {
      key.last = entries[i];
      return entries[i + 1];
    }
  return kNoPickle;
}

PickleId PickleGraph::find(PickleId dict, std::int64_t key) const {
  if (dict == kNoPickle || !is(dict, PickleKind::dict)) return kNoPickle;
  const std::span<const PickleId> entries = items(dict);
  for (std::size_t i = 0; i + 1 < entries.size(); i += 2)
    if (is(entries[i], PickleKind::integer) && integer(entries[i]) == key) return entries[i + 1];
  return kNoPickle;
}

// Honest streams spend a few bytes for each byte they have; a number costs a Value of 150.
std::uint64_t PickleGraph::allowance() const { return 32 * std::uint64_t{bytes_.size()}; }

Result<> PickleGraph::charge(std::uint64_t bytes) const {
  const std::uint64_t budget = allowance() + unfold_;
  if (bytes > budget - charged_)
    return Error{Code::limit, compose("{}: its values refer to each other until they take more "
                                      "than {} bytes, which is the limit",
                                      where_, budget)};
  charged_ += bytes;
  return {};
}

std::uint64_t PickleGraph::unfolded() const { return charged_ - std::min(charged_, allowance()); }

}  // namespace ebb::formats
