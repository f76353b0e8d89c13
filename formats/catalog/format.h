// A format as the rest of the program sees it. Every format's folder has a class of its own that
// derives from this one; formats/registry.cpp lists them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/catalog/common_names.h"
#include "ebb/formats/catalog/emit.h"
#include "ebb/formats/catalog/resume.h"

namespace ebb::formats {

// Whether --shard-size means something: the writers' files are cut, or each is one file.
enum class FileSize : std::uint8_t { as_it_comes, limited };

// Whether --compress means something: readers of the format decode zstd frames in its files.
enum class Packs : std::uint8_t { nothing, zstd };

// What a format is a place for: parameters with their states, or tensors under whatever keys.
enum class Holds : std::uint8_t { parameters, keyed_tensors };

// What keys and paths are: the format's own way to store, or the nesting of a torch state dict,
// which stays between two formats that both hold such.
enum class Keys : std::uint8_t { own, state_dict };

// Whether the parts of a state dict are found in it, or known because they lie in files of their
// own.
enum class Parts : std::uint8_t { found, files };

// What optimizers call their parameters: by name, or by numbers that count them in the order in
// which a job gives them to its optimizer. Content comes to emit with groups in that order.
enum class Params : std::uint8_t { named, numbered };

// Whether emit() writes it: others are read alone, and no --to takes them.
enum class Written : std::uint8_t { yes, no };

// Where a format counts the optimizer steps of each parameter: in one-element tensors of the state
// "step", as torch does, or elsewhere, from Catalog::param_steps. Content comes to emit that way.
enum class StepCounters : std::uint8_t { tensors, values };

// Whether a training job goes on from what is written: parameters whose states are missing, or bear
// a name that was only inferred, then matter. Otherwise it is a file of tensors.
enum class Resumes : std::uint8_t { a_job, nothing };

// Whether a reader notices by itself that a writer has gone on meanwhile: by checksums that are
// bound to a generation. Elsewhere the times of the files tell.
enum class Overwriting : std::uint8_t { noticed, silent };

// What becomes of tensors that are made of parts (composite.h): jobs that resume from the format
// know no such classes; they are written as what they were; their parts are written.
enum class Composites : std::uint8_t { refused, classes, parts };

// Whether jobs that resume from the format can have bitsandbytes' states in 8 bits.
enum class BlockStates : std::uint8_t { taken, refused };

// Whether loaders of the format want a parameter that has two names under each of them.
enum class TiedNames : std::uint8_t { one, each };

struct FormatTraits {
  std::string_view name;                 // what --to and --from say
  std::string_view summary;              // one line for help
  Policy default_policy = Policy::rows;  // how emit cuts when nobody says
  StepCounters steps = StepCounters::tensors;
  Holds holds = Holds::parameters;
  Keys keys = Keys::own;
  Parts parts = Parts::found;
  Params params = Params::named;
  Written written = Written::yes;
  FileSize file_size = FileSize::as_it_comes;
  Packs packs = Packs::nothing;
  Resumes resumes = Resumes::a_job;
  Composites composites = Composites::refused;
  BlockStates block_states = BlockStates::taken;
  TiedNames tied_names = TiedNames::one;
  Overwriting overwriting = Overwriting::silent;
  // What the names of its files end with, where one file can be a checkpoint: a destination called
  // so is a file.
  std::span<const std::string_view> endings = {};
  // The program that describe() asks about each file (SourceTree::probe); a build may lack it.
  std::string_view reader_program = {};
};

class Format {
 public:
  constexpr explicit Format(const FormatTraits& traits) : traits_(traits) {}
  virtual ~Format() = default;
  Format(const Format&) = delete;
  Format& operator=(const Format&) = delete;

  const FormatTraits& traits() const { return traits_; }
  std::string_view name() const { return traits_.name; }
  // Whether a path ends as a file of this format does.
  bool is_called_so(std::string_view path) const {
    return std::ranges::any_of(traits_.endings,
                               [&](std::string_view ending) { return path.ends_with(ending); });
  }

  // True when the tree looks like this format, whole or damaged. Cheap; reads a few bytes at most.
  virtual bool detect(const SourceTree& tree) const = 0;
  virtual Result<std::unique_ptr<Checkpoint>> describe(
      std::shared_ptr<const SourceTree> tree) const = 0;
  // The same of what is not whole, as far as an index tells what would lie where: chunks that are
  // not there are left out, and values. For pictures; elsewhere as describe().
  virtual Result<std::unique_ptr<Checkpoint>> describe_with_holes(
      std::shared_ptr<const SourceTree> tree) const {
    return describe(std::move(tree));
  }
  virtual Result<EmitPlan> emit(const EmitRequest& request) const = 0;
  virtual ResumeRules resume_rules() const = 0;

  // Of a tree of which describe() cannot tell which file is meant: those that are a checkpoint
  // each; empty elsewhere.
  virtual std::vector<std::string> saves_in(const std::shared_ptr<const SourceTree>&) const {
    return {};
  }
  // How emit cuts content when nobody says: content may tell how it was cut for this format.
  virtual Policy policy_for(const Catalog&) const { return traits_.default_policy; }
  // Why a tensor means nothing outside this format; "" when it does.
  virtual std::string_view why_bound(const TensorEntry&) const { return {}; }
  // Gives content the keys, paths, names and states under which this format will be found to hold
  // it. Of formats whose keys are a state dict's.
  virtual void respell(Catalog&) const {}
  // Says what content of this format has in the format's own words in those that others share, on
  // its way to another format.
  virtual void say_for_others(Catalog&) const {}
  // Of formats whose describe() names tensors by their keys alone; nullopt: as the catalog says.
  virtual std::optional<CommonNames> common_names(const Catalog&) const { return std::nullopt; }
  // What is wrong beside coverage and the elements' own checksums: digests of whole files, missing
  // objects, parts of two saves. May read every file.
  virtual std::vector<Error> problems(const std::shared_ptr<const SourceTree>&,
                                      const Catalog&) const {
    return {};
  }

 private:
  FormatTraits traits_;
};

}  // namespace ebb::formats
