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
  void (*run)(formats::ByteView input);
};

std::span<const Target> all_targets();
const Target* target_named(std::string_view name);  // nullptr: there is none

// One function a target.
void pickle(formats::ByteView input);
void zip(formats::ByteView input);
void torch_archive(formats::ByteView input);
void torch_file(formats::ByteView input);
void zstd_stream(formats::ByteView input);
void dcp(formats::ByteView input);
void dcp_ranks(formats::ByteView input);
void megatron(formats::ByteView input);
void safetensors_header(formats::ByteView input);
void safetensors_index(formats::ByteView input);
void deepspeed_names(formats::ByteView input);
void deepspeed(formats::ByteView input);
void hdf5_report(formats::ByteView input);
void hdf5_superblock(formats::ByteView input);
void hdf5_values(formats::ByteView input);
void native_manifest(formats::ByteView input);
void native_store(formats::ByteView input);
void any_tree(formats::ByteView input);

}  // namespace ebb::fuzz
