// The default screen: what the checkpoint is, whether it is complete, who holds which rows of what.
#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <span>

#include "ebb/formats/catalog/value_alike.h"
#include "ebb/formats/conversion/momentum.h"
#include "ebb/formats/conversion/wrappers.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/name_table.h"
#include "ebb/formats/pickle/known_globals.h"
#include "ebb/formats/registry.h"
#include "ebb/formats/state_dict/names.h"
#include "ebb/libswap/read/in_parallel.h"
#include "tools/ckpt_inspect/modes.h"
#include "tools/cli/beside.h"
#include "tools/cli/checkpoints.h"
#include "tools/cli/text.h"

namespace ebb::tools::inspect {

namespace {

using Setting = std::pair<std::string, Value>;

struct Totals {
  std::uint64_t params = 0;
  std::map<std::string_view, std::uint64_t> states;
  std::map<std::string_view, std::uint64_t> dtypes;
  std::uint64_t elements = 0;
  std::uint64_t bytes = 0;
  std::vector<std::uint32_t> files;  // all, or those that the selected rank wrote into
  std::uint64_t file_bytes = 0;
};

// What a module keeps of its own in its state dict, as Transformer Engine's do: no parameter.
bool is_extra_state(std::string_view name) {
  return name.substr(name.rfind('.') + 1) == "_extra_state";
}

// Numbers of an optimizer that lies beside its model: they count that model's parameters.
std::set<std::string_view> numbers_of_others(const Catalog& catalog) {
  const bool model = std::ranges::any_of(
      catalog.tensors, [](const TensorEntry& tensor) { return tensor.state == "param"; });
  return model ? formats::mere_numbers(catalog) : std::set<std::string_view>();
}

// Names that a format's own conventions give may be places; then parameters are counted by the
// names that mean the same everywhere.
std::uint64_t parameters_of(const View& view) {
  const Catalog& catalog = view.catalog();
  const auto names = formats::format_of(catalog).common_names(catalog);
  if (!names) {
    const std::set<std::string_view> numbers = numbers_of_others(catalog);
    std::uint64_t count = 0;
    std::set<std::string> wrapped;  // a model's names may have words that its optimizer's have not
    std::string_view last;          // tensors of one name stand together
    for (const TensorEntry* tensor : view.tensors) {
      const bool none = tensor->state == "tensor" || is_extra_state(tensor->name) ||
                        numbers.contains(tensor->name);
      if (none || (count != 0 && last == tensor->name)) continue;
      ++count;
      last = tensor->name;
      if (std::string bare = formats::bare_name(last); bare != last)
        wrapped.insert(std::move(bare));
    }
    if (wrapped.empty()) return count;
    for (const TensorEntry* tensor : view.tensors)
      if (tensor->state != "tensor" && wrapped.erase(tensor->name) != 0) --count;
    return count;
  }
  formats::NameTable distinct;
  for (const TensorEntry* tensor : view.tensors) {
    const auto& [name, state] =
        names->tensors[static_cast<std::size_t>(tensor - catalog.tensors.data())];
    if (state != "tensor" && !is_extra_state(name)) distinct.insert(name);
  }
  return distinct.size();
}

std::vector<std::uint32_t> files_of(const View& view) {
  const Catalog& catalog = view.catalog();
  std::vector<std::uint32_t> files;
  if (!view.selection.rank) {
    files.resize(catalog.files.size());
    std::iota(files.begin(), files.end(), 0);
    return files;
  }
  std::set<std::uint32_t> its;
  for (std::uint32_t file = 0; file < catalog.files.size(); ++file)
    if (catalog.files[file].rank == *view.selection.rank) its.insert(file);
  for (const TensorEntry& tensor : catalog.tensors)
    for (const Chunk& chunk : tensor.chunks)
      if (chunk.holder == *view.selection.rank) its.insert(chunk.file);
  return {its.begin(), its.end()};
}

Totals totals_of(const View& view) {
  Totals totals;
  totals.params = parameters_of(view);
  for (const TensorEntry* tensor : view.tensors) {
    ++totals.states[tensor->state];
    ++totals.dtypes[name_of(tensor->dtype)];
    totals.elements += elements_of(*tensor, view.selection);
    totals.bytes += bytes_of(*tensor, view.selection);
  }
  totals.files = files_of(view);
  for (const std::uint32_t file : totals.files)
    totals.file_bytes += view.catalog().files[file].size;
  return totals;
}

std::string counts_text(const std::map<std::string_view, std::uint64_t>& counts) {
  std::vector<std::string> words;
  for (const auto& [name, count] : counts)
    words.push_back(compose("{} {}", printable(name, 40), count_text(count)));
  return joined(words);
}

// "param" first: it is what everybody looks for.
std::string states_text(std::map<std::string_view, std::uint64_t> states) {
  const auto param = states.extract("param");
  std::string rest = counts_text(states);
  if (param.empty()) return rest;
  return "param " + count_text(param.mapped()) + (rest.empty() ? "" : ", " + rest);
}

// What the flags have left; "" where that is everything.
std::string selection_words(const Selection& selection) {
  std::vector<std::string> words;
  if (selection.rank) words.push_back(compose("what rank {} wrote", index_of(*selection.rank)));
  for (const std::string& glob : selection.include) words.push_back("-k " + printable(glob, 80));
  for (const std::string& state : selection.states)
    words.push_back("--state " + printable(state, 40));
  return joined(words);
}

std::string selected_text(const View& view) {
  const std::string words = selection_words(view.selection);
  if (words.empty()) return {};
  return labelled(
      "selected",
      words + (view.selection.rank ? ": holds, states, dtypes, files" : ": holds, states, dtypes") +
          " and the table; all else is of the complete checkpoint");
}

std::string title(const View& view) {
  const Catalog& catalog = view.catalog();
  std::string out = printable(view.path) + ": " + catalog.format;
  if (!catalog.producer.empty() && catalog.producer != catalog.format)
    out += ", written by " + printable(catalog.producer);
  if (catalog.step) out += compose(", step {}", *catalog.step);
  return out + "\n";
}

// What is kept, an average or a sum, is said beside the rate. Ebb's stores call the two `momentum`
// and `beta`.
struct Momentum {
  const Setting* form = nullptr;
  const Setting* rate = nullptr;
};
Momentum momentum_of(const GroupEntry& group) {
  Momentum momentum;
  for (const Setting& setting : group.settings) {
    const auto& [name, value] = setting;
    const bool word = name == "momentum" && value.kind == Value::Kind::string;
    if (word || name == formats::kMomentumConvention)
      momentum.form = &setting;
    else if (name == "beta" || (name == "momentum" && momentum.rate == nullptr))
      momentum.rate = &setting;
  }
  return momentum.form != nullptr && momentum.rate != nullptr ? momentum : Momentum();
}

// What people ask for first, then the rest as it is stored.
std::vector<const Setting*> settings_to_show(const GroupEntry& group) {
  constexpr std::array<std::string_view, 8> kFirst = {
      "lr", "momentum", "beta", "betas", "weight_decay", "nesterov", "ns_steps", "eps"};
  const auto place = [&](const Setting* setting) {
    return std::ranges::find(kFirst, setting->first) - kFirst.begin();
  };
  std::vector<const Setting*> settings;
  const Setting* const form = momentum_of(group).form;
  for (const Setting& setting : group.settings) {
    const bool said = setting.first == "optimizer" && setting.second.text == group.optimizer;
    if (setting.second.kind != Value::Kind::none && !said && &setting != form)
      settings.push_back(&setting);
  }
  std::ranges::stable_sort(settings, {}, place);
  return settings;
}

std::string setting_text(const GroupEntry& group, const Setting& setting) {
  const std::string value = value_text(setting.second);
  const Momentum momentum = momentum_of(group);
  if (momentum.rate != &setting) return compose("{}={}", printable(setting.first, 30), value);
  return compose("momentum={} ({})", value, value_text(momentum.form->second));
}

// Where one group says whose it is, those without parameters have none.
std::string params_text(const GroupEntry& group, const std::vector<GroupEntry>& all) {
  if (!group.params.empty()) return plural(group.params.size(), "parameter");
  return formats::list_params(all) ? "no parameters" : "parameters not recorded";
}

std::string group_text(const GroupEntry& group, const std::vector<GroupEntry>& all) {
  std::string out =
      group.optimizer.empty() ? "(optimizer not recorded)" : printable(group.optimizer, 40);
  out += ", " + params_text(group, all);
  std::size_t left_out = 0;
  std::string settings;
  for (const Setting* setting : settings_to_show(group)) {
    const std::string item = " " + setting_text(group, *setting);
    if (out.size() + settings.size() + item.size() > 80)
      ++left_out;
    else
      settings += item;
  }
  if (!settings.empty()) out += ":" + settings;
  return left_out == 0 ? out : compose("{} and {} more", out, count_text(left_out));
}

std::string groups_text(const View& view) {
  constexpr std::size_t kGroups = 4;
  const auto& groups = view.catalog().groups;
  const bool optimizer = !formats::weights_only({view.catalog()});
  if (groups.empty()) return optimizer ? labelled("groups", "none recorded") : "";
  std::string out;
  for (std::size_t i = 0; i < std::min(groups.size(), kGroups); ++i)
    out += labelled(compose("group {}", i), group_text(groups[i], groups));
  if (groups.size() > kGroups)
    out += labelled("", plural(groups.size() - kGroups, "more group") + ": --groups");
  return out;
}

// "layers.0.w" and "layers.11.w" -> "layers.#.w": a run of digits at the start or behind a dot.
void append_pattern(std::string& out, std::string_view name) {
  const std::size_t before = out.size();
  out.resize(before + name.size());
  char* to = out.data() + before;
  char last = '.';  // '#': in such a run
  for (const char c : name) {
    const bool counts = c >= '0' && c <= '9' && (last == '.' || last == '#');
    if (!counts)
      *to++ = c;
    else if (last == '.')
      *to++ = '#';
    last = counts ? '#' : c == '#' ? ' ' : c;
  }
  out.resize(static_cast<std::size_t>(to - out.data()));
}

std::string pattern_of(std::string_view name) {
  std::string out;
  append_pattern(out, name);
  return out;
}

std::vector<Rank> shown_ranks(const View& view) {
  constexpr std::uint32_t kRanks = 6;
  std::vector<Rank> ranks;
  if (view.selection.rank) return {*view.selection.rank};
  const std::uint32_t world = view.catalog().world;
  for (std::uint32_t r = 0; r < std::min(world, kRanks); ++r) ranks.push_back(Rank{r});
  if (world > kRanks) ranks.back() = Rank{world - 1};
  return ranks;
}

// Writes the same bytes for tensors whose names differ only in numbers and that lie alike at these
// ranks.
void write_likeness(std::string& key, const TensorEntry& tensor, const std::vector<Rank>& ranks) {
  const auto add = [&](std::span<const std::uint64_t> numbers) {
    key.append(reinterpret_cast<const char*>(numbers.data()), numbers.size_bytes());
  };
  key.clear();
  append_pattern(key, tensor.name);
  key.append(1, '\0').append(tensor.state).append(1, '\0').append(name_of(tensor.dtype));
  add(tensor.shape);
  for (const Chunk& chunk : tensor.chunks) {
    if (std::ranges::find(ranks, chunk.holder) == ranks.end()) continue;
    const std::uint64_t holder = index_of(chunk.holder);
    add({&holder, 1});
    add(chunk.box.offset);
    add(chunk.box.extent);
  }
}

struct Line {
  const TensorEntry* first;
  std::uint64_t tensors = 0;
};

std::vector<Line> lines_of(const View& view, const std::vector<Rank>& ranks) {
  std::vector<Line> lines;
  formats::NameTable line_of;
  std::deque<std::string> keys;
  std::string key;
  for (const TensorEntry* tensor : view.tensors) {
    write_likeness(key, *tensor, ranks);
    auto number = line_of.find(key);
    if (!number) {
      number = line_of.insert(keys.emplace_back(key)).number;
      lines.push_back({tensor});
    }
    ++lines[*number].tensors;
  }
  return lines;
}

// Tensors that are alike make one line.
std::string holders_text(const View& view) {
  const std::vector<Rank> ranks = shown_ranks(view);
  std::vector<Column> columns = {{"tensor"}, {"state"}, {"dtype"}, {"shape"}};
  for (const Rank rank : ranks) columns.push_back({compose("rank {}", index_of(rank))});
  Table table(std::move(columns));
  const std::vector<Line> lines = lines_of(view, ranks);
  const std::size_t shown = shown_of(view, lines.size(), 16);
  for (std::size_t i = 0; i < shown; ++i) {
    const auto& [tensor, count] = lines[i];
    std::vector<std::string> cells = identity_cells(*tensor);
    if (count > 1) cells[0] = pattern_of(tensor->name) + " x" + count_text(count);
    for (const Rank rank : ranks) cells.push_back(held_text(*tensor, rank));
    table.add(std::move(cells));
  }
  std::string out = "\n  who holds which rows (el: elements)\n" + table.text();
  if (view.catalog().world > ranks.size() && !view.selection.rank)
    out += "  (" + plural(view.catalog().world - ranks.size(), "rank") +
           " between left out: --shards or --rank R)\n";
  if (shown < lines.size())
    out += compose("  ... {}: --limit {}, or -k GLOB\n", plural(lines.size() - shown, "more line"),
                   lines.size());
  return out;
}

// What takes a look at every tensor.
struct Looks {
  Totals totals;
  Result<> coverage;
  std::string holders;  // as text only
};

// None of them needs another: where there are many tensors, two threads share them. One that cannot
// be started leaves them all to this one.
Looks looks_of(const View& view) {
  constexpr std::size_t kMany = 1000;
  const bool lists_holders = view.output == Output::text && !view.tensors.empty();
  Looks looks;
  const std::array<std::function<void()>, 3> all = {
      [&] { looks.totals = totals_of(view); },
      [&] { looks.coverage = prove_coverage(view.catalog()); },
      [&] { looks.holders = lists_holders ? holders_text(view) : ""; }};
  std::atomic<std::size_t> next = 0;
  const auto work = [&](const std::atomic<bool>&) -> Result<> {
    for (std::size_t i = next++; i < all.size(); i = next++) all[i]();
    return {};
  };
  static_cast<void>(libswap::in_parallel(view.tensors.size() < kMany ? 1 : 2, work));
  return looks;
}

std::string unsafe_text(const Console& console, const std::vector<formats::UnsafeValue>& values) {
  constexpr std::size_t kShown = 4;
  std::string out;
  for (std::size_t i = 0; i < std::min(values.size(), kShown); ++i)
    out += labelled("unsafe", console.bad(json_string(values[i].name)) +
                                  ": Python may call it when it loads value " +
                                  json_string(values[i].key));
  if (values.size() > kShown)
    out += labelled("", plural(values.size() - kShown, "more such value") + ": --verify");
  return out;
}

std::string beside_text(const Catalog& catalog) {
  std::vector<std::string> lines = lines_of_missed(catalog);
  for (std::string line : {line_of_job(catalog), line_of_harmless(catalog)})
    if (!line.empty()) lines.push_back(std::move(line));
  std::string out;
  for (const std::string& line : lines) out += labelled(out.empty() ? "beside" : "", line);
  return out;
}

std::string summary_text(const Console& console, const View& view, const Looks& looks) {
  const Catalog& catalog = view.catalog();
  const auto& [totals, coverage, holders] = looks;
  std::string out = title(view);
  out += selected_text(view);
  out += labelled("holds",
                  compose("{}{}, {}, {}, {}", (view.selection.rank ? "parts of " : ""),
                          plural(totals.params, "parameter"), plural(view.tensors.size(), "tensor"),
                          plural(totals.elements, "element"), bytes_text(totals.bytes)));
  out += labelled("states", states_text(totals.states));
  out += labelled("dtypes", counts_text(totals.dtypes));
  out += labelled("ranks",
                  compose("{}{}, padding {}", count_text(catalog.world),
                          (catalog.partition.empty() ? "" : ", " + printable(catalog.partition)),
                          plural(catalog.padding_elems, "element")));
  out += labelled("files", count_text(totals.files.size()) + ", " + bytes_text(totals.file_bytes));
  out += labelled(
      "complete",
      coverage ? console.good("yes") + (catalog.unread.empty() ? "" : ", as far as it is read") +
                     ": every element of every tensor is stored exactly once (index only; "
                     "--verify reads the data)"
               : console.bad("NO") + ": " + printable(coverage.error().message));
  out += unread_text(view);
  out += unsafe_text(console, formats::unsafe_values(catalog));
  out += groups_text(view);
  if (!catalog.values.empty())
    out += labelled("values", count_text(catalog.values.size()) + " (--tensors --json lists them)");
  out += beside_text(catalog);
  for (const std::string& note : catalog.notes) out += labelled("note", printable(note));
  return out + holders;
}

std::string summary_json(const View& view, const Looks& looks) {
  const Catalog& catalog = view.catalog();
  const auto& [totals, coverage, holders] = looks;
  JsonWriter json;
  open_document(json, "summary");
  json.put("path", view.path).put("format", catalog.format).put("producer", catalog.producer);
  json.put("step", catalog.step).put("world", catalog.world).put("partition", catalog.partition);
  json.put("padding_elems", catalog.padding_elems).put("parameters", totals.params);
  json.put("tensors", view.tensors.size()).put("elements", totals.elements);
  json.put("bytes", totals.bytes);
  const auto counts = [&](std::string_view name, const auto& map) {
    json.key(name).open_object();
    for (const auto& [key, count] : map) json.put(key, count);
    json.close_object();
  };
  counts("states", totals.states);
  counts("dtypes", totals.dtypes);
  json.key("files").open_list();
  for (const std::uint32_t number : totals.files) {
    const formats::FileEntry& file = catalog.files[number];
    json.open_object().put("name", file.name).put("size", file.size).put("rank", file.rank);
    json.close_object();
  }
  json.close_list().put("groups", catalog.groups.size()).put("values", catalog.values.size());
  write_beside(json, catalog);
  json.put("notes", catalog.notes).key("unsafe").open_list();
  for (const formats::UnsafeValue& value : formats::unsafe_values(catalog))
    json.open_object().put("value", value.key).put("name", value.name).close_object();
  json.close_list().put("complete", coverage.has_value());
  if (!coverage) json.put("incomplete_because", coverage.error().message);
  write_unread(json, view);
  if (const std::string selected = selection_words(view.selection); !selected.empty())
    json.put("selected", selected);
  json.close_object();
  return json.take();
}

}  // namespace

Result<Exit> show_summary(Console& console, const View& view) {
  const Looks looks = looks_of(view);
  console.print(view.output == Output::json ? summary_json(view, looks)
                                            : summary_text(console, view, looks));
  if (looks.coverage) return Exit::success;
  Error error = looks.coverage.error();
  error.hint = "ckpt-inspect --verify " + view.path + " lists everything that is missing";
  return with_whole_neighbour(std::move(error), view.path);
}

}  // namespace ebb::tools::inspect
