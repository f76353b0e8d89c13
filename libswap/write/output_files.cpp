#include "ebb/libswap/write/output_files.h"

#include <algorithm>
#include <optional>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/units.h"
#include "ebb/libswap/queue/io_batch.h"

namespace ebb::libswap {

OutputFiles::OutputFiles(IoQueue& io, fs::path directory, std::span<const OutputFile> files,
                         const Settings& settings)
    : io_(io),
      directory_(std::move(directory)),
      files_(files),
      settings_(settings),
      direct_(settings.segment_bytes % kBlock == 0 ? Direct::preferred : Direct::off),
      outputs_(files.size()) {}

OutputFiles::~OutputFiles() {
  for (const Output& output : outputs_)
    if (output.state == State::open) static_cast<void>(io_.backend().close(output.id));
}

Result<> OutputFiles::ensure_open(std::uint32_t file) {
  {
    const MutexLock lock(mutex_);
    Output& output = outputs_[file];
    while (!stopped_ && output.state != State::open &&
           (output.state != State::absent || open_ >= kMostOpen))
      changed_.wait(mutex_);
    if (stopped_) return Error{Code::cancelled, "another file could not be written"};
    if (output.state == State::open) return {};
    output.state = State::opening;
    ++open_;
  }
  Result<Output> made = make(files_[file]);
  const MutexLock lock(mutex_);
  if (made) {
    outputs_[file] = *made;
  } else {
    outputs_[file].state = State::closed;
    --open_;
  }
  changed_.notify_all();
  if (!made) return std::move(made).error();
  return {};
}

Result<OutputFiles::Output> OutputFiles::make(const OutputFile& file) {
  Output output;
  IoBackend& files = io_.backend();
  EBB_TRY_ASSIGN(output.id,
                 files.open(directory_ / file.name, {.access = Access::read_write,
                                                     .creation = settings_.creation,
                                                     .direct = direct_,
                                                     .visibility = Visibility::by_umask}));
  const auto prepare = [&]() -> Result<> {
    EBB_TRY_ASSIGN(const FileInfo info, files.info(output.id));
    if (info.direct) output.alignment = info.alignment;
    if (output.alignment > kLargestBlock ||
        (info.direct && settings_.segment_bytes % info.alignment != 0))
      return Error{Code::unsupported,
                   compose("{}: this disk wants blocks of {} bytes", files.path_of(output.id),
                           info.alignment),
                   "choose a destination on another disk"};
    if (file.size == 0 || settings_.reservation == Reservation::none) return {};
    return files.allocate(output.id, formats::align_up(file.size, output.alignment));
  };
  if (Result<> prepared = prepare(); !prepared) {
    static_cast<void>(files.close(output.id));
    return std::move(prepared).error();
  }
  output.state = State::open;
  return output;
}

OutputFiles::Output OutputFiles::get(std::uint32_t file) const {
  const MutexLock lock(mutex_);
  EBB_CHECK(outputs_[file].state == State::open);
  return outputs_[file];
}

void OutputFiles::write(std::uint32_t file, std::uint64_t offset, std::span<std::byte> data,
                        std::function<void(Result<>)> done) {
  const Output output = get(file);
  const std::size_t used = formats::align_up(data.size(), output.alignment);
  const std::span<std::byte> whole(data.data(), used);
  std::ranges::fill(whole.subspan(data.size()), std::byte{0});
  io_.submit({RawOp::Kind::write, output.id, offset, whole, settings_.priority, std::move(done)});
}

Result<> OutputFiles::sync(std::span<const std::uint32_t> files) {
  IoBatch batch;
  for (const std::uint32_t file : files)
    io_.submit({RawOp::Kind::sync_data, get(file).id, 0, {}, settings_.priority, batch.add()});
  return batch.wait();
}

Result<> OutputFiles::cut(std::uint32_t file, std::uint64_t size) {
  const Output output = get(file);
  if (size % output.alignment == 0 && settings_.reservation == Reservation::whole_files) return {};
  return io_.backend().truncate(output.id, size);
}

Result<> OutputFiles::close(std::uint32_t file) {
  const FileId id = get(file).id;
  {
    const MutexLock lock(mutex_);
    outputs_[file].state = State::closed;
    --open_;
    changed_.notify_all();
  }
  return io_.backend().close(id);
}

void OutputFiles::stop() {
  const MutexLock lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

}  // namespace ebb::libswap
