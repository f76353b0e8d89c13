// ckpt-convert as a user runs it: what arrives is what was there, and what must not happen does
// not.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "tests/support/archives.h"
#include "tests/tools/convert.h"
#include "tests/tools/killed_convert.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;
using test_support::Outcome;
using test_support::run_program;
using test_support::ScratchDirectory;

constexpr const char* kHsdp = "dcp/hsdp_2x2/data";
constexpr const char* kSharded = "safetensors/dcp_hf_sharded_w3/data";

// name, state, dtype, shape, sha256 of every tensor; keys are each format's own.
std::string content(const std::string& path) {
  const Outcome run = run_program("ckpt-inspect", {path, "--tensors", "--digest"});
  EXPECT_EQ(run.exit, 0) << run.err;
  std::string out;
  std::istringstream lines(run.out);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::vector<std::string> cells{std::istream_iterator<std::string>(words), {}};
    // The number of chunks is how it is stored, not what.
    if (cells.size() > 2) cells.erase(cells.end() - 2);
    for (const std::string& cell : cells) out += cell + " ";
    out += "\n";
  }
  return out;
}

TEST(Convert, DcpToSafetensorsToDcpKeepsEveryBit) {
  const ScratchDirectory scratch;
  const std::string one = scratch / "one", two = scratch / "two";
  const Outcome there = convert({kHsdp, one, "--to", "safetensors"});
  ASSERT_EQ(there.exit, 0) << there.err;
  EXPECT_NE(there.out.find("41 tensors, 1 file, "), std::string::npos) << there.out;
  EXPECT_NE(there.out.find("verified bit for bit"), std::string::npos);
  const Outcome back = convert({one, two, "--to", "dcp", "--world-size", "2"});
  ASSERT_EQ(back.exit, 0) << back.err;
  EXPECT_EQ(content(one), content(kHsdp));
  EXPECT_EQ(content(two), content(kHsdp));
}

// 400 MB within 128 MiB and twice the largest chunk (32 MiB): of addresses, so that the program,
// its libraries and stacks are counted, too.
TEST(Convert, WhatIsLargerThanItsMemoryStaysWithinIt) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers reserve terabytes of addresses";
#endif
  const ScratchDirectory scratch;
  const std::string source = scratch / "source", out = scratch / "out";
  const Outcome made = run_program("ebb-make-checkpoint", {source, "dcp", "400000000", "4"});
  ASSERT_EQ(made.exit, 0) << made.err;
  const std::string limit = std::to_string((128 + 2 * 32) << 20);
  const std::vector<std::string> plain = {"-t", "dcp", "-w", "3"};
  const std::vector<std::string> packed = {"-t", "dcp", "-w", "3", "--compress", "zstd"};
  const std::vector<std::string> chunked = {"-t", "hdf5", "--compress",
                                            "zstd"};  // and a child reads
  for (const auto& target : {plain, packed, chunked}) {
    std::vector<std::string> command = {
        "run", "--address-space", limit, EBB_BIN "/ckpt-convert", source, out, "-f"};
    command.insert(command.end(), target.begin(), target.end());
    const Outcome run = run_program("ebb-measure", command);
    EXPECT_EQ(run.exit, 0) << run.out << run.err;
    EXPECT_NE(run.err.find("verified bit for bit"), std::string::npos) << run.err;
  }
}

class ConvertPartition : public testing::TestWithParam<const char*> {};

TEST_P(ConvertPartition, KeepsEveryBitAndValue) {
  const ScratchDirectory scratch;
  for (const char* source : {"dcp/zoo_w1/data", "dcp/fsdp2_w4_fewer_rows_flat_optim/data"}) {
    const std::string out = scratch / "out";
    const Outcome run = convert({source, out, "-t", "dcp", "-w", "3", "-p", GetParam(), "--force"});
    ASSERT_EQ(run.exit, 0) << run.err;
    const Outcome diff = run_program("ckpt-inspect", {source, "--diff", out});
    EXPECT_EQ(diff.exit, 0) << diff.out << diff.err;
    const std::string shards = scratch / "shards";
    const Outcome torn =
        convert({source, shards, "-t", "safetensors", "-w", "3", "-p", GetParam(), "-f"});
    ASSERT_EQ(torn.exit, 0) << torn.err;
    EXPECT_EQ(content(shards), content(source));
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, ConvertPartition,
                         testing::Values("replicated", "zero12", "zero12-boundary", "zero3", "rows",
                                         "layer-wise"));

TEST(Convert, BringsDeepSpeedZero3MuonToAnyNumberOfRanks) {
  const ScratchDirectory scratch;
  const std::string source = "deepspeed/z3_muon_bf16_w4/data", out = scratch / "out";
  const Outcome run = convert({source, out, "-t", "dcp", "-w", "3", "-p", "zero3"});
  ASSERT_EQ(run.exit, 0) << run.err;
  const Outcome diff = run_program("ckpt-inspect", {source, "--diff", out});
  EXPECT_EQ(diff.exit, 0) << diff.out << diff.err;
}

// A wrapper's prefix in one, numbers of parameters in the other: the parameters are the same.
TEST(Convert, DiffKnowsParametersUnderTheNamesOfEitherFormat) {
  const ScratchDirectory scratch;
  const std::string out = scratch / "out";
  for (const char* name : {"fsdp_uneven_w3_muon", "fsdp_swiglu_hsdp_outer_2x2_muon"})
    for (const char* format : {"dcp", "torch", "megatron"}) {
      const std::string source = std::string("megatron/") + name + "/data";
      const Outcome run = convert({source, out, "-t", format, "-w", "2", "-f"});
      ASSERT_EQ(run.exit, 0) << source << " " << format << ": " << run.err;
      const Outcome diff = run_program("ckpt-inspect", {source, "--diff", out});
      EXPECT_EQ(diff.exit, 0) << source << " " << format << ": " << diff.out << diff.err;
      const Outcome back = run_program("ckpt-inspect", {out, "--diff", source});
      EXPECT_EQ(back.exit, 0) << source << " " << format << ": " << back.out << back.err;
    }
}

TEST(Convert, EveryReadableFixtureReachesEveryWritableFormat) {
  const ScratchDirectory scratch;
  const std::string out = scratch / "out";
  std::size_t converted = 0;
  for (const char* family : {"dcp", "deepspeed", "safetensors"}) {
    for (const auto& entry : fs::directory_iterator(fs::path(EBB_FIXTURES) / family)) {
      const std::string source = entry.path().string() + "/data";
      const std::string name = entry.path().filename().string();
      if (!fs::exists(source) || name.starts_with("bad_")) continue;
      for (const char* format : {"dcp", "safetensors"}) {
        const Outcome run = convert({source, out, "-t", format, "-w", "3", "-p", "zero12", "--drop",
                                     "--names", "order", "-f"});
        ASSERT_EQ(run.exit, 0) << source << " " << format << ": " << run.err;
        const Outcome diff = run_program("ckpt-inspect", {source, "--diff", out});
        // The same format lost values where --drop was needed; a tensor is never lost.
        EXPECT_EQ(diff.out.find("): only on"), std::string::npos)
            << source << " " << format << ": " << diff.out;
        ++converted;
      }
    }
  }
  EXPECT_GE(converted, 70u);
}

TEST(Convert, FiltersByGlobAndState) {
  const ScratchDirectory scratch;
  const Outcome run = convert({kHsdp, scratch / "out", "-t", "safetensors", "--states",
                               "param,momentum_buffer", "-x", "blk.1.*", "--json"});
  ASSERT_EQ(run.exit, 0) << run.err;
  EXPECT_NE(run.out.find("\"schema\": \"ckpt.convert/1\""), std::string::npos);
  const std::string tensors = content(scratch / "out");
  EXPECT_NE(tensors.find("blk.0.up.weight momentum_buffer"), std::string::npos);
  EXPECT_EQ(tensors.find("blk.1."), std::string::npos);
  EXPECT_EQ(tensors.find("exp_avg"), std::string::npos);
}

TEST(Convert, WeightsAloneMakeAPlainFileOfWeights) {
  const ScratchDirectory scratch;
  const std::string out = scratch / "out";
  for (const char* source :
       {"deepspeed/universal_z1_adamw/data", "dcp/fsdp2_w2_odd_rows_tied/data",
        "dcp/fsdp2_w4_fewer_rows_flat_optim/data", "megatron/fsdp_uneven_w3_muon/data"})
    for (const char* format : {"safetensors", "torch", "dcp"}) {
      const Outcome run = convert({source, out, "-f", "--to", format, "--states", "param"});
      ASSERT_EQ(run.exit, 0) << run.err;
      EXPECT_NE(run.out.find("leaves out what only an optimizer reads: "), std::string::npos)
          << run.out;
      const Outcome seen = run_program("ckpt-inspect", {out, "--json", "--groups"});
      EXPECT_NE(seen.out.find("\"groups\": []"), std::string::npos) << seen.out;
    }
}

// On stderr, a document a line; people who read it in a file are told nothing.
TEST(Convert, TellsProgramsHowFarItIs) {
  const ScratchDirectory scratch;
  const Outcome quiet = convert({kHsdp, scratch / "one", "-t", "dcp"});
  EXPECT_EQ(quiet.err, "");
  const Outcome told = convert({kHsdp, scratch / "two", "-t", "dcp", "--json"});
  ASSERT_EQ(told.exit, 0) << told.err;
  std::istringstream lines(told.err);
  std::string last;
  for (std::string line; std::getline(lines, line); last = line)
    EXPECT_TRUE(line.starts_with("{\"schema\": \"ebb.progress/1\", \"doing\": \"")) << line;
  EXPECT_NE(last.find("\"doing\": \"reading back\", \"bytes\": 0, \"of\": "), std::string::npos);
}

TEST(Convert, DryRunWritesNothing) {
  const ScratchDirectory scratch;
  const Outcome run = convert({kSharded, scratch / "out", "-t", "dcp", "-w", "2", "-n"});
  EXPECT_EQ(run.exit, 0) << run.err;
  EXPECT_NE(run.out.find("would write " + (scratch / "out") + ": dcp for 2 ranks, 5 tensors"),
            std::string::npos)
      << run.out;
  EXPECT_TRUE(fs::is_empty(scratch.path()));
}

TEST(ConvertRefuses, ToLoseSomethingSilently) {
  const ScratchDirectory scratch;
  const Outcome run =
      convert({"megatron/muon_layerwise_tp2_dp2/data", scratch / "out", "--to", "torch"});
  EXPECT_EQ(run.exit, 4);
  EXPECT_NE(run.err.find("torch cannot hold value \"args\": holds an object of class argparse"),
            std::string::npos)
      << run.err;
  EXPECT_NE(run.err.find("hint: --drop goes on without"), std::string::npos);
  EXPECT_TRUE(fs::is_empty(scratch.path()));
}

// What loading the source would call is in no output, in no spelling; the rest arrives.
TEST(ConvertRefuses, ToPassOnWhatLoadingWouldCall) {
  for (const char* source : {"dcp/unsafe_value_w1/data", "torch/bad_system_call/data"}) {
    for (const char* format : {"dcp", "torch", "safetensors", "hdf5", "ebb", "megatron"}) {
      if (format == std::string("hdf5") && !fs::exists(std::string(EBB_BIN) + "/ebb-hdf5-reader"))
        continue;
      const ScratchDirectory scratch;
      const std::string out = scratch / "out";
      const Outcome refused = convert({source, out, "--to", format});
      EXPECT_EQ(refused.exit, 3) << refused.err;
      EXPECT_NE(refused.err.find("posix.system"), std::string::npos) << refused.err;
      EXPECT_TRUE(fs::is_empty(scratch.path()));
      const Outcome run = convert({source, out, "--to", format, "--drop"});
      ASSERT_EQ(run.exit, 0) << format << run.err;
      EXPECT_NE(run.out.find("dropped value \""), std::string::npos) << run.out;
      EXPECT_EQ(run_program("ckpt-inspect", {out, "--verify"}).exit, 0);
      for (const auto& entry : fs::recursive_directory_iterator(out)) {
        if (!entry.is_regular_file()) continue;
        std::ifstream file(entry.path(), std::ios::binary);
        std::string bytes{std::istreambuf_iterator<char>(file), {}};
        // DCP's own word, which is no trace of the call.
        for (std::size_t at; (at = bytes.find("checkpoint.filesystem")) != std::string::npos;)
          bytes.erase(at, std::string_view("checkpoint.filesystem").size());
        for (const char* trace : {"posix", "system", "PWNED", "exec"})
          EXPECT_EQ(bytes.find(trace), std::string::npos) << format << " " << trace;
      }
    }
  }
  EXPECT_FALSE(fs::exists(fs::path(EBB_FIXTURES) / "PWNED"));
}

// Nothing that a reader makes of such a file shows the call.
TEST(ConvertRefuses, ToPassOnACallThatNoValueShows) {
  const std::string rank = "global_step3/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt";
  const std::string universal = "global_step3_universal/";
  const std::pair<std::string, std::string> cases[] = {
      {"deepspeed/z1_adamw_bf16_w2/data", rank},
      {"deepspeed/z1_adamw_bf16_w2/data", "global_step3/mp_rank_00_model_states.pt"},
      {"deepspeed/universal_z1_adamw/data", universal + "zero/optimizer_state.pt"},
      {"deepspeed/universal_z1_adamw/data", universal + "zero/blocks.0.attn.bias/exp_avg.pt"},
      {"deepspeed/universal_z1_adamw/data", universal + "zero/norm.running/fp32.pt"},
      {"deepspeed/universal_z1_adamw/data", universal + "mp_rank_00_model_states.pt"},
      {"megatron/flattened015_tied_dp3/data/iter_0000003", "common.pt"},
      {"torch/muon_adamw_state/data", "ckpt.pt"},
  };
  for (const auto& [fixture, file] : cases) {
    const ScratchDirectory scratch;
    const std::string source = scratch / "source", out = scratch / "out";
    fs::copy(fs::path(EBB_FIXTURES) / fixture, source, fs::copy_options::recursive);
    const ByteVector bytes = test_support::with_hidden_call(source + "/" + file);
    std::ofstream(source + "/" + file, std::ios::binary) << formats::text_of(bytes);
    const std::string shown =
        "\n  unsafe    \"posix.system\": Python may call it when it loads value \"pickle of " +
        file;
    const Outcome screen = run_program("ckpt-inspect", {source});
    EXPECT_EQ(screen.exit, 3) << file;
    EXPECT_NE(screen.out.find(shown), std::string::npos) << screen.out << screen.err;
    EXPECT_EQ(run_program("ckpt-inspect", {source, "--verify"}).exit, 3) << file;
    EXPECT_EQ(convert({source, out, "--to", "dcp"}).exit, 3) << file;
    EXPECT_FALSE(fs::exists(out));
    const Outcome run = convert({source, out, "--to", "dcp", "--drop"});
    EXPECT_EQ(run.exit, 0) << run.err;
    EXPECT_NE(run.out.find("dropped value \"pickle of " + file), std::string::npos) << run.out;
    EXPECT_EQ(run_program("ckpt-inspect", {out, "--verify"}).exit, 0) << file;
  }
  EXPECT_FALSE(fs::exists(fs::path(EBB_FIXTURES) / "PWNED"));
}

// What has no place to be read back from is not written first and refused afterwards.
TEST(ConvertRefuses, ToWriteHdf5WithoutItsReader) {
  const ScratchDirectory scratch;
  fs::copy_file(std::string(EBB_BIN) + "/ckpt-convert", scratch / "ckpt-convert");
  fs::create_directory(scratch / "empty");
  const std::string program = scratch / "ckpt-convert";
  const Outcome run = run_program(program, {kSharded, scratch / "empty/out", "--to", "hdf5"});
  EXPECT_EQ(run.exit, 4) << run.out;
  EXPECT_NE(run.err.find("no ebb-hdf5-reader lies beside ckpt-convert"), std::string::npos)
      << run.err;
  EXPECT_TRUE(fs::is_empty(scratch / "empty"));
  const Outcome version = run_program(program, {"--version"});
  EXPECT_NE(version.out.find("hdf5 is neither read nor written"), std::string::npos) << version.out;
}

TEST(ConvertRefuses, ToReplaceWithoutForce) {
  const ScratchDirectory scratch;
  const std::string out = scratch / "out";
  ASSERT_EQ(convert({kSharded, out, "-t", "dcp"}).exit, 0);
  const std::string before = content(out);
  const Outcome again = convert({kSharded, out, "-t", "dcp", "-w", "2"});
  EXPECT_EQ(again.exit, 2);
  EXPECT_NE(again.err.find("exists already"), std::string::npos) << again.err;
  EXPECT_EQ(content(out), before);
  EXPECT_EQ(convert({kSharded, out, "-t", "dcp", "-w", "2", "-f"}).exit, 0);
}

TEST(ConvertRefuses, ToTouchTheSource) {
  const ScratchDirectory scratch;
  const std::string source = scratch / "a/source";
  fs::create_directories(scratch / "a");
  fs::copy(fs::path(EBB_FIXTURES) / kSharded, source);
  const std::string before = content(source);
  struct Case {
    std::string destination;
    std::string says;
  };
  for (const Case& one : {Case{source + "/", "source and destination are the same place"},
                          Case{source + "/inner", "the destination lies inside the source"},
                          Case{scratch / "a/b/../source/x", "the destination lies inside"},
                          Case{scratch / "a", "the source lies inside the destination"}}) {
    const Outcome run = convert({source, one.destination, "-t", "dcp", "-f"});
    EXPECT_EQ(run.exit, 2) << one.destination;
    EXPECT_NE(run.err.find(one.says), std::string::npos) << run.err;
  }
  // Spelt from where the user stands; what is not there yet has no absolute name of its own.
  for (const auto& [from, to] :
       {std::pair{".", "inner"}, {".", "./inner"}, {"../source", "inner"}}) {
    const Outcome run =
        run_program("/bin/sh", {"-c", "cd '" + source + "' && exec \"$0\" \"$@\"",
                                std::string(EBB_BIN) + "/ckpt-convert", from, to, "-t", "dcp"});
    EXPECT_EQ(run.exit, 2) << from << " " << to;
    EXPECT_NE(run.err.find("the destination lies inside the source"), std::string::npos) << run.err;
  }
  EXPECT_EQ(content(source), before);
}

TEST(ConvertRefuses, AnIncompleteSource) {
  const ScratchDirectory scratch;
  const Outcome run = convert({"dcp/bad_hole/data", scratch / "out", "-t", "dcp"});
  EXPECT_EQ(run.exit, 3);
  EXPECT_NE(run.err.find("model.big"), std::string::npos) << run.err;
  EXPECT_TRUE(fs::is_empty(scratch.path()));
}

TEST(ConvertRefuses, WrongWords) {
  struct Case {
    std::vector<std::string> words;
    std::string says;
  };
  const std::vector<Case> cases = {
      {{kSharded, "out"}, "--to is missing: which format to write?"},
      {{kSharded, "out", "--to", "safetensor"}, "hint: did you mean --to safetensors?"},
      {{kSharded, "out", "--to", "dcp", "-w", "0"}, "--world-size takes 1 to 1048576 ranks, not 0"},
      {{kSharded, "out", "--to", "dcp", "-w", "-2"}, "--world-size takes a whole number, not '-2'"},
      {{kSharded, "out", "--to", "dcp", "-p", "row"}, "hint: did you mean --partition rows?"},
      {{kSharded, "--to", "dcp"}, "DST is missing"},
      {{"nowhere", "out", "--to", "dcp"}, "cannot open nowhere"},
  };
  for (const Case& one : cases) {
    const Outcome run = convert(one.words);
    EXPECT_EQ(run.exit, 2) << one.says;
    EXPECT_EQ(run.out, "");
    EXPECT_NE(run.err.find(one.says), std::string::npos) << run.err;
  }
}

TEST(ConvertRefuses, AFolderItCannotWriteTo) {
  const ScratchDirectory scratch;
  const Outcome run = convert({kSharded, scratch / "no/such/out", "-t", "dcp"});
  EXPECT_EQ(run.exit, 2);
  EXPECT_EQ(run.err, "ckpt-convert: error: " + scratch / "no/such/out" + ": there is no folder " +
                         scratch / "no/such" + "\nhint: mkdir -p " + scratch / "no/such" + "\n");
  const Outcome map = run_program("ckpt-inspect", {kSharded, "--map", scratch / "none/map.html"});
  EXPECT_EQ(map.exit, 2);
  EXPECT_NE(map.err.find(": there is no folder " + scratch / "none" + "\n"), std::string::npos)
      << map.err;
}

// 1 GiB of zeros that take no space on the disk.
void make_big_checkpoint(const std::string& directory) {
  constexpr std::uint64_t kBytes = std::uint64_t{1} << 30;
  const std::string header =
      "{\"w\":{\"dtype\":\"F32\",\"shape\":[16384,16384],\"data_offsets\":[0," +
      std::to_string(kBytes) + "]}}";
  fs::create_directory(directory);
  const std::string file = directory + "/model.safetensors";
  std::ofstream out(file, std::ios::binary);
  const std::uint64_t length = header.size();
  out.write(reinterpret_cast<const char*>(&length), sizeof(length));
  out << header;
  out.close();
  fs::resize_file(file, 8 + header.size() + kBytes);
}

TEST(ConvertStops, OnCtrlCAndTheSameCommandGoesOn) {
  const ScratchDirectory scratch;
  const std::string source = scratch / "source", folder = scratch / "results";
  make_big_checkpoint(source);
  fs::create_directory(folder);
  test_support::RunningProgram run("ckpt-convert", {source, folder + "/out", "-t", "dcp"});
  while (fs::is_empty(folder)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  run.signal(SIGINT);
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.exit, 130) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_NE(outcome.err.find("ckpt-convert: error: "), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("the same command goes on from here"), std::string::npos);
  EXPECT_FALSE(fs::exists(folder + "/out"));
  const Outcome again = convert({source, folder + "/out", "-t", "dcp"});
  EXPECT_EQ(again.exit, 0) << again.err;
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1);
}

TEST(ConvertStops, OnSigkillAndTheSameCommandGoesOn) {
  const ScratchDirectory scratch;
  const std::string source = scratch / "source", folder = scratch / "results";
  make_big_checkpoint(source);
  fs::create_directory(folder);
  // One worker: slow enough for a journal, which is first written after a second.
  const std::vector<std::string> command = {source, folder + "/out", "-t", "dcp", "--json", "-j",
                                            "1"};
  if (!killed_once_journaled(command, folder))
    GTEST_SKIP() << "this machine writes and checks a GiB in about a second";
  const Outcome again = convert(command);
  EXPECT_EQ(again.exit, 0) << again.err;
  EXPECT_EQ(again.out.find("\"resumed_bytes\": 0,"), std::string::npos) << again.out;
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1);
}

TEST(ConvertMemory, ATooSmallBudgetIsRefusedWithBothFigures) {
  const ScratchDirectory scratch;
  make_big_checkpoint(scratch / "source");
  const Outcome run =
      convert({scratch / "source", scratch / "out", "-t", "dcp", "--memory", "1MiB"});
  EXPECT_EQ(run.exit, 2) << run.err;
  EXPECT_NE(run.err.find("a memory budget of 1048576 bytes is too small: one worker needs "),
            std::string::npos)
      << run.err;
  EXPECT_NE(run.err.find("--memory 15MiB"), std::string::npos) << run.err;
}

TEST(ConvertHelp, BeginsWithExamples) {
  const Outcome run = convert({"-h"});
  EXPECT_EQ(run.exit, 0);
  EXPECT_TRUE(
      run.out.starts_with("ckpt-convert - writes a checkpoint as another format or for "
                          "other ranks\n\n  ckpt-convert ckpt/ out/ --to safetensors"))
      << run.out;
}

}  // namespace

}  // namespace ebb
