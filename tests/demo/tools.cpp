#include <algorithm>
#include <array>
#include <cstdio>
#include <random>
#include <set>
#include <utility>

#include "tests/demo/demo.h"
#include "tools/cli/arguments.h"
#include "tools/cli/text.h"

namespace ebb::demo {
namespace {

using libswap::ChildProcess;

constexpr std::uint64_t kMostOutput = 256 * formats::MiB;

Error untrue(std::string what) { return {Code::state, std::move(what)}; }

// The JSON string or number after `"key": `, from `at` on, which moves behind it. The tools write
// their JSON in one way; what matters here comes in a known order.
std::optional<std::string> next_value(const std::string& json, const std::string& key,
                                      std::size_t& at) {
  const std::string wanted = "\"" + key + "\": ";
  const std::size_t found = json.find(wanted, at);
  if (found == std::string::npos) return std::nullopt;
  std::size_t begin = found + wanted.size();
  const bool quoted = json[begin] == '"';
  if (quoted) ++begin;
  const std::size_t end = quoted ? json.find('"', begin) : json.find_first_of(",}] \n", begin);
  if (end == std::string::npos) return std::nullopt;
  at = end + 1;
  return json.substr(begin, end - begin);
}

struct StoredPiece {
  std::string tensor, state, file;
  std::uint64_t offset = 0, length = 0;
};

Result<std::vector<StoredPiece>> pieces_of(const Demo& demo, const std::string& checkpoint) {
  EBB_TRY_ASSIGN(const ToolRun run,
                 run_tool({demo.program("ckpt-inspect"), checkpoint, "--shards", "--json"}));
  if (run.code != 0) return untrue("ckpt-inspect --shards " + checkpoint + " failed");
  std::vector<StoredPiece> pieces;
  std::size_t at = run.output.find("\"shards\": [");
  while (at != std::string::npos) {
    const auto name = next_value(run.output, "name", at);
    if (!name) break;
    const auto state = next_value(run.output, "state", at);
    const auto file = next_value(run.output, "file", at);
    const auto offset = next_value(run.output, "offset", at);
    const auto length = next_value(run.output, "length", at);
    if (!state || !file || !offset || !length) break;
    const auto first = tools::parse_count(*offset), count = tools::parse_count(*length);
    if (!first || !count) break;
    pieces.push_back({*name, *state, *file, *first, *count});
  }
  if (pieces.empty()) return untrue("ckpt-inspect --shards lists nothing of " + checkpoint);
  return pieces;
}

struct FlippedBit {
  StoredPiece piece;
  std::uint64_t offset = 0;  // in the file
  std::uint32_t bit = 0;
};

// Any bit of any tensor's bytes, each equally likely.
Result<FlippedBit> flip_random_bit(const Demo& demo, const std::string& checkpoint) {
  EBB_TRY_ASSIGN(const auto pieces, pieces_of(demo, checkpoint));
  std::uint64_t bytes = 0;
  for (const StoredPiece& piece : pieces) bytes += piece.length;
  std::random_device device;
  std::uint64_t place = std::uniform_int_distribution<std::uint64_t>(0, bytes - 1)(device);
  std::size_t i = 0;
  for (; place >= pieces[i].length; ++i) place -= pieces[i].length;
  const FlippedBit flipped{pieces[i], pieces[i].offset + place, device() % 8};

  const fs::path path = fs::path(checkpoint) / flipped.piece.file;
  EBB_TRY_ASSIGN(const auto file,
                 demo.io.backend().open(path, {.access = libswap::Access::read_write}));
  std::array<std::byte, 1> byte{};
  Result<> done = demo.io.read(file, flipped.offset, byte);
  byte[0] ^= static_cast<std::byte>(1u << flipped.bit);
  if (done) done = demo.io.write(file, flipped.offset, byte);
  EBB_TRY(demo.io.backend().close(file));
  if (!done) return std::move(done).error();
  return flipped;
}

Result<Line> shown_by_inspect(const Demo& demo, const std::string& store) {
  const Command command = {demo.program("ckpt-inspect"), store};
  EBB_TRY_ASSIGN(const ToolRun run, run_tool(command));
  if (run.code != 0)
    return untrue("ckpt-inspect " + store + " ended with code " + std::to_string(run.code));
  std::fprintf(stderr, "%s", run.output.c_str());
  EBB_TRY_ASSIGN(const ToolRun verified,
                 run_tool({demo.program("ckpt-inspect"), store, "--verify"}));
  if (verified.code != 0) return untrue("ckpt-inspect --verify finds the store damaged");
  return Line{"5 the store is a checkpoint: ranks, rows, groups, step shown; complete and sound",
              shell(command)};
}

Result<Line> converted(const Demo& demo) {
  const std::string source = demo.path("export");
  EBB_TRY_ASSIGN(const std::string wanted, hash_of(demo, source));
  Command last;
  for (const std::string format : {"safetensors", "dcp"}) {
    const std::string target = demo.path("converted-" + format);
    Command command = {demo.program("ckpt-convert"), source, target, "--to", format, "-f"};
    if (format == "dcp") command.insert(command.end(), {"--world-size", "2"});
    EBB_TRY_ASSIGN(const ToolRun run, run_tool(command));
    if (run.code != 0) return untrue("ckpt-convert --to " + format + " failed");
    EBB_TRY_ASSIGN(const std::string got, hash_of(demo, target));
    if (got != wanted)
      return untrue("ckpt-convert --to " + format + ": hash " + got + ", the source has " + wanted);
    last = std::move(command);
  }
  return Line{"5 converted to safetensors and to DCP for 2 ranks, every tensor bit-exact",
              shell(last)};
}

Result<Line> flipped_bit_named(const Demo& demo, const std::string& store) {
  const std::string copy = demo.path("damaged");
  std::error_code failed;
  fs::remove_all(copy, failed);
  fs::copy(store, copy, fs::copy_options::recursive, failed);
  if (failed) return untrue("copying " + store + ": " + failed.message());
  EBB_TRY_ASSIGN(const FlippedBit flipped, flip_random_bit(demo, copy));
  const Command command = {demo.program("ckpt-inspect"), copy, "--verify"};
  EBB_TRY_ASSIGN(const ToolRun run, run_tool(command));
  std::fprintf(stderr, "%s", run.output.c_str());
  const std::string where = "bit " + std::to_string(flipped.bit) + " of byte " +
                            std::to_string(flipped.offset) + " of " + flipped.piece.file;
  if (run.code != 1)
    return untrue(where + " was flipped, ckpt-inspect --verify ended with code " +
                  std::to_string(run.code) + " instead of 1");
  const std::string file = fs::path(flipped.piece.file).filename().string();
  for (const std::string& wanted : {flipped.piece.tensor, file, std::string(": block ")})
    if (run.output.find(wanted) == std::string::npos)
      return untrue(where + " was flipped, ckpt-inspect --verify does not name " + wanted);
  return Line{
      "5 " + where + " flipped in a copy: file, block and " + flipped.piece.tensor + " named",
      shell(command)};
}

Result<Line> explained(const Demo& demo, const std::string& source) {
  const Command command = {demo.program("ckpt-inspect"), source};
  EBB_TRY_ASSIGN(const ToolRun run, run_tool(command));
  std::fprintf(stderr, "%s", run.output.c_str());
  if (run.code != 0)
    return untrue("ckpt-inspect of the DeepSpeed checkpoint ended with code " +
                  std::to_string(run.code));
  for (const std::string wanted : {"deepspeed", "muon", "4 ranks"})
    if (run.output.find(wanted) == std::string::npos)
      return untrue("ckpt-inspect of the DeepSpeed checkpoint does not say '" + wanted + "'");
  return Line{"6 a real DeepSpeed ZeRO-3 Muon checkpoint: files, groups and shards explained",
              shell(command)};
}

// DeepSpeed loads ZeRO's state on the ranks that saved it, and its zero_to_fp32 gathers weights.
Result<Line> states_kept(const Demo& demo, const std::string& source) {
  EBB_TRY_ASSIGN(const auto pieces, pieces_of(demo, source));
  std::set<std::pair<std::string, std::string>> states;
  for (const StoredPiece& piece : pieces)
    if (piece.state != "master") states.emplace(piece.tensor, piece.state);
  const std::string target = demo.path("deepspeed-on-2");
  const Command command = {demo.program("ckpt-convert"),
                           source,
                           target,
                           "--to",
                           "deepspeed",
                           "--world-size",
                           "2",
                           "--partition",
                           "zero3",
                           "-f"};
  EBB_TRY_ASSIGN(const ToolRun run, run_tool(command));
  if (run.code != 0) return untrue("ckpt-convert --to deepspeed for 2 ranks failed");
  EBB_TRY_ASSIGN(const ToolRun compared,
                 run_tool({demo.program("ckpt-inspect"), source, "--diff", target}));
  if (compared.code != 0) return untrue("for 2 ranks the DeepSpeed checkpoint holds other tensors");
  return Line{"6 for 2 ranks in place of 4, its " + std::to_string(states.size()) +
                  " momenta and moments bit for bit; DeepSpeed's own zero_to_fp32 leaves them out",
              shell(command)};
}

}  // namespace

std::string shell(const Command& command) {
  std::string out;
  for (const std::string& word : command) {
    if (!out.empty()) out += ' ';
    out += tools::shell_quoted(word);
  }
  return out;
}

Result<ToolRun> run_tool(const Command& command) {
  std::fprintf(stderr, "$ %s\n", shell(command).c_str());
  EBB_TRY_ASSIGN(ChildProcess child, ChildProcess::start(command, ChildProcess::Stream::output));
  ToolRun run;
  EBB_TRY_ASSIGN(run.output, child.read_all(kMostOutput));
  EBB_TRY_ASSIGN(const ChildProcess::Exit exit, child.wait());
  if (exit.signal != 0)
    return untrue(command[0] + " was ended by signal " + std::to_string(exit.signal));
  run.code = exit.code;
  return run;
}

std::string hash_command(const Demo& demo, const std::string& checkpoint) {
  return shell({demo.program("ckpt-inspect"), checkpoint, "--tensors", "--digest"}) +
         " | awk '{print $1, $2, $NF}' | LC_ALL=C sort | sha256sum";
}

Result<std::string> hash_of(const Demo& demo, const std::string& checkpoint) {
  EBB_TRY_ASSIGN(const ToolRun listed,
                 run_tool({demo.program("ckpt-inspect"), checkpoint, "--tensors"}));
  if (listed.code != 0)
    return untrue("ckpt-inspect " + checkpoint + " ended with code " + std::to_string(listed.code));
  EBB_TRY_ASSIGN(const ToolRun run, run_tool({"/bin/sh", "-c", hash_command(demo, checkpoint)}));
  constexpr std::size_t kHexDigits = 64;
  if (run.code != 0 || run.output.size() < kHexDigits)
    return untrue("sha256sum ended with code " + std::to_string(run.code));
  return run.output.substr(0, kHexDigits);
}

Result<Lines> claim_tools(const Demo& demo, Story& story) {
  EBB_TRY_ASSIGN(const Trained trained, story.killed);
  EBB_TRY_ASSIGN(const std::string store, trained.results.text("store"));
  Lines lines;
  EBB_TRY(add(lines, "5", shown_by_inspect(demo, store)));
  EBB_TRY(add(lines, "5", converted(demo)));
  EBB_TRY(add(lines, "5", flipped_bit_named(demo, store)));
  return lines;
}

Result<Lines> claim_deepspeed(const Demo& demo, Story&) {
  const std::string source = (demo.fixtures / "deepspeed/z3_muon_bf16_w4/data").string();
  Lines lines;
  EBB_TRY(add(lines, "6", explained(demo, source)));
  EBB_TRY(add(lines, "6", states_kept(demo, source)));
  return lines;
}

Result<Lines> claim_pictures(const Demo& demo, Story& story) {
  EBB_TRY_ASSIGN(const Trained trained, story.killed);
  EBB_TRY_ASSIGN(const std::string store, trained.results.text("store"));
  const std::string map = demo.path("shards.html");
  const Command command = {demo.program("ckpt-inspect"), store, "--map", map};
  EBB_TRY_ASSIGN(const ToolRun run, run_tool(command));
  if (run.code != 0)
    return untrue("ckpt-inspect --map ended with code " + std::to_string(run.code));
  for (const std::string& file : {map, demo.path("timeline.json")}) {
    std::error_code failed;
    if (fs::file_size(file, failed) == 0 || failed) return untrue(file + " was not written");
  }
  return Lines{{"7 shard map " + map + ", timeline " + demo.path("timeline.json") + " (Perfetto)",
                shell(command)}};
}

}  // namespace ebb::demo
