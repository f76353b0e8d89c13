// Runs a program that parses one file for us, because we do not trust the file, or not the parser.
// The program has no file: it asks for bytes over a socket and is answered from a ByteSource, so
// every read goes the same way as all others. Protocol, little endian:
//   program -> us   'R' u64 offset, u32 count   wants that part of the file; we send the bytes
//                   'D' u32 count, bytes        a part of its report; the parts in order are it
//                   'E' u32 count, text         why it cannot report anything
// and it ends with exit code 0 after its report. Its input is the socket; its output and messages
// go nowhere, its environment is empty.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "ebb/formats/core/byte_source.h"

namespace ebb::libswap {

struct ProbeLimits {
  std::chrono::milliseconds time = std::chrono::minutes(2);
  std::uint64_t report = std::uint64_t{512} << 20;  // bytes
  std::uint64_t one_read = std::uint64_t{1} << 20;  // most bytes of one 'R'
};

// `command[0]` is the program's path; the file's size in decimal is appended as last argument.
// Whatever the program does - crash, hang, write nonsense, run out of memory - is one Error that
// names the file. Blocks until it has ended.
Result<ByteVector> run_probe(std::vector<std::string> command, const formats::ByteSource& file,
                             const ProbeLimits& limits);

}  // namespace ebb::libswap
