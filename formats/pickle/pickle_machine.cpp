#include "ebb/formats/pickle/pickle_machine.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/refuse.h"

namespace ebb::formats {
namespace {

constexpr std::size_t kMaxGlobal = 1024;  // bytes of module and name

// Opcodes that exist but that no checkpoint we read needs: refused by name.
std::string_view refused_name(std::uint8_t opcode) {
  constexpr std::pair<std::uint8_t, std::string_view> kNames[] = {
      {'i', "INST"},   {'o', "OBJ"},          {'P', "PERSID"},
      {'2', "DUP"},    {'d', "DICT"},         {'l', "LIST"},
      {'I', "INT"},    {'L', "LONG"},         {'F', "FLOAT"},
      {'S', "STRING"}, {'V', "UNICODE"},      {'p', "PUT"},
      {'g', "GET"},    {0x82, "EXT1"},        {0x83, "EXT2"},
      {0x84, "EXT4"},  {0x97, "NEXT_BUFFER"}, {0x98, "READONLY_BUFFER"}};
  for (const auto& [refused, name] : kNames)
    if (refused == opcode) return name;
  return "unknown";
}

std::string hex_of(std::uint8_t byte) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text("0x");
  text += kDigits[byte >> 4];
  text += kDigits[byte & 15];
  return text;
}

}  // namespace

Result<PickleGraph> PickleGraph::parse(ByteVector bytes, std::string where, PickleLimits limits) {
  PickleGraph graph;
  graph.where_ = std::move(where);
  graph.bytes_ = std::move(bytes);
  graph.unfold_ = limits.unfold;
  EBB_TRY(PickleMachine(graph, limits).run());
  return graph;
}

Result<PickleGraph> PickleGraph::parse_front(ByteVector bytes, std::string where, End& end,
                                             PickleLimits limits) {
  PickleGraph graph;
  graph.where_ = std::move(where);
  graph.bytes_ = std::move(bytes);
  graph.unfold_ = limits.unfold;
  PickleMachine machine(graph, limits);
  const Result<> done = machine.run_front();
  end = {machine.position(), machine.ran_out()};
  if (!done) return done.error();
  return graph;
}

Result<> PickleMachine::run() {
  EBB_TRY(run_front());
  if (reader_.left() == 0) return {};
  return refuse(Code::corrupt, graph_.where_, reader_.position(),
                compose("{} bytes follow the end of the pickle", reader_.left()));
}

Result<> PickleMachine::run_front() {
  if (reader_.left() == 0) return refuse(Code::corrupt, graph_.where_, 0, "the pickle is empty");
  if (const auto first = text_of(graph_.bytes_).front(); first != '\x80')
    return refuse(Code::unsupported, graph_.where_, 0,
                  "no PROTO opcode: a pickle of protocol 0 or 1, or no pickle at all");
  make_room();
  if (!run_opcodes()) return std::move(*failure_);
  PickleId root = kNoPickle;
  if (!pop(root, "STOP")) return std::move(*failure_);
  if (!stack_.empty() || !marks_.empty())
    return refuse(Code::corrupt, graph_.where_, opcode_at_,
                  compose("STOP leaves {} values on the stack", stack_.size()));
  graph_.root_ = root;
  return {};
}

// Memory that is not touched costs nothing; growing would touch, and copy, all of it again.
void PickleMachine::make_room() {
  constexpr std::size_t kMost = std::size_t{1} << 25;
  const std::size_t expected = std::min(kMost, graph_.bytes_.size() / 6);  // as indexes have them
  graph_.nodes_.reserve(expected);
  graph_.pool_.reserve(expected);
}

bool PickleMachine::refuse_opcode(std::uint8_t opcode) {
  return fail(Code::corrupt, compose("opcode {} ({}) has no place in a checkpoint", hex_of(opcode),
                                     refused_name(opcode)));
}

bool PickleMachine::fail(Code code, std::string_view why) {
  failure_ = refuse(code, graph_.where_, opcode_at_, why);
  return false;
}

bool PickleMachine::cut_off(std::string_view what) {
  ran_out_ = true;
  return fail(Code::corrupt, compose("the pickle ends at byte {} in the middle of {}",
                                     graph_.bytes_.size(), what));
}

bool PickleMachine::line(std::string_view& into) {
  const std::string_view rest = text_of(graph_.bytes_).substr(reader_.position());
  const std::size_t end = rest.find('\n');
  if (end == std::string_view::npos) return cut_off("a name");
  into = rest.substr(0, end);
  return reader_.take(end + 1).has_value();
}

bool PickleMachine::too_many_nodes() {
  return fail(Code::limit, compose("more than {} values, which is the limit", limits_.nodes));
}

bool PickleMachine::nothing_there(std::string_view what) {
  return fail(Code::corrupt, compose("{} finds nothing on the stack", what));
}

bool PickleMachine::memo_gap(std::uint64_t index) {
  return fail(Code::corrupt, compose("memo index {} while only {} are set", index, memo_.size()));
}

bool PickleMachine::memo_full() {
  return fail(Code::limit, compose("more than {} memo entries, which is the limit", limits_.memo));
}

bool PickleMachine::no_mark() { return fail(Code::corrupt, "no MARK was set"); }

bool PickleMachine::few_values(std::size_t count) {
  return fail(Code::corrupt, compose("a tuple of {} finds too few values", count));
}

bool PickleMachine::never_set(std::uint64_t index) {
  return fail(Code::corrupt, compose("memo entry {} was never set", index));
}

bool PickleMachine::long_bytes(std::uint64_t length) {
  if (length > limits_.big_integer)
    return fail(Code::limit,
                compose("an integer of {} bytes; the limit is {}", length, limits_.big_integer));
  if (length > 8) return text_node(PickleKind::big_integer, length);
  const std::optional<ByteView> bytes = reader_.take(length);
  if (!bytes) return cut_off("an integer");
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes->size(); ++i)
    value |= std::uint64_t{std::to_integer<std::uint8_t>((*bytes)[i])} << (8 * i);
  if (length > 0 && length < 8 && (value >> (8 * length - 1)) != 0)
    value |= ~std::uint64_t{0} << (8 * length);
  return integer(std::bit_cast<std::int64_t>(value));
}

bool PickleMachine::text_node(PickleKind kind, std::uint64_t length) {
  const std::uint64_t start = reader_.position();
  ran_out_ = length > reader_.left();
  if (ran_out_ || length > std::numeric_limits<std::uint32_t>::max())
    return fail(Code::corrupt, compose("a {} of {} bytes, but the pickle ends at byte {}",
                                       name_of(kind), length, graph_.bytes_.size()));
  const std::string_view text = text_of(*reader_.take(length));
  if (kind == PickleKind::string) {
    for (std::size_t i = ascii_length(text); i < text.size();) {
      const std::size_t step = utf8_length(text.substr(i));
      if (step == 0) return fail(Code::corrupt, "a string is not valid UTF-8");
      i += step;
    }
  }
  return push({.kind = kind, .a = static_cast<std::uint32_t>(length), .n = start});
}

bool PickleMachine::container_of(PickleKind kind, std::span<const PickleId> items) {
  if (!push({.kind = kind})) return false;
  return items.empty() || extend(stack_.back(), items);
}

bool PickleMachine::too_many_items() {
  return fail(Code::limit, "containers of more than 2^32 values in all, which is the limit");
}

// A container that outgrows its room moves to the end of the pool, with as much room again: what is
// copied stays in proportion to what was added, in any order of adding.
bool PickleMachine::extend(PickleId container, std::span<const PickleId> items) {
  std::vector<PickleId>& pool = graph_.pool_;
  Node& at = graph_.nodes_[container];
  Room room = std::bit_cast<Room>(at.n);
  const std::uint64_t count = std::uint64_t{at.a} + items.size();
  if (count > room.capacity) {
    const std::uint64_t capacity =
        at.a == 0 ? count : std::max<std::uint64_t>(count, std::uint64_t{2} * room.capacity);
    if (pool.size() + capacity > most_items) return too_many_items();
    const auto moved = static_cast<std::uint32_t>(pool.size());
    pool.resize(pool.size() + capacity, kNoPickle);
    std::copy_n(pool.begin() + room.first, at.a, pool.begin() + moved);
    room = {moved, static_cast<std::uint32_t>(capacity)};
    at.n = std::bit_cast<std::uint64_t>(room);
  }
  std::copy(items.begin(), items.end(), pool.begin() + room.first + at.a);
  at.a = static_cast<std::uint32_t>(count);
  return true;
}

bool PickleMachine::object(PickleId callee, PickleId args) {
  return push({.kind = PickleKind::object,
               .a = callee,
               .n = std::bit_cast<std::uint64_t>(Built{args, kNoPickle})});
}

// Writers hand each container and each text to one call only, so that all copies together are no
// longer than the stream; through the memo one could be copied at every byte.
bool PickleMachine::copy(std::uint64_t count) {
  copied_ += count;
  if (copied_ <= graph_.bytes_.size()) return true;
  return fail(Code::limit, compose("one container or text is copied again and again: more than {} "
                                   "items, as many as the pickle has bytes",
                                   graph_.bytes_.size()));
}

bool PickleMachine::own_bytes(std::string bytes) {
  graph_.owned_.push_back(std::move(bytes));
  return push(
      {.kind = PickleKind::bytes, .text = PickleGraph::Text::owned, .n = graph_.owned_.size() - 1});
}

bool PickleMachine::global(std::string_view module, std::string_view name) {
  if (module.size() + name.size() > kMaxGlobal)
    return fail(Code::limit, compose("a name of {} bytes; the limit is {}",
                                     module.size() + name.size(), kMaxGlobal));
  std::string full(module);
  full += '.';
  full += name;
  const auto [entry, fresh] =
      names_.try_emplace(full, static_cast<std::uint32_t>(graph_.names_.size()));
  if (fresh) {
    folds_.push_back(fold_of(full));
    graph_.names_.push_back({std::move(full), opcode_at_});
  }
  return push({.kind = PickleKind::global, .a = entry->second});
}

}  // namespace ebb::formats
