#include "tools/cli/result_file.h"

#include "ebb/formats/core/bytes.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/libswap/queue/io_queue.h"
#include "ebb/libswap/sys/process.h"
#include "ebb/libswap/tree/file_tree.h"
#include "tools/cli/paths.h"

namespace ebb::tools {

namespace fs = libswap::fs;

namespace {

// An empty file holds nothing that could be lost: mktemp makes one.
Result<bool> is_of_its_kind(const ResultFile& file) {
  EBB_TRY_ASSIGN(const auto tree, libswap::open_tree(file.path));
  EBB_TRY_ASSIGN(const auto source, tree->open(tree->entries().at(0).name));
  if (source->size() == 0) return true;
  const std::uint64_t head = file.beginning.size();
  if (source->size() < head) return false;
  EBB_TRY_ASSIGN(const auto bytes, formats::read_bytes(*source, 0, head, head));
  return formats::text_of(bytes) == file.beginning;
}

}  // namespace

Result<> check_replaceable(const ResultFile& file) {
  EBB_TRY(check_folder_of(file.path));
  std::error_code code;
  const fs::file_status status = fs::symlink_status(file.path, code);
  if (!fs::exists(status)) return {};
  if (fs::is_regular_file(status)) {
    EBB_TRY_ASSIGN(const bool ours, is_of_its_kind(file));
    if (ours) return {};
  }
  return Error{Code::usage,
               compose("{} {}: it is there, and no {}", file.flag, printable(file.path), file.kind),
               "name another file"};
}

Result<> write_result(const ResultFile& file, std::string_view text) {
  EBB_TRY(check_replaceable(file));
  EBB_TRY_ASSIGN(auto chosen, libswap::open_backend(libswap::BackendChoice::threads));
  EBB_TRY_ASSIGN(const auto io, libswap::IoQueue::start(std::move(chosen.backend), {}));
  const std::string part = compose("{}.part-{}", file.path, libswap::process_id());
  EBB_TRY_ASSIGN(const libswap::FileId id,
                 io->backend().open(part, {.access = libswap::Access::read_write,
                                           .creation = libswap::Creation::create_new,
                                           .visibility = libswap::Visibility::by_umask}));
  Result<> done = io->write(id, 0, formats::view_of(text));
  if (done) done = io->backend().sync(id);
  if (auto closed = io->backend().close(id); done && !closed) done = std::move(closed);
  if (done) done = io->backend().rename(part, file.path);
  // The first failure is the one to report.
  if (!done) static_cast<void>(io->backend().remove(part));
  return done;
}

}  // namespace ebb::tools
