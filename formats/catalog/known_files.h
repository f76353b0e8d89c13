// What trainers lay beside a checkpoint's own files, told by its name: names are what frameworks
// agree on here, and a file that only a name tells is never opened.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats {

struct KnownFile {
  BesideEntry::Role role = BesideEntry::Role::unknown;
  std::string_view what;  // for people
  // The packages that make the object which it is, where it is one and nothing else: a space
  // before and behind each.
  std::string_view packages = {};
};

std::string_view name_of(BesideEntry::Role role);

// nullopt: the name does not tell.
std::optional<KnownFile> known_file(std::string_view path);

// Known to hold neither weights nor states: what a job or a person keeps beside a checkpoint.
bool holds_nothing_trained(std::string_view path);

// "optim" as a word or the beginning of "optimizer", and not of "optimized" or "optimum".
bool names_an_optimizer(std::string_view file);

// "rng_state_#.pth" of "rng_state_12.pth": the same for names that differ in numbers alone.
std::string without_numbers(std::string_view name);

// A file that says where a checkpoint lies or what its other files are: part of reading it, though
// catalogs list none of them.
bool is_pointer_file(std::string_view path);

}  // namespace ebb::formats
