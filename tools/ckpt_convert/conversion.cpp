#include "tools/ckpt_convert/conversion.h"

#include <filesystem>
#include <map>
#include <set>
#include <tuple>

#include "formats/core/float_cast.h"
#include "formats/core/json_text.h"
#include "formats/registry.h"
#include "libswap/sys/file_tree.h"
#include "libswap/transfer/digest.h"
#include "tools/ckpt_convert/progress.h"
#include "tools/cli/text.h"

namespace tools::convert {

namespace fs = std::filesystem;
using formats::Catalog;
using formats::Code;
using formats::Error;
using formats::printable;
using formats::Result;
using formats::TensorEntry;

namespace {

// Without a slash at the end, without "." and "..".
fs::path tidied(const std::string& text) {
  const fs::path path = fs::path(text).lexically_normal();
  return path.has_filename() || !path.has_parent_path() ? path : path.parent_path();
}

bool begins_with(const fs::path& path, const fs::path& folder) {
  const auto [in_path, in_folder] =
      std::mismatch(path.begin(), path.end(), folder.begin(), folder.end());
  return in_folder == folder.end();
}

Result<> check_places(const Request& request) {
  std::error_code failure;
  const fs::path source = fs::weakly_canonical(tidied(request.source), failure);
  if (failure) return Error{Code::io, printable(request.source) + ": " + failure.message(), {}};
  const fs::path destination = fs::weakly_canonical(tidied(request.destination), failure);
  if (failure)
    return Error{Code::io, printable(request.destination) + ": " + failure.message(), {}};
  const std::string both = printable(request.destination) + " and " + printable(request.source);
  if (source == destination)
    return Error{Code::usage, "source and destination are the same place: " + both,
                 "name another directory; a checkpoint is never converted in place"};
  if (begins_with(destination, source))
    return Error{Code::usage, "the destination lies inside the source: " + both,
                 "name a directory outside; the source is never touched"};
  if (begins_with(source, destination))
    return Error{Code::usage, "the source lies inside the destination: " + both,
                 "name another directory; replacing it would remove the source"};
  return {};
}

// Complaints of one kind in one line: "3 things: value 'a', value 'b', ...".
std::string in_one_line(const std::vector<std::string>& items) {
  constexpr std::size_t kShown = 6;
  std::string out;
  for (std::size_t i = 0; i < std::min(items.size(), kShown); ++i)
    out.append(i == 0 ? "" : ", ").append(items[i]);
  return items.size() <= kShown ? out : out + " and " + count_text(items.size() - kShown) + " more";
}

// Tensors the result must hold: all that have elements in the plan, and the ones that have none.
std::set<std::uint32_t> stored_tensors(const Catalog& content, const formats::EmitPlan& plan) {
  std::set<std::uint32_t> elsewhere(plan.omitted.begin(), plan.omitted.end());
  for (const formats::Derived& derived : plan.derived) elsewhere.insert(derived.tensor);
  std::set<std::uint32_t> stored;
  for (std::uint32_t i = 0; i < content.tensors.size(); ++i)
    if (elements_of(content.tensors[i]) == 0 && !elsewhere.contains(i)) stored.insert(i);
  for (const auto* files : {&plan.files, &plan.commit_files})
    for (const formats::OutputFile& file : *files)
      for (const formats::Fragment& fragment : file.fragments)
        if (const auto* data = std::get_if<formats::TensorData>(&fragment.data))
          stored.insert(data->tensor);
  return stored;
}

// By name. A format without a word for a state stores it under another one: master weights as the
// parameters, for example.
using ByName = std::multimap<std::string_view, const TensorEntry*>;

ByName by_name(const Catalog& catalog) {
  ByName out;
  for (const TensorEntry& tensor : catalog.tensors) out.emplace(tensor.name, &tensor);
  return out;
}

class ReadBack {
 public:
  explicit ReadBack(const Prepared& prepared) : prepared_(prepared) {
    for (const TensorEntry& tensor : prepared.conversion.content->catalog().tensors)
      claimed_.insert(identity(tensor));
  }

  Result<> run(const fs::path& directory, std::span<const std::uint64_t> fingerprints) const {
    TRY_ASSIGN(auto tree, libswap::open_tree(directory));
    TRY_ASSIGN(const auto written, formats::describe(std::move(tree)));
    TRY(prove_coverage(written->catalog()));
    const ByName written_tensors = by_name(written->catalog());
    const Catalog& content = prepared_.conversion.content->catalog();
    const auto& tensors = content.tensors;
    const auto stored = stored_tensors(content, prepared_.conversion.plan);
    if (stored.size() > written_tensors.size())
      return Error{Code::corrupt,
                   count_text(stored.size()) + " tensors were written but " +
                       count_text(written_tensors.size()) + " are read back",
                   {}};
    for (const std::uint32_t number : stored) {
      const TensorEntry& wanted = tensors[number];
      TRY_ASSIGN(const bool same, holds(*written, written_tensors, wanted, fingerprints[number]));
      if (!same)
        return Error{Code::corrupt,
                     "tensor '" + printable(wanted.name) + "' (" + printable(wanted.state) +
                         ") was read back different; nothing was published",
                     "try again; if it happens again, the disk or the memory is at fault"};
    }
    return {};
  }

 private:
  // Under its own name and state it must be what was written; where the format has another word for
  // the state, or holds it wider, a tensor that nobody else claims may be it.
  Result<bool> holds(const formats::Checkpoint& written, const ByName& tensors,
                     const TensorEntry& wanted, std::uint64_t fingerprint) const {
    const auto [first, last] = tensors.equal_range(wanted.name);
    for (auto candidate = first; candidate != last; ++candidate) {
      const TensorEntry& found = *candidate->second;
      if (found.shape != wanted.shape || !formats::is_widening(wanted.dtype, found.dtype)) continue;
      const bool same_state = found.state == wanted.state && found.dtype == wanted.dtype;
      if (!same_state && claimed(found)) continue;
      TRY_ASSIGN(const std::uint64_t read, fingerprint_as(written, found, wanted));
      if (read == fingerprint) return true;
      if (same_state) return false;
    }
    return false;
  }

  using Identity = std::tuple<std::string_view, std::string_view, formats::DType>;
  static Identity identity(const TensorEntry& tensor) {
    return {tensor.name, tensor.state, tensor.dtype};
  }
  bool claimed(const TensorEntry& found) const { return claimed_.contains(identity(found)); }

  // Of `found` in the dtype of `wanted`.
  static Result<std::uint64_t> fingerprint_as(const formats::Checkpoint& written,
                                              const TensorEntry& found, const TensorEntry& wanted) {
    if (found.dtype == wanted.dtype) return libswap::fingerprint_of(written, found);
    Catalog narrow;
    narrow.tensors.push_back(wanted);
    const auto number = static_cast<std::uint32_t>(&found - written.catalog().tensors.data());
    const libswap::ContentView view(written, std::move(narrow), {{number}});
    return libswap::fingerprint_of(view, view.catalog().tensors.front());
  }

  const Prepared& prepared_;
  std::set<Identity> claimed_;  // by tensors of the content
};

}  // namespace

std::uint64_t Prepared::bytes() const {
  std::uint64_t bytes = 0;
  for (const auto* files : {&conversion.plan.files, &conversion.plan.commit_files})
    for (const formats::OutputFile& file : *files) bytes += file.size;
  return bytes;
}

std::size_t Prepared::files() const {
  return conversion.plan.files.size() + conversion.plan.commit_files.size();
}

Result<Prepared> prepare(const Request& request) {
  TRY(check_places(request));
  TRY_ASSIGN(auto tree, libswap::open_tree(request.source));
  TRY_ASSIGN(auto source, formats::describe(std::move(tree)));
  TRY_ASSIGN(const auto chosen, select(source->catalog(), request.selection));
  for (const TensorEntry* tensor : chosen) {
    if (auto proof = prove_coverage(*tensor, source->catalog()); !proof) {
      Error error = proof.error();
      error.hint = "ckpt-inspect --verify " + request.source + " lists everything that is missing";
      return error;
    }
  }
  TRY_ASSIGN(libswap::Conversion conversion,
             libswap::plan_conversion(*source, {.format = request.format,
                                                .world = request.world,
                                                .policy = request.policy,
                                                .wanted = [&](const TensorEntry& t) {
                                                  return request.selection.wants(t);
                                                }}));
  if (!conversion.plan.dropped.empty() && request.dropping == Dropping::refused)
    return Error{
        Code::unsupported,
        std::string(request.format->name) + " cannot hold " + in_one_line(conversion.plan.dropped),
        "--drop goes on without; -n --drop lists all of it; dcp holds everything"};
  return Prepared{std::move(source), std::move(conversion)};
}

Result<libswap::WriteReport> carry_out(Console& console, const Request& request,
                                       const Prepared& prepared) {
  TRY_ASSIGN(auto chosen, libswap::open_backend(libswap::BackendChoice::automatic));
  TRY_ASSIGN(const auto io, libswap::IoQueue::start(std::move(chosen.backend), {}));
  ProgressLine progress(console);
  const ReadBack read_back(prepared);
  libswap::WriteOptions options;
  options.overwrite = request.overwrite;
  if (request.dropping == Dropping::allowed) options.derived = libswap::Derivation::assumed;
  options.priority = libswap::Priority::step;
  options.cancel = &stop_requested();
  options.progress = [&](const libswap::WriteProgress& now) {
    progress.show(now.bytes_done, now.bytes_total);
  };
  options.check = [&](const fs::path& directory, std::span<const std::uint64_t> fingerprints) {
    progress.say("reading back");
    return read_back.run(directory, fingerprints);
  };
  auto report =
      libswap::write_checkpoint(*io, *prepared.conversion.content, prepared.conversion.plan,
                                tidied(request.destination), options);
  progress.clear();
  return report;
}

}  // namespace tools::convert
