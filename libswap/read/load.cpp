#include "ebb/libswap/read/load.h"

#include <algorithm>
#include <tuple>

#include "ebb/libswap/read/in_parallel.h"
#include "ebb/libswap/sys/mutex.h"

namespace ebb::libswap {

namespace {

// Part of one Wanted, as much as is read at once.
struct Run {
  std::size_t wanted = 0;
  std::uint64_t first = 0;  // byte of the box
  std::uint64_t size = 0;
  std::uint32_t file = 0;  // where its first element lies
  std::uint64_t offset = 0;
};

Result<> check(const Wanted& one, const TensorEntry& tensor) {
  if (!inside(one.box, tensor.shape))
    return Error{Code::layout, compose("{}: {} is wanted of a tensor of shape {}", label_of(tensor),
                                       to_string(one.box), formats::to_string(tensor.shape))};
  const auto bytes = formats::packed_bytes(tensor.dtype, formats::volume(one.box.extent));
  if (bytes == one.into.size() && (bytes == 0 || one.into.data() != nullptr)) return {};
  return Error{Code::layout,
               compose("{}: the memory for {} has {} bytes{}, its elements {}", label_of(tensor),
                       to_string(one.box), one.into.size(),
                       one.into.data() == nullptr ? " and no address" : "", bytes.value_or(0))};
}

}  // namespace

// What one call loads.
class Loader::Portion {
 public:
  explicit Portion(std::span<const Wanted> wanted) : wanted_(wanted) {
    report_.fingerprints.resize(wanted.size());
  }

  Result<> plan(Loader& loader);
  Result<> run(const LoadOptions& options);
  LoadReport take_report() {
    const MutexLock lock(mutex_);
    return std::move(report_);
  }

 private:
  void cut(std::size_t number);
  void place(Run& run) const;
  Result<> read(const Run& run);

  std::span<const Wanted> wanted_;
  std::vector<const formats::BoxReader*> readers_;  // of each that is wanted
  std::vector<Run> runs_;
  Mutex mutex_;
  LoadReport report_ EBB_GUARDED_BY(mutex_);
};

Result<> Loader::Portion::plan(Loader& loader) {
  const MutexLock lock(mutex_);
  for (std::size_t i = 0; i < wanted_.size(); ++i) {
    EBB_TRY_ASSIGN(const formats::BoxReader* reader, loader.reader_of(wanted_[i].tensor));
    EBB_TRY(check(wanted_[i], reader->tensor()));
    readers_.push_back(reader);
    cut(i);
    report_.bytes += wanted_[i].into.size();
  }
  std::ranges::stable_sort(
      runs_, {}, [](const Run& run) { return std::tie(run.file, run.offset, run.first); });
  return {};
}

void Loader::Portion::cut(std::size_t number) {
  const std::uint64_t bytes = wanted_[number].into.size();
  for (std::uint64_t first = 0; first < bytes; first += formats::BoxReader::kMaxRun) {
    Run run{.wanted = number,
            .first = first,
            .size = std::min(formats::BoxReader::kMaxRun, bytes - first)};
    place(run);
    runs_.push_back(run);
  }
}

void Loader::Portion::place(Run& run) const {
  const Wanted& one = wanted_[run.wanted];
  const formats::BoxReader& reader = *readers_[run.wanted];
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

Result<> Loader::Portion::read(const Run& run) {
  const Wanted& one = wanted_[run.wanted];
  EBB_TRY_ASSIGN(formats::BoxStream stream,
                 formats::BoxStream::open(*readers_[run.wanted], one.box,
                                          formats::BoxStream::Fingerprint::checked));
  stream.seek(run.first);
  EBB_TRY(stream.read(one.into.subspan(run.first, run.size)));
  const MutexLock lock(mutex_);
  report_.fingerprints[run.wanted] += stream.fingerprint();
  return {};
}

Result<> Loader::Portion::run(const LoadOptions& options) {
  std::atomic<std::size_t> next = 0;
  const auto work = [&](const std::atomic<bool>& stop) -> Result<> {
    while (!stop.load(std::memory_order_relaxed)) {
      if (options.cancel != nullptr && options.cancel->load(std::memory_order_relaxed))
        return Error{Code::cancelled, "stopped on request before everything was loaded"};
      const std::size_t run = next.fetch_add(1, std::memory_order_relaxed);
      if (run >= runs_.size()) break;
      EBB_TRY(read(runs_[run]));
    }
    return {};
  };
  const std::uint32_t wanted = options.workers != 0 ? options.workers : kLoadWorkers;
  const std::uint64_t workers = std::min<std::uint64_t>(wanted, runs_.size());
  return in_parallel(static_cast<std::uint32_t>(workers), work);
}

Result<const formats::BoxReader*> Loader::reader_of(std::uint32_t tensor) {
  const auto known = readers_.find(tensor);
  if (known != readers_.end()) return &known->second;
  const Catalog& catalog = checkpoint_.catalog();
  if (tensor >= catalog.tensors.size())
    return Error{Code::layout, compose("tensor {} is wanted of a checkpoint that has {}", tensor,
                                       catalog.tensors.size())};
  EBB_TRY_ASSIGN(formats::BoxReader reader,
                 formats::BoxReader::open(checkpoint_, catalog.tensors[tensor]));
  EBB_TRY(prove_coverage(catalog.tensors[tensor], catalog));
  return &readers_.emplace(tensor, std::move(reader)).first->second;
}

Result<LoadReport> Loader::load(std::span<const Wanted> wanted) {
  EBB_TRY(process_.check());
  Portion portion(wanted);
  EBB_TRY(portion.plan(*this));
  EBB_TRY(portion.run(options_));
  return portion.take_report();
}

void want_range(std::uint32_t tensor, const Shape& shape, FlatRange range,
                std::span<std::byte> into, std::vector<Wanted>& wanted) {
  if (range.count == 0) return;
  const auto elems = formats::checked_volume(shape);
  const auto end = formats::checked_add(range.first, range.count);
  const std::uint64_t elem_bytes = into.size() / range.count;
  if (!elems || !end || *end > *elems || into.size() % range.count != 0) {
    wanted.push_back({tensor, {{range.first}, {range.count}}, into});
    return;
  }
  for (Box& box : formats::boxes_of(shape, range)) {
    const std::uint64_t bytes = formats::volume(box.extent) * elem_bytes;
    wanted.push_back({tensor, std::move(box), into.first(bytes)});
    into = into.subspan(bytes);
  }
}

Result<LoadReport> load(const Checkpoint& checkpoint, std::span<const Wanted> wanted,
                        const LoadOptions& options) {
  return Loader(checkpoint, options).load(wanted);
}

}  // namespace ebb::libswap
