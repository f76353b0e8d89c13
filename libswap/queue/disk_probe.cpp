#include "ebb/libswap/queue/disk_probe.h"

#include "ebb/libswap/queue/probe_file.h"
#include "ebb/libswap/sys/aligned_buffer.h"
#include "ebb/libswap/sys/block_file.h"
#include "ebb/libswap/sys/process.h"

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

Result<std::vector<std::string>> io_notes(IoBackend& backend, const fs::path& directory) {
  const fs::path path = directory / compose("ebb-look-{}", process_id());
  EBB_TRY_ASSIGN(const FileId file, backend.open(path, {.access = Access::read_write,
                                                        .creation = Creation::create_new,
                                                        .direct = Direct::preferred}));
  const auto info = backend.info(file);
  EBB_TRY(backend.remove(path));
  EBB_TRY(backend.close(file));
  if (!info) return info.error();
  std::vector<std::string> notes;
  const std::string where = directory.string();
  if (info->in_memory)
    notes.push_back(where + " is in memory: its state survives a kill, not a power loss");
  else if (!info->direct)
    notes.push_back(where + ": its file system has no O_DIRECT; the page cache is used");
  else if (info->alignment > kFileBlock)
    notes.push_back(compose(
        "{}: direct I/O there needs multiples of {} bytes, tiles lie at multiples of {}; the page "
        "cache is used",
        where, info->alignment, kFileBlock));
  if (const std::string why = no_huge_pages(); !why.empty())
    notes.push_back("no huge pages: " + why + "; buffers are in pages of 4 KiB");
  if (const std::string why = little_locked_memory(); backend.name() == "io_uring" && !why.empty())
    notes.push_back(why + ": larger buffers are not registered with io_uring");
  return notes;
}

}  // namespace ebb::libswap
