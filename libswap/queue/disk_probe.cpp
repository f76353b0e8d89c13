#include "ebb/libswap/queue/disk_probe.h"

#include "ebb/libswap/queue/probe_file.h"

namespace ebb::libswap {
namespace {

Result<> check_probe(const DiskProbe& probe) {
  const std::uint64_t step = probe.operation_bytes;
  if (step != 0 && step % 4096 == 0 && probe.depth != 0 && probe.depth <= 256 &&
      probe.bytes >= step && probe.bytes < (std::uint64_t{1} << 50))
    return {};
  return Error{Code::usage,
               compose("cannot measure a disk with {} bytes in operations of {}, {} at a time",
                       probe.bytes, step, probe.depth)};
}

}  // namespace

Result<DiskLimit> measure_disk(IoQueue& queue, const fs::path& directory, const DiskProbe& probe) {
  EBB_TRY(check_probe(probe));
  using Traffic = ProbeFile::Traffic;
  const ProbeFile::Setting setting{.operation_bytes = probe.operation_bytes, .depth = probe.depth};
  EBB_TRY_ASSIGN(
      const auto file,
      ProbeFile::make(queue, directory,
                      {.half_bytes = probe.bytes - probe.bytes % probe.operation_bytes,
                       .memory_bytes = std::uint64_t{probe.depth} * probe.operation_bytes}));
  DiskLimit limit;
  EBB_TRY_ASSIGN(limit.read, file->measure(Traffic::read, setting));
  EBB_TRY_ASSIGN(limit.write, file->measure(Traffic::write, setting));
  EBB_TRY_ASSIGN(limit.mixed, file->measure(Traffic::mixed, setting));
  limit.direct = file->info().direct;
  limit.in_memory = file->info().in_memory;
  return limit;
}

}  // namespace ebb::libswap
