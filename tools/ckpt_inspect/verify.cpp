#include <algorithm>
#include <map>
#include <optional>

#include "ebb/formats/core/bytes.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/elements/writer_faults.h"
#include "ebb/formats/pickle/known_globals.h"
#include "ebb/formats/registry.h"
#include "ebb/formats/state_dict/small_tensors.h"
#include "ebb/libswap/tree/file_tree.h"
#include "tools/ckpt_inspect/modes.h"
#include "tools/cli/checkpoints.h"
#include "tools/cli/text.h"

namespace ebb::tools::inspect {

namespace {

constexpr std::uint64_t kReadBytes = 4 * formats::MiB;

std::uint64_t decoded_bytes(const TensorEntry& tensor, const Chunk& chunk) {
  const auto elements = formats::checked_volume(chunk.box.extent);
  return elements ? formats::packed_bytes(tensor.dtype, *elements).value_or(0) : 0;
}

struct Findings {
  std::vector<Error> problems;
  std::vector<Error> not_read;            // sound as far as anybody can tell who does not read them
  std::vector<std::string> known_faults;  // of the writer: everything is as it was stored
  std::uint64_t bytes_read = 0;
  std::uint64_t chunks = 0;
};

// Goes on after a problem: one run names everything that is wrong. A checkpoint that was replaced
// meanwhile is no problem of its own.
Result<> read_everything(const View& view, Findings& findings) {
  ByteVector buffer(kReadBytes);
  for (const TensorEntry* tensor : view.tensors) {
    for (const Chunk& chunk : tensor->chunks) {
      if (view.selection.rank && chunk.holder != *view.selection.rank) continue;
      ++findings.chunks;
      const std::uint64_t bytes = decoded_bytes(*tensor, chunk);
      for (std::uint64_t first = 0; first < bytes; first += kReadBytes) {
        const std::uint64_t count = std::min(kReadBytes, bytes - first);
        const std::span<std::byte> into(buffer.data(), static_cast<std::size_t>(count));
        if (auto read = view.checkpoint.read(*tensor, chunk, first, into); !read) {
          if (read.error().code == Code::moved) return read;
          auto& list =
              read.error().code == Code::unsupported ? findings.not_read : findings.problems;
          list.push_back(read.error());
          break;
        }
        findings.bytes_read += count;
      }
    }
  }
  return {};
}

// Step counters of one file, where all of them say the same.
struct FileSteps {
  double steps = 0;
  bool agree = true;
  std::string tensor;
};

// Files of two saves in one checkpoint, in formats that have no number of a save: each file's
// counters agree among themselves and not with another file's. A parameter that is trained less
// often than others of the same file is none of that.
void compare_steps(const View& view, Findings& findings) {
  std::map<std::uint32_t, FileSteps> files;
  for (const TensorEntry* tensor : view.tensors) {
    const auto steps = formats::steps_counted(view.checkpoint, *tensor);
    if (!steps || !*steps) continue;  // told already, or counts none
    const auto [file, fresh] = files.try_emplace(tensor->chunks[0].file);
    if (fresh) file->second = {**steps, true, label_of(*tensor)};
    file->second.agree &= file->second.steps == **steps;
  }
  const auto told = [&](std::uint32_t file) {
    return compose("{} in {} {}", files.at(file).tensor, view.catalog().files.at(file).name,
                   formats::to_json(Value::of_real(files.at(file).steps)));
  };
  std::optional<std::uint32_t> first;
  for (const auto& [file, own] : files) {
    if (!own.agree) continue;
    if (!first) first = file;
    if (own.steps == files.at(*first).steps) continue;
    findings.problems.push_back({Code::corrupt,
                                 compose("{}: files of two saves: steps counted of {}, of {}",
                                         view.path, told(*first), told(file)),
                                 "use the checkpoint before this one"});
  }
}

void write_errors(JsonWriter& json, std::string_view key, const std::vector<Error>& errors) {
  json.key(key).open_list();
  for (const Error& error : errors) {
    json.open_object();
    write_error(json, error);
    json.close_object();
  }
  json.close_list();
}

// `view`: nullptr where there is none.
std::string findings_json(const Findings& findings, const View* view) {
  JsonWriter json;
  open_document(json, "verify");
  json.put("sound", findings.problems.empty()).put("bytes_read", findings.bytes_read);
  json.put("chunks", findings.chunks);
  write_errors(json, "problems", findings.problems);
  write_errors(json, "not_read", findings.not_read);
  if (view != nullptr) write_unread(json, *view);
  json.put("notes", view == nullptr ? std::vector<std::string>() : view->catalog().notes)
      .put("known_faults", findings.known_faults)
      .close_object();
  return json.take();
}

std::string findings_text(const Console& console, const View& view, const Findings& findings) {
  std::string out;
  const std::size_t shown = shown_of(view, findings.problems.size(), 20);
  for (std::size_t i = 0; i < shown; ++i)
    out += compose("  {}  {}\n", name_of(findings.problems[i].code),
                   printable(findings.problems[i].message, 1000));
  out += left_out(shown, findings.problems.size());
  if (shown > 0 && !findings.problems[0].hint.empty())
    out += "  hint  " + printable(findings.problems[0].hint, 1000) + "\n";
  out += printable(view.path) + ": ";
  out += findings.problems.empty() ? console.good("sound")
                                   : console.bad(plural(findings.problems.size(), "problem"));
  std::uint64_t file_bytes = 0;
  for (const formats::FileEntry& file : view.catalog().files) file_bytes += file.size;
  out += compose(", {} in {} checked: {} of elements, in files of {}\n",
                 plural(view.tensors.size(), "tensor"), plural(findings.chunks, "chunk"),
                 bytes_text(findings.bytes_read), bytes_text(file_bytes));
  if (const std::string unread = unread_line(view); !unread.empty()) out += "  " + unread + "\n";
  if (!findings.not_read.empty())
    out += compose("  {} not read: {}\n", plural(findings.not_read.size(), "chunk"),
                   printable(findings.not_read.front().message, 1000));
  for (const std::string& fault : findings.known_faults)
    out += "  known fault of the writer  " + printable(fault, 1000) + "\n";
  for (const std::string& note : view.catalog().notes) out += "  note  " + printable(note) + "\n";
  return out;
}

}  // namespace

Result<Exit> verify(Console& console, const View& view) {
  Findings findings;
  EBB_TRY_ASSIGN(const auto before, libswap::FileStates::below(view.path));
  EBB_TRY_ASSIGN(const auto tree, libswap::open_tree(view.path));
  findings.problems = formats::format_of(view.catalog()).problems(tree, view.catalog());
  for (const formats::UnsafeValue& value : formats::unsafe_values(view.catalog()))
    findings.problems.push_back(error_of(value, view.path));
  for (const TensorEntry* tensor : view.tensors)
    if (auto proof = prove_coverage(*tensor, view.catalog()); !proof)
      findings.problems.push_back(proof.error());
  EBB_TRY(read_everything(view, findings));
  compare_steps(view, findings);
  if (auto faults = formats::known_writer_faults(view.checkpoint); faults)  // else told already
    findings.known_faults = std::move(*faults);
  EBB_TRY(check_unchanged(view.catalog(), before));
  // Where there is a whole one, the first problem says so.
  if (!findings.problems.empty())
    findings.problems[0] = with_whole_neighbour(std::move(findings.problems[0]), view.path);
  console.print(view.output == Output::json ? findings_json(findings, &view)
                                            : findings_text(console, view, findings));
  if (!findings.problems.empty()) return Exit::different;
  const bool all_read = findings.not_read.empty() && unread_of(view).empty();
  return all_read ? Exit::success : Exit::unsupported;
}

void verify_unreadable(Console& console, const Unreadable& what) {
  if (what.output != Output::json) return;
  Findings findings;
  findings.problems.push_back(what.error);
  console.print(findings_json(findings, nullptr));
}

}  // namespace ebb::tools::inspect
