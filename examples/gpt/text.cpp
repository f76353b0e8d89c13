#include "examples/gpt/text.h"

#include <algorithm>
#include <set>
#include <utility>

#include "ebb/formats/core/units.h"
#include "examples/gpt/files.h"

namespace ebb::gpt {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostText = formats::GiB;
constexpr std::uint64_t kTrainSequences = 20;

void append(std::vector<std::uint8_t>& to, std::string_view text) {
  to.insert(to.end(), text.begin(), text.end());
}

std::string kilobytes(std::size_t bytes) { return compose("{} kB", (bytes + 500) / 1000); }

}  // namespace

Result<Corpus> hold_out_licences(const std::vector<NamedText>& texts, std::size_t length) {
  Corpus corpus;
  std::size_t trained = 0;
  std::string held;
  for (const NamedText& text : texts) {
    const bool hold = text.name == "Apache-2.0" || text.name == "CC0-1.0";
    append(hold ? corpus.held_out : corpus.train, text.text);
    if (hold) held += (held.empty() ? "" : " and ") + text.name;
    if (!hold) ++trained;
  }
  if (corpus.held_out.size() < length || corpus.train.size() < kTrainSequences * length)
    return Error{
        Code::usage,
        compose("the licence texts are too short: {} bytes to train on, {} held out (Apache-2.0, "
                "CC0-1.0); the minimum is {} and {}",
                corpus.train.size(), corpus.held_out.size(), kTrainSequences * length, length),
        "give a text with --text FILE"};
  corpus.description =
      compose("{} licence texts, {}; held out: {}, {}", trained, kilobytes(corpus.train.size()),
              held, kilobytes(corpus.held_out.size()));
  return corpus;
}

Result<Corpus> hold_out_tail(const NamedText& text, std::size_t length) {
  // Nine tenths must hold twenty sequences; a tenth then holds more than one.
  const std::size_t minimum = (kTrainSequences * length * 10 + 8) / 9;
  if (text.text.size() < minimum)
    return Error{Code::usage,
                 compose("{}: {} bytes of text are too few, the minimum is {}", text.name,
                         text.text.size(), minimum),
                 "give a longer file, or leave --text out to train on the licence texts"};
  const std::size_t held = text.text.size() / 10;
  Corpus corpus;
  append(corpus.train, std::string_view(text.text).substr(0, text.text.size() - held));
  append(corpus.held_out, std::string_view(text.text).substr(text.text.size() - held));
  corpus.description = compose("{}, {}; held out: its last tenth, {}", text.name,
                               kilobytes(corpus.train.size()), kilobytes(held));
  return corpus;
}

Result<Corpus> load_text(libswap::IoQueue& io, const fs::path& file, std::size_t length) {
  auto text = read_text(io, file, kMostText);
  if (!text) {
    Error error = std::move(text).error().within("--text");
    if (error.hint.empty()) error.hint = "give a readable file, or leave --text out";
    return error;
  }
  return hold_out_tail({file.string(), std::move(*text)}, length);
}

Result<Corpus> load_licences(libswap::IoQueue& io, const fs::path& directory, std::size_t length) {
  auto names = io.backend().list(directory);
  if (!names) {
    Error error = std::move(names).error();
    error.hint = "give a text with --text FILE";
    return error;
  }
  std::vector<NamedText> texts;
  std::set<fs::path> seen;  // GPL is a link to GPL-3: one text, one place in the order
  for (const std::string& name : *names) {
    std::error_code failed;
    const fs::path real = fs::canonical(directory / name, failed);
    if (failed || !fs::is_regular_file(real, failed) || !seen.insert(real).second) continue;
    EBB_TRY_ASSIGN(std::string text, read_text(io, real, kMostText));
    texts.push_back({real.filename().string(), std::move(text)});
  }
  std::sort(texts.begin(), texts.end(),
            [](const NamedText& a, const NamedText& b) { return a.name < b.name; });
  return hold_out_licences(texts, length);
}

}  // namespace ebb::gpt
