#include <algorithm>

#include "formats/core/json_text.h"
#include "formats/core/units.h"
#include "tools/ckpt_inspect/modes.h"
#include "tools/cli/text.h"

namespace tools::inspect {

using formats::Chunk;
using formats::Error;
using formats::Result;
using formats::TensorEntry;

namespace {

constexpr std::uint64_t kReadBytes = 4 * formats::MiB;

std::uint64_t decoded_bytes(const TensorEntry& tensor, const Chunk& chunk) {
  const auto elements = formats::checked_volume(chunk.box.extent);
  const auto bits =
      elements ? formats::checked_mul(*elements, formats::bits_of(tensor.dtype)) : std::nullopt;
  return formats::div_ceil(bits.value_or(0), 8);
}

struct Findings {
  std::vector<Error> problems;
  std::uint64_t bytes_read = 0;
  std::uint64_t chunks = 0;
};

// Goes on after a problem: one run names everything that is wrong.
void read_everything(const View& view, Findings& findings) {
  formats::ByteVector buffer(kReadBytes);
  for (const TensorEntry* tensor : view.tensors) {
    for (const Chunk& chunk : tensor->chunks) {
      if (view.selection.rank && chunk.holder != *view.selection.rank) continue;
      ++findings.chunks;
      const std::uint64_t bytes = decoded_bytes(*tensor, chunk);
      for (std::uint64_t first = 0; first < bytes; first += kReadBytes) {
        const std::uint64_t count = std::min(kReadBytes, bytes - first);
        const std::span<std::byte> into(buffer.data(), static_cast<std::size_t>(count));
        if (auto read = view.checkpoint.read(*tensor, chunk, first, into); !read) {
          findings.problems.push_back(read.error());
          break;
        }
        findings.bytes_read += count;
      }
    }
  }
}

std::string findings_json(const Findings& findings) {
  JsonWriter json;
  open_document(json, "verify");
  json.key("sound").raw(findings.problems.empty() ? "true" : "false");
  json.key("bytes_read").number(findings.bytes_read).key("chunks").number(findings.chunks);
  json.key("problems").open_list();
  for (const Error& problem : findings.problems)
    json.open_object()
        .key("code")
        .text(name_of(problem.code))
        .key("message")
        .text(problem.message)
        .close_object();
  json.close_list().close_object();
  return json.take();
}

std::string findings_text(const Console& console, const View& view, const Findings& findings) {
  std::string out;
  const std::size_t shown = shown_of(view, findings.problems.size(), 20);
  for (std::size_t i = 0; i < shown; ++i)
    out += "  " + std::string(name_of(findings.problems[i].code)) + "  " +
           formats::printable(findings.problems[i].message, 1000) + "\n";
  if (shown < findings.problems.size())
    out += "  ... " + count_text(findings.problems.size() - shown) + " more\n";
  out += formats::printable(view.path) + ": ";
  out += findings.problems.empty() ? console.good("sound")
                                   : console.bad(plural(findings.problems.size(), "problem"));
  out += ", " + plural(view.tensors.size(), "tensor") + " in " + plural(findings.chunks, "chunk") +
         " checked, " + bytes_text(findings.bytes_read) + " read\n";
  for (const std::string& note : view.catalog().notes)
    out += "  note  " + formats::printable(note) + "\n";
  return out;
}

}  // namespace

Result<Exit> verify(Console& console, const View& view) {
  Findings findings;
  for (const TensorEntry* tensor : view.tensors)
    if (auto proof = prove_coverage(*tensor, view.catalog()); !proof)
      findings.problems.push_back(proof.error());
  read_everything(view, findings);
  console.print(view.output == Output::json ? findings_json(findings)
                                            : findings_text(console, view, findings));
  return findings.problems.empty() ? Exit::success : Exit::different;
}

void verify_unreadable(Console& console, const Unreadable& what) {
  if (what.output != Output::json) return;
  Findings findings;
  findings.problems.push_back(what.error);
  console.print(findings_json(findings));
}

}  // namespace tools::inspect
