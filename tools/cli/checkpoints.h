// Opening the checkpoint that a user named; where that is none, or a damaged one, what was probably
// meant: the checkpoints below that folder, or the newest whole one beside it.
#pragma once

#include <memory>
#include <string>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/state_dict/parts.h"
#include "ebb/libswap/tree/file_states.h"

namespace ebb::tools {

Result<std::shared_ptr<const formats::SourceTree>> open_tree_at(const std::string& path);

// Describes what lies at `path`; `said`: what the user says its parts are. An error says what to
// type next where that can be told.
Result<std::unique_ptr<Checkpoint>> open_checkpoint(const std::string& path,
                                                    const formats::PartsSaid& said = {});

// The same error with the newest whole checkpoint beside `path`, or below it, in its hint; as it is
// where there is none. Reads the indexes of at most 16 neighbours.
Error with_whole_neighbour(Error error, const std::string& path);

// Fails (Code::busy) where a file that the catalog speaks of was changed since, and the format does
// not tell by itself.
Result<> check_unchanged(const Catalog& catalog, const libswap::FileStates& before);

// Whether it says that a checkpoint is damaged or incomplete.
bool is_damage(const Error& error);

}  // namespace ebb::tools
