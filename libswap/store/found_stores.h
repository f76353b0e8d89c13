// FoundStores: the stores in the swap directories of a run, seen alike by all ranks. A store's rank
// folders may lie in one directory or in many: whoever can reach them looks, everybody hears.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "ebb/formats/native/survey.h"
#include "ebb/libswap/queue/io_queue.h"
#include "ebb/libswap/store/agreement.h"

namespace ebb::libswap {

using formats::native::Uuid;

struct FoundStores {
  std::vector<Uuid> names;                       // by their folders
  std::vector<formats::native::Survey> surveys;  // of all their ranks' folders
  // Stores in the ranks' directories that have lost their names, so that nobody resumes from them:
  // in words.
  std::vector<std::string> misnamed;
};

// Whether this rank looks for all that share its directory; at its sources everybody looks.
enum class Part : std::uint8_t { looks, listens };
// The stores in `directory` and in those of `sources` that this rank reaches, or the one that is
// asked for.
struct Search {
  fs::path directory;
  std::span<const fs::path> sources;
  std::optional<Uuid> only;
};
// Collective. An error on one rank is an error on all.
Result<FoundStores> find_stores(IoQueue& io, const Search& search, Part part, Ranks& ranks);

// Code::usage for a store's own folder, or a rank's in it, in place of the directory it lies in.
Result<> check_no_store(IoBackend& backend, const fs::path& directory);

// What is to become of them. `current`: index of the one to resume.
struct Choice {
  std::optional<std::size_t> current;
  std::vector<Uuid> remove;  // never committed, or superseded by a store that names them its parent
};
// Code::state for several that could be resumed, or for one under another name where there is none;
// Code::incomplete for one that may have been committed and is not whole. The same on every rank.
Result<Choice> choose(const FoundStores& found);

}  // namespace ebb::libswap
