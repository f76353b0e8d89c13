// Checkpoints below a folder that is none itself, and beside one that is damaged: what somebody who
// named the folder probably wants. Indexes are read, of a few; which folder holds one is told by
// names and first bytes.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "ebb/formats/core/byte_source.h"
#include "ebb/formats/core/error.h"

namespace ebb::tools {

// Up to three levels below `path`, whose tree is given: which there are, of which format, and which
// is the newest from which a job resumes. nullopt: none.
std::optional<formats::Error> checkpoints_below(
    const std::string& path, const std::shared_ptr<const formats::SourceTree>& tree);

// Of a folder of several files of which each is a checkpoint, alike but for numbers: the hint which
// is the newest that is whole. nullopt: it is no such folder.
std::optional<std::string> newest_of_files(const std::string& path,
                                           const std::shared_ptr<const formats::SourceTree>& tree);

// Of an output that holds a model and the saves that led to it: the newest whole save in it that
// has an optimizer's states, ".../checkpoint-10 (step 10)".
std::optional<std::string> newest_below(const std::string& path,
                                        const std::shared_ptr<const formats::SourceTree>& tree);

// ", step 3 beside it ..." for the hint of an error about the damaged checkpoint at `path`: the
// newest whole one beside it, or below it, that is of the same model as far as can be told.
// nullopt: none.
std::optional<std::string> whole_neighbour(const std::string& path);

}  // namespace ebb::tools
