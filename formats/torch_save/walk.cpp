#include "ebb/formats/torch_save/walk.h"

#include <algorithm>
#include <set>

#include "ebb/formats/catalog/key_path.h"
#include "ebb/formats/catalog/value_alike.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/name_table.h"
#include "ebb/formats/torch/archive.h"
#include "ebb/formats/torch/tensor.h"

namespace ebb::formats::torch_save {
namespace {

constexpr std::size_t kMaxDepth = 256;
constexpr std::uint64_t kMaxLeaves = 1u << 24;
constexpr std::uint64_t kPartBytes = 128;  // about what an entry takes beside its path

bool is_container(const PickleGraph& graph, PickleId id) {
  return graph.is(id, PickleKind::dict) || graph.is(id, PickleKind::list) ||
         graph.is(id, PickleKind::tuple);
}

// Keys of one dict; false: it was there.
class SeenItems {
 public:
  bool insert(std::string_view word) { return words_.insert(word); }
  bool insert(std::int64_t number) {
    const std::size_t before = numbers_.size();
    numbers_.insert(numbers_.end(), number);  // mostly they ascend
    return numbers_.size() > before;
  }

 private:
  SeenKeys words_;
  std::set<std::int64_t> numbers_;  // no hash table: integers that collide in one are easily found
};

}  // namespace

Result<> StateWalk::run(const PickleGraph& graph, std::string where, std::vector<PathItem> above,
                        Visitor& visitor) {
  graph_ = &graph;
  where_ = std::move(where);
  visitor_ = &visitor;
  path_ = std::move(above);
  path_bytes_ = joined(path_).size();
  leaves_ = 0;
  return walk(graph.root());
}

Error StateWalk::bad(Code code, std::string_view why) const {
  std::string message = where_ + ": ";
  if (!path_.empty()) message += json_string(joined(path_)) + ": ";
  return Error{code, message + std::string(why)};
}

Result<> StateWalk::walk(PickleId id) {
  if (++leaves_ > kMaxLeaves)
    return bad(Code::limit, "more than 16777216 parts in one object, which is the limit");
  if (path_.size() >= kMaxDepth)
    return bad(Code::limit, "nested deeper than 256 levels, or inside itself");
  EBB_TRY(graph_->charge(kPartBytes + 2 * path_bytes_ + path_.size() * sizeof(PathItem)));
  if (graph_->is(id, PickleKind::dict)) return walk_dict(id);
  const bool sequence = graph_->is(id, PickleKind::list) || graph_->is(id, PickleKind::tuple);
  if (sequence && holds_more(id)) return walk_sequence(id);
  return hand_out(id);
}

// A list is entered when something in it could hold tensors; [0.9, 0.95] is a value.
bool StateWalk::holds_more(PickleId id) const {
  const std::span<const PickleId> items = graph_->items(id);
  return std::any_of(items.begin(), items.end(), [&](PickleId item) {
    return is_container(*graph_, item) || is_torch_tensor(*graph_, item);
  });
}

Result<> StateWalk::walk_dict(PickleId id) {
  const std::span<const PickleId> entries = graph_->items(id);
  SeenItems seen;
  std::vector<PathItem> items;
  items.reserve(entries.size() / 2);  // `seen` has views of them
  bool numbers = entries.empty();
  for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
    EBB_TRY_ASSIGN(PathItem item, item_of(entries[i]));
    items.push_back(std::move(item));
    const auto* word = std::get_if<std::string>(&items.back());
    if (!(word ? seen.insert(*word) : seen.insert(std::get<std::int64_t>(items.back()))))
      return bad(Code::corrupt,
                 "a dict holds the key " + json_string(joined({items.back()})) + " twice");
    numbers |= word == nullptr;
  }
  if (numbers) EBB_TRY(visitor_->container(path_, Value::Kind::dict));
  for (std::size_t i = 0; i < items.size(); ++i)
    EBB_TRY(enter(std::move(items[i]), entries[2 * i + 1]));
  return {};
}

// A key that is neither text nor a whole number is spelled as Python does.
Result<PathItem> StateWalk::item_of(PickleId key) {
  if (graph_->is(key, PickleKind::string)) return PathItem(std::string(graph_->text(key)));
  if (graph_->is(key, PickleKind::integer)) return PathItem(graph_->integer(key));
  auto value = value_of(*graph_, key, nullptr);
  if (!value) return std::move(value).error().about(json_string(joined(path_)));
  if (first_odd_key_.empty()) first_odd_key_ = key_text(*value);
  ++odd_key_count_;
  return PathItem(key_text(*value));
}

Result<> StateWalk::walk_sequence(PickleId id) {
  if (graph_->is(id, PickleKind::tuple)) EBB_TRY(visitor_->container(path_, Value::Kind::tuple));
  const std::span<const PickleId> items = graph_->items(id);
  for (std::size_t i = 0; i < items.size(); ++i)
    EBB_TRY(enter(static_cast<std::int64_t>(i), items[i]));
  return {};
}

Result<> StateWalk::enter(PathItem item, PickleId id) {
  const auto* text = std::get_if<std::string>(&item);
  const std::uint64_t bytes = text == nullptr ? sizeof(std::int64_t) : text->size() + 1;
  path_bytes_ += bytes;
  path_.push_back(std::move(item));
  EBB_TRY(walk(id));
  path_.pop_back();
  path_bytes_ -= bytes;
  return {};
}

Result<> StateWalk::hand_out(PickleId id) {
  if (is_torch_tensor(*graph_, id)) return visitor_->tensor(path_, id);
  auto value = value_of(*graph_, id, nullptr);
  if (!value) return std::move(value).error().about(json_string(joined(path_)));
  return visitor_->value(path_, std::move(*value));
}

void StateWalk::add_notes(Catalog& catalog) const {
  if (odd_key_count_ > 0)
    catalog.notes.push_back(compose(
        "{} keys of dicts are neither text nor whole numbers: they are read as text, {}{}",
        odd_key_count_, json_string(first_odd_key_), odd_key_count_ == 1 ? "" : " and others"));
  const auto is_inert = [](const ValueEntry& entry) {
    return entry.value.kind == Value::Kind::object;
  };
  const auto inert = std::ranges::count_if(catalog.values, is_inert);
  if (inert == 0) return;
  const std::string first = printable(std::ranges::find_if(catalog.values, is_inert)->value.text);
  catalog.notes.push_back(
      inert == 1 ? compose("1 value is an object ({}): known by the name of its class only; "
                           "nothing was executed",
                           first)
                 : compose("{} values are objects ({}, ...): known by the names of their classes "
                           "only; nothing was executed",
                           inert, first));
}

}  // namespace ebb::formats::torch_save
