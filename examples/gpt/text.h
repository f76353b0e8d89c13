// The corpus: what is trained on, and what is held out to judge it by.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/core/result.h"
#include "ebb/libswap/queue/io_queue.h"

namespace ebb::gpt {

struct Corpus {
  std::vector<std::uint8_t> train;
  std::vector<std::uint8_t> held_out;
  std::string description;  // one line for people
};

struct NamedText {
  std::string name;
  std::string text;
};

constexpr std::string_view kLicences = "/usr/share/common-licenses";

// Both parts must hold one sequence of `length` bytes, and training twenty: Code::usage says the
// minimum otherwise.

// Whole texts: those named Apache-2.0 and CC0-1.0 are held out, the rest is trained on in the order
// given. Names the missing one when there is nothing to hold out.
Result<Corpus> hold_out_licences(const std::vector<NamedText>& texts, std::size_t length);
// One text: its last tenth is held out.
Result<Corpus> hold_out_tail(const NamedText& text, std::size_t length);

// The user's file, at most 1 GiB.
Result<Corpus> load_text(libswap::IoQueue& io, const std::filesystem::path& file,
                         std::size_t length);
// The licence texts below `directory`, by name; a text that several names lead to is taken once.
Result<Corpus> load_licences(libswap::IoQueue& io, const std::filesystem::path& directory,
                             std::size_t length);

}  // namespace ebb::gpt
