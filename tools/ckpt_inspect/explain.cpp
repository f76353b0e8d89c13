// --explain-resume: the rules of the format, applied to this checkpoint.
#include <algorithm>
#include <filesystem>
#include <system_error>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/registry.h"
#include "tools/ckpt_inspect/modes.h"
#include "tools/cli/arguments.h"
#include "tools/cli/beside.h"
#include "tools/cli/checkpoints.h"
#include "tools/cli/text.h"

namespace ebb::tools::inspect {

using formats::ResumeAnswer;

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxWorld = std::uint64_t{1} << 20;

struct Explained {
  ResumeAnswer answer;
  std::optional<std::string> command;
  std::string saved;  // "by 4 ranks, step 3"
  std::string hint;   // where there is no command
};

// A path beside `source` that is free: what an earlier command made stays.
std::string beside(const std::string& source, const std::string& ending) {
  std::string path = source + ending;
  std::error_code ignored;
  for (int i = 2; fs::exists(fs::symlink_status(path, ignored)) && i < 100; ++i)
    path = compose("{}{}-{}", source, ending, i);
  return path;
}

// Of "." and ".." no name beside them can be made: they are spelt out.
std::string named_path(const std::string& path) {
  std::string named = path;
  while (named.size() > 1 && named.back() == '/') named.pop_back();
  const std::string last = fs::path(named).filename().string();
  if (last != "." && last != "..") return named;
  std::error_code failure;
  const fs::path whole = fs::canonical(named, failure);
  return failure ? named : whole.string();
}

std::string command_for(const std::string& path, const ResumeAnswer& answer, std::uint32_t world) {
  std::string source = named_path(path);
  const std::string made = shell_quoted(beside(source, compose("-{}ranks", world)));
  std::string out;
  if (!answer.through.empty()) {
    const std::string between = shell_quoted(beside(source, "-" + answer.through));
    out = compose("ckpt-convert {} {} --to {} && ", shell_quoted(source), between, answer.through);
    source = between;
  } else {
    source = shell_quoted(source);
  }
  out += compose("ckpt-convert {} {} --to {} --world-size {}", source, made, answer.to, world);
  if (!answer.partition.empty()) out += " --partition " + answer.partition;
  return out;
}

std::string json_of(const std::string& path, std::uint32_t world, const Explained& explained) {
  const ResumeAnswer& answer = explained.answer;
  JsonWriter json;
  open_document(json, "explain-resume");
  json.put("path", path).put("world", world).put("resumable", answer.resumable);
  json.put("loader", answer.loader).put("why", answer.why).put("command", explained.command);
  json.put("notes", answer.notes).close_object();
  return json.take();
}

std::string text_of(const Console& console, const std::string& path, std::uint32_t world,
                    const Explained& explained) {
  const ResumeAnswer& answer = explained.answer;
  std::string out = compose("{} on {}: ", printable(path), plural(world, "rank"));
  out += answer.resumable ? console.good("yes") : console.bad("no");
  out += ", " + answer.loader + (answer.resumable ? " resumes it\n" : " cannot resume it\n");
  out += labelled("why", printable(answer.why, 1000));
  if (!explained.saved.empty()) out += labelled("saved", explained.saved);
  if (explained.command) out += labelled("command", printable(*explained.command, 2000));
  if (!explained.command && !explained.hint.empty()) out += labelled("hint", explained.hint);
  for (const std::string& note : answer.notes) out += labelled("note", printable(note, 1000));
  return out;
}

Exit print(Console& console, Output output, const std::string& path, std::uint32_t world,
           const Explained& explained) {
  console.print(output == Output::json ? json_of(path, world, explained)
                                       : text_of(console, path, world, explained));
  return explained.answer.resumable ? Exit::success : Exit::different;
}

}  // namespace

Result<std::uint32_t> world_of(const Arguments& arguments) {
  const std::uint64_t world = arguments.count("explain-resume").value_or(0);
  if (world == 0 || world > kMaxWorld)
    return Error{Code::usage,
                 compose("--explain-resume {}: a number of ranks is 1 to {}", world, kMaxWorld)};
  return static_cast<std::uint32_t>(world);
}

Result<Exit> explain_resume(Console& console, const View& view, std::uint32_t world) {
  const Catalog& catalog = view.catalog();
  Explained explained;
  explained.saved = "by " + plural(catalog.world, "rank");
  if (catalog.step) explained.saved += compose(", step {}", *catalog.step);
  explained.answer = resume_answer(formats::format_of(catalog).resume_rules(), {catalog, world});
  ResumeAnswer& answer = explained.answer;
  for (const std::string& line : lines_of_missed(catalog))
    answer.notes.push_back("beside it, not read: " + line);
  if (const std::string job = line_of_job(catalog); !job.empty())
    answer.notes.push_back("beside it: " + job);
  if (const auto covered = prove_coverage(catalog); !covered) {
    answer.resumable = false;
    answer.why = covered.error().message;
    answer.to.clear();
    explained.hint = with_whole_neighbour(covered.error(), view.path).hint;
  }
  if (const std::string unread = unread_line(view); !answer.to.empty() && !unread.empty())
    explained.hint =
        compose("a conversion to {} leaves out what is not read (--drop): {}", answer.to, unread);
  else if (!answer.to.empty())
    explained.command = command_for(view.path, answer, world);
  return print(console, view.output, view.path, world, explained);
}

Result<Exit> explain_unreadable(Console& console, const Unreadable& what, std::uint32_t world) {
  const bool damaged = what.error.code == Code::corrupt || what.error.code == Code::incomplete ||
                       what.error.code == Code::layout;
  if (!damaged) return what.error;
  Explained explained;
  explained.answer.loader = "its framework";
  explained.answer.why = what.error.message;
  explained.hint = what.error.hint;
  return print(console, what.output, what.path, world, explained);
}

}  // namespace ebb::tools::inspect
