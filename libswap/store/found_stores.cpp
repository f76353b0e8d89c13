#include "ebb/libswap/store/found_stores.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "ebb/formats/native/store_files.h"
#include "ebb/libswap/store/io_source.h"

namespace ebb::libswap {
namespace {

using formats::ByteReader;
using formats::ByteVector;
using formats::native::MetaScan;
using formats::native::RankSurvey;
using formats::native::Survey;

// Closes its file.
class OwningSource : public IoSource {
 public:
  using IoSource::IoSource;
  ~OwningSource() override { static_cast<void>(io_.backend().close(file_).has_value()); }
};

class StoreTree : public formats::SourceTree {
 public:
  StoreTree(IoQueue& io, const fs::path& store) : io_(io), store_(store), root_(store.string()) {}

  Result<> fill() {
    EBB_TRY_ASSIGN(const auto folders, io_.backend().list(store_));
    for (const std::string& folder : folders) {
      if (!formats::native::is_rank_directory(folder)) continue;
      EBB_TRY_ASSIGN(const bool no_folder, io_.backend().is_file(store_ / folder));
      if (no_folder) continue;
      EBB_TRY_ASSIGN(const auto files, io_.backend().list(store_ / folder));
      for (const std::string& file : files) {
        const std::string name = folder + "/" + file;
        EBB_TRY_ASSIGN(const bool regular, io_.backend().is_file(store_ / name));
        if (!regular) continue;
        EBB_TRY_ASSIGN(const auto source, open(name));
        entries_.push_back({name, source->size()});
      }
    }
    return {};
  }
  std::string_view root() const override { return root_; }
  const std::vector<Entry>& entries() const override { return entries_; }
  Result<std::shared_ptr<const formats::ByteSource>> open(std::string_view name) const override {
    const fs::path path = store_ / name;
    EBB_TRY_ASSIGN(const FileId file, io_.backend().open(path, {}));
    const auto info = io_.backend().info(file);
    const std::uint64_t size = info ? info->size : 0;
    auto source = std::make_shared<const OwningSource>(io_, file, path.string(), size);
    if (!info) return info.error();
    return std::shared_ptr<const formats::ByteSource>(std::move(source));
  }

 private:
  IoQueue& io_;
  fs::path store_;
  std::string root_;
  std::vector<Entry> entries_;
};

// The stores of one directory that hold anything.
Result<> look(IoQueue& io, const fs::path& directory, const std::optional<Uuid>& only,
              FoundStores& found) {
  EBB_TRY_ASSIGN(const auto folders, io.backend().list(directory));
  for (const std::string& folder : folders) {
    const auto uuid = formats::native::store_in_directory_name(folder);
    if (!uuid || (only && uuid != only)) continue;
    EBB_TRY_ASSIGN(const bool file, io.backend().is_file(directory / folder));
    if (file) continue;
    StoreTree tree(io, directory / folder);
    EBB_TRY(tree.fill());
    if (tree.entries().empty()) continue;
    EBB_TRY_ASSIGN(Survey survey, formats::native::survey_store(tree, ""));
    found.names.push_back(*uuid);
    found.surveys.push_back(std::move(survey));
  }
  return {};
}

// Stores that have lost their names, so that nobody resumes from them: in words. What cannot be
// looked at is none.
std::vector<std::string> misnamed_in(IoQueue& io, const fs::path& directory) {
  std::vector<std::string> found;
  const auto names = io.backend().list(directory);
  if (!names) return found;
  for (const std::string& name : *names) {
    if (formats::native::store_in_directory_name(name) ||
        formats::native::store_in_removed_name(name))
      continue;
    const auto folder = io.backend().is_directory(directory / name);
    if (!folder || !*folder) continue;
    StoreTree tree(io, directory / name);
    if (!tree.fill() || tree.entries().empty()) continue;
    const auto survey = formats::native::survey_store(tree, "");
    if (!survey || !survey->complete() || survey->committed() == 0) continue;
    found.push_back(compose("{} is the store that was called {}", (directory / name).string(),
                            formats::native::store_directory(survey->superblock().store)));
  }
  return found;
}

Result<FoundStores> look(IoQueue& io, const Search& search, Part part) {
  FoundStores found;
  if (part == Part::looks) EBB_TRY(look(io, search.directory, search.only, found));
  if (part == Part::looks && !search.only) found.misnamed = misnamed_in(io, search.directory);
  for (const fs::path& source : search.sources) {
    EBB_TRY_ASSIGN(const bool reached, io.backend().exists(source));
    if (reached) EBB_TRY(look(io, source, search.only, found));
  }
  return found;
}

// --- a survey on its way to the other ranks: what decisions need of it. Both ends are this code,
// in one run: what does not decode is a broken invariant.

void put_text(ByteVector& out, std::string_view text) {
  formats::append_le(out, static_cast<std::uint64_t>(text.size()));
  formats::append_text(out, text);
}

template <typename T>
T take(ByteReader& in) {
  const auto number = in.number<T>();
  EBB_CHECK(number.has_value());
  return *number;
}

std::string take_text(ByteReader& in) {
  const auto text = in.take(take<std::uint64_t>(in));
  EBB_CHECK(text.has_value());
  return std::string(formats::text_of(*text));
}

enum class Seen : std::uint8_t { no_file, nothing_made, damaged, scanned };

Seen seen(const RankSurvey& rank) {
  if (rank.scan) return Seen::scanned;
  if (!rank.missing) return Seen::damaged;
  return rank.problem->code == Code::incomplete ? Seen::no_file : Seen::nothing_made;
}

void put(ByteVector& out, const MetaScan& scan) {
  const formats::native::Superblock& s = scan.superblock;
  formats::append_bytes(out, s.store);
  formats::append_bytes(out, s.parent);
  for (const std::uint64_t number :
       {std::uint64_t{index_of(s.rank)}, std::uint64_t{s.world}, s.tile_bytes, s.layout_digest,
        std::uint64_t{scan.regions.size()}})
    formats::append_le(out, number);
  for (const auto& region : scan.regions) {
    formats::append_le(out, region.header.generation);
    formats::append_le(out, static_cast<std::uint8_t>(region.header.is_void));
    formats::append_le(out, static_cast<std::uint8_t>(region.damage.has_value()));
  }
}

MetaScan take_scan(ByteReader& in) {
  MetaScan scan;
  scan.superblock.store = take<Uuid>(in);
  scan.superblock.parent = take<Uuid>(in);
  scan.superblock.rank = Rank{static_cast<std::uint32_t>(take<std::uint64_t>(in))};
  scan.superblock.world = static_cast<std::uint32_t>(take<std::uint64_t>(in));
  scan.superblock.tile_bytes = take<std::uint64_t>(in);
  scan.superblock.layout_digest = take<std::uint64_t>(in);
  scan.regions.resize(take<std::uint64_t>(in));
  for (auto& region : scan.regions) {
    region.header.generation = take<std::uint64_t>(in);
    region.header.is_void = take<std::uint8_t>(in) != 0;
    if (take<std::uint8_t>(in) != 0) region.damage = Error{Code::corrupt, "not valid"};
  }
  return scan;
}

ByteVector encode(const FoundStores& found) {
  ByteVector out;
  formats::append_le(out, std::uint64_t{found.names.size()});
  for (std::size_t i = 0; i < found.names.size(); ++i) {
    const Survey& survey = found.surveys[i];
    formats::append_bytes(out, found.names[i]);
    put_text(out, survey.where);
    formats::append_le(out, std::uint64_t{survey.ranks.size()});
    for (const RankSurvey& rank : survey.ranks) {
      formats::append_le(out, seen(rank));
      if (rank.scan) put(out, *rank.scan);
      if (!rank.problem) continue;
      formats::append_le(out, rank.problem->code);
      put_text(out, rank.problem->message);
      put_text(out, rank.problem->hint);
    }
  }
  formats::append_le(out, std::uint64_t{found.misnamed.size()});
  for (const std::string& words : found.misnamed) put_text(out, words);
  return out;
}

// --- what lies in all directories together

bool equal(const MetaScan& a, const MetaScan& b) {
  const auto same = [](const auto& x, const auto& y) {
    return x.header.generation == y.header.generation && x.valid() == y.valid();
  };
  return a.superblock.store == b.superblock.store && a.superblock.rank == b.superblock.rank &&
         std::ranges::equal(a.regions, b.regions, same);
}

// The better of two looks at one rank's folder, which several ranks may reach. Two that differ are
// two folders.
Result<> join(RankSurvey& known, RankSurvey other, const std::string& where) {
  if (known.scan && other.scan && !equal(*known.scan, *other.scan))
    return Error{Code::state,
                 compose("{}: the folder of rank {} lies in two swap directories", where,
                         index_of(known.scan->superblock.rank)),
                 "move one of them away"};
  if (seen(other) > seen(known)) known = std::move(other);
  return {};
}

Result<> add(std::map<Uuid, Survey>& all, ByteReader& in) {
  for (auto stores = take<std::uint64_t>(in); stores > 0; --stores) {
    const auto name = take<Uuid>(in);
    const std::string where = take_text(in);
    const auto world = take<std::uint64_t>(in);
    Survey& survey = all[name];
    if (survey.ranks.empty()) {
      survey.where = where;
      survey.ranks.resize(world);
    }
    if (survey.ranks.size() != world)
      return Error{Code::layout, compose("{}: folders of a world of {} ranks and of one of {}",
                                         where, survey.ranks.size(), world)};
    for (RankSurvey& known : survey.ranks) {
      RankSurvey rank;
      const Seen what = take<Seen>(in);
      if (what == Seen::scanned) {
        rank.scan = take_scan(in);
      } else {
        const auto code = take<Code>(in);
        std::string message = take_text(in);
        rank.problem = Error{code, std::move(message), take_text(in)};
        rank.missing = what != Seen::damaged;
      }
      if (known.scan || known.problem)
        EBB_TRY(join(known, std::move(rank), where));
      else
        known = std::move(rank);
    }
  }
  return {};
}

void name_missing(Survey& survey) {
  for (RankSurvey& rank : survey.ranks)
    if (rank.missing) rank.problem->message += ", and no other rank reaches it";
}

}  // namespace

Result<FoundStores> find_stores(IoQueue& io, const Search& search, Part part, Ranks& ranks) {
  const auto mine = look(io, search, part);
  EBB_TRY(agree_all(ranks, mine ? Result<>() : mine.error(), "looking at its swap directory"));
  EBB_TRY_ASSIGN(const auto said, gather(ranks, encode(*mine)));
  std::map<Uuid, Survey> all;
  std::set<std::string> misnamed;
  for (const ByteVector& bytes : said) {
    ByteReader in(bytes);
    EBB_TRY(add(all, in));
    for (auto left = take<std::uint64_t>(in); left > 0; --left) misnamed.insert(take_text(in));
  }
  FoundStores found;
  found.misnamed.assign(misnamed.begin(), misnamed.end());
  for (auto& [name, survey] : all) {
    if (ranks.world() > 1) name_missing(survey);
    found.names.push_back(name);
    found.surveys.push_back(std::move(survey));
  }
  return found;
}

Result<> check_no_store(IoBackend& backend, const fs::path& directory) {
  const auto is_rank = [&](const fs::path& folder) {
    const auto meta = backend.is_file(folder / formats::native::kMetaFile);
    return meta && *meta;
  };
  const auto refuse = [&](std::string_view what, const fs::path& holder) -> Result<> {
    return Error{Code::usage,
                 compose("{} is {}, not a directory that holds stores", directory.string(), what),
                 "name the directory it lies in: " + holder.lexically_normal().string()};
  };
  if (is_rank(directory)) return refuse("a rank's folder of a store", directory / "../..");
  const auto names = backend.list(directory);
  if (!names) return {};  // whoever makes it says why
  const bool store = std::ranges::any_of(*names, [&](const std::string& name) {
    return formats::native::is_rank_directory(name) && is_rank(directory / name);
  });
  return store ? refuse("a store", directory / "..") : Result<>();
}

Result<Choice> choose(const FoundStores& found) {
  const auto used = formats::native::current_stores(found.surveys);
  if (used.size() > 1)
    return Error{Code::state,
                 compose("two stores could be resumed, {} and {}", found.surveys[used[0]].where,
                         found.surveys[used[1]].where),
                 "move one of them away"};
  const auto superseded = [&](const Uuid& store) {
    return std::ranges::any_of(found.surveys, [&](const Survey& other) {
      return other.complete() && other.committed() != 0 && other.superblock().parent == store;
    });
  };
  if (used.empty() && !found.misnamed.empty())
    return Error{Code::state,
                 found.misnamed.front() + ": nothing resumes from it under another name",
                 "give it its name back, or move it out of the swap directory to begin anew"};
  Choice choice;
  if (!used.empty()) choice.current = used[0];
  for (std::size_t i = 0; i < found.names.size(); ++i) {
    const Survey& one = found.surveys[i];
    if (choice.current == i) continue;
    if (superseded(found.names[i]) || one.leftover())
      choice.remove.push_back(found.names[i]);
    else if (auto complete = one.complete(); !complete)
      return std::move(complete).error();
    else
      return Error{Code::incomplete, one.where + ": no generation is valid on all ranks",
                   "ckpt-inspect " + one.where};
  }
  return choice;
}

}  // namespace ebb::libswap
