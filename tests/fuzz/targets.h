// The functions that eat hostile bytes: each takes any input and must come back without a crash, a
// hang or an allocation out of proportion. libFuzzer drives them (./dev fuzz) and the replay test
// runs the kept inputs through the same functions. A target CHECKs what must hold for every input.
// How to add one: CONTRIBUTING.md.
#pragma once

#include <span>
#include <string_view>

#include "ebb/formats/core/bytes.h"

namespace ebb::fuzz {

struct Target {
  std::string_view name;  // also the folder below tests/fuzz/corpus
  void (*run)(ByteView input);
};

std::span<const Target> all_targets();
const Target* target_named(std::string_view name);  // nullptr: there is none

// One function a target.
void pickle(ByteView input);
void zip(ByteView input);
void torch_archive(ByteView input);
void torch_file(ByteView input);
void zstd_stream(ByteView input);
void dcp(ByteView input);
void dcp_ranks(ByteView input);
void megatron(ByteView input);
void megatron_ranks(ByteView input);
void safetensors_header(ByteView input);
void safetensors_index(ByteView input);
void deepspeed_names(ByteView input);
void deepspeed(ByteView input);
void hdf5_report(ByteView input);
void hdf5_superblock(ByteView input);
void hdf5_values(ByteView input);
void native_manifest(ByteView input);
void native_store(ByteView input);
void any_tree(ByteView input);

}  // namespace ebb::fuzz
