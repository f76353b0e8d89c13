// The formats this build reads and writes: one line each in registry.cpp; adding a format touches
// its folder and that table.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/catalog/emit.h"
#include "ebb/formats/catalog/resume.h"
#include "ebb/formats/state_dict/common_names.h"

namespace ebb::formats {

// Whether --shard-size means something: the writers' files are cut, or each is one file.
enum class FileSize : std::uint8_t { as_it_comes, limited };

// Whether --compress means something: readers of the format decode zstd frames in its files.
enum class Packs : std::uint8_t { nothing, zstd };

// What a format is a place for: parameters with their states, or tensors under whatever keys.
enum class Holds : std::uint8_t { parameters, keyed_tensors };

// Where a format's common names replace its own: in every other format, or only in those that hold
// parameters.
enum class NamesFor : std::uint8_t { every_format, formats_of_parameters };

// Where a format counts the optimizer steps of each parameter: in one-element tensors of the state
// "step", as torch does, or elsewhere, from Catalog::param_steps. Content comes to emit that way.
enum class StepCounters : std::uint8_t { tensors, values };

struct Format {
  std::string_view name;     // what --to and --from say
  std::string_view summary;  // one line for help
  // True when the tree looks like this format, whole or damaged. Cheap; reads a few bytes at most.
  bool (*detect)(const SourceTree& tree);
  Result<std::unique_ptr<Checkpoint>> (*describe)(std::shared_ptr<const SourceTree> tree);
  Result<EmitPlan> (*emit)(const EmitRequest& request);  // nullptr: not written by this version
  Policy default_policy = Policy::rows;                  // how emit cuts when nobody says
  StepCounters steps = StepCounters::tensors;
  ResumeRules (*resume)() = nullptr;  // nullptr: nothing is known
  // Why a tensor means nothing outside this format, "" when it does; nullptr: all of them do.
  std::string_view (*bound)(const TensorEntry& tensor) = nullptr;
  // For formats that hold torch state dicts: gives content the keys, paths, names and states under
  // which this format will be found to hold it. Between two such formats keys, paths and values
  // stay; nullptr: a key says nothing outside its format.
  void (*respell)(Catalog& content) = nullptr;
  // For formats whose describe() names tensors by their keys alone; nullptr: as the catalog says.
  CommonNames (*common_names)(const Catalog& catalog) = nullptr;
  NamesFor names_for = NamesFor::every_format;
  // What is wrong beside coverage and the elements' own checksums: digests of whole files, missing
  // objects, parts of two saves. May read every file. nullptr: there is nothing more to look for.
  std::vector<Error> (*problems)(const std::shared_ptr<const SourceTree>& tree,
                                 const Catalog& catalog) = nullptr;
  Holds holds = Holds::parameters;
  FileSize file_size = FileSize::as_it_comes;
  Packs packs = Packs::nothing;
  // The program that describe() asks about each file (SourceTree::probe); a build may lack it.
  std::string_view reader_program = {};
};

std::span<const Format> registered_formats();
const Format* format_named(std::string_view name);

// Detects and describes; Code::unsupported with what was found when no format claims the tree.
Result<std::unique_ptr<Checkpoint>> describe(std::shared_ptr<const SourceTree> tree);

}  // namespace ebb::formats
