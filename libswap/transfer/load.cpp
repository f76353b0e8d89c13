#include "libswap/transfer/load.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>

#include "libswap/transfer/box_reader.h"
#include "libswap/transfer/in_parallel.h"

namespace libswap {

using formats::Box;
using formats::Chunk;
using formats::Code;
using formats::Error;
using formats::Result;
using formats::TensorEntry;

namespace {

// Part of one Wanted, as much as is read at once.
struct Run {
  std::size_t wanted = 0;
  std::uint64_t first = 0;  // byte of the box
  std::uint64_t size = 0;
  std::uint32_t file = 0;  // where its first element lies
  std::uint64_t offset = 0;
};

class Loading {
 public:
  Loading(const formats::Checkpoint& checkpoint, std::span<const Wanted> wanted)
      : checkpoint_(checkpoint), wanted_(wanted), fingerprints_(wanted.size(), 0) {}

  Result<> plan();
  Result<> run(const LoadOptions& options);
  std::vector<std::uint64_t> take_fingerprints() { return std::move(fingerprints_); }

 private:
  const TensorEntry& tensor_of(const Wanted& one) const {
    return checkpoint_.catalog().tensors[one.tensor];
  }
  Result<> check(const Wanted& one) const;
  void cut(std::size_t number);
  void place(Run& run) const;
  Result<> read(const Run& run);

  const formats::Checkpoint& checkpoint_;
  std::span<const Wanted> wanted_;
  std::map<std::uint32_t, BoxReader> readers_;  // by tensor
  std::vector<Run> runs_;
  std::mutex mutex_;
  std::vector<std::uint64_t> fingerprints_;  // guarded by mutex_
};

Result<> Loading::check(const Wanted& one) const {
  const auto& tensors = checkpoint_.catalog().tensors;
  if (one.tensor >= tensors.size())
    return Error{Code::layout,
                 "tensor " + std::to_string(one.tensor) + " is wanted of a checkpoint that has " +
                     std::to_string(tensors.size()),
                 {}};
  const TensorEntry& tensor = tensors[one.tensor];
  if (!inside(one.box, tensor.shape))
    return Error{Code::layout,
                 label_of(tensor) + ": " + to_string(one.box) + " is wanted of a tensor of shape " +
                     formats::to_string(tensor.shape),
                 {}};
  const auto bytes = formats::packed_bytes(tensor.dtype, formats::volume(one.box.extent));
  if (bytes == one.into.size()) return {};
  return Error{Code::layout,
               label_of(tensor) + ": the memory for " + to_string(one.box) + " has " +
                   std::to_string(one.into.size()) + " bytes, its elements " +
                   std::to_string(bytes.value_or(0)),
               {}};
}

Result<> Loading::plan() {
  for (std::size_t i = 0; i < wanted_.size(); ++i) {
    const Wanted& one = wanted_[i];
    TRY(check(one));
    if (!readers_.contains(one.tensor)) {
      TRY_ASSIGN(BoxReader reader, BoxReader::open(checkpoint_, tensor_of(one)));
      TRY(prove_coverage(tensor_of(one), checkpoint_.catalog()));
      readers_.emplace(one.tensor, std::move(reader));
    }
    cut(i);
  }
  std::ranges::stable_sort(
      runs_, {}, [](const Run& run) { return std::tie(run.file, run.offset, run.first); });
  return {};
}

void Loading::cut(std::size_t number) {
  const std::uint64_t bytes = wanted_[number].into.size();
  for (std::uint64_t first = 0; first < bytes; first += BoxReader::kMaxRun) {
    Run run{.wanted = number, .first = first, .size = std::min(BoxReader::kMaxRun, bytes - first)};
    place(run);
    runs_.push_back(run);
  }
}

void Loading::place(Run& run) const {
  const Wanted& one = wanted_[run.wanted];
  const BoxReader& reader = readers_.at(one.tensor);
  if (reader.packed()) return;  // stored as one chunk; any order is as good
  Box element = formats::boxes_of(one.box.extent, {run.first / reader.elem_bytes(), 1}).front();
  for (std::size_t d = 0; d < element.offset.size(); ++d) element.offset[d] += one.box.offset[d];
  const Chunk* chunk = reader.chunk_with(element);
  if (chunk == nullptr) return;
  std::uint64_t before = 0;  // elements of the chunk
  for (std::size_t d = 0; d < element.offset.size(); ++d)
    before = before * chunk->box.extent[d] + element.offset[d] - chunk->box.offset[d];
  run.file = chunk->file;
  run.offset = chunk->offset + before * reader.elem_bytes();
}

Result<> Loading::read(const Run& run) {
  const Wanted& one = wanted_[run.wanted];
  TRY_ASSIGN(BoxStream stream,
             BoxStream::open(readers_.at(one.tensor), one.box, BoxStream::Fingerprint::checked));
  stream.seek(run.first);
  TRY(stream.read(one.into.subspan(run.first, run.size)));
  const std::lock_guard guard(mutex_);
  fingerprints_[run.wanted] += stream.fingerprint();
  return {};
}

Result<> Loading::run(const LoadOptions& options) {
  std::atomic<std::size_t> next = 0;
  const auto work = [&](const std::atomic<bool>& stop) -> Result<> {
    while (!stop.load(std::memory_order_relaxed)) {
      if (options.cancel != nullptr && options.cancel->load(std::memory_order_relaxed))
        return Error{Code::cancelled, "stopped on request before everything was loaded", {}};
      const std::size_t run = next.fetch_add(1, std::memory_order_relaxed);
      if (run >= runs_.size()) break;
      TRY(read(runs_[run]));
    }
    return {};
  };
  const std::uint64_t workers =
      std::min<std::uint64_t>(workers_or_default(options.workers), runs_.size());
  return in_parallel(static_cast<std::uint32_t>(workers), work);
}

}  // namespace

Result<LoadReport> load(const formats::Checkpoint& checkpoint, std::span<const Wanted> wanted,
                        const LoadOptions& options) {
  Loading loading(checkpoint, wanted);
  TRY(loading.plan());
  TRY(loading.run(options));
  LoadReport report;
  for (const Wanted& one : wanted) report.bytes += one.into.size();
  report.fingerprints = loading.take_fingerprints();
  return report;
}

}  // namespace libswap
