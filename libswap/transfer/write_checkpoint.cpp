#include "libswap/transfer/write_checkpoint.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <set>

#include "formats/catalog/range_crcs.h"
#include "formats/core/check.h"
#include "formats/core/float_cast.h"
#include "formats/core/units.h"
#include "libswap/transfer/box_reader.h"
#include "libswap/transfer/content_view.h"
#include "libswap/transfer/digest.h"
#include "libswap/transfer/file_stream.h"
#include "libswap/transfer/plan_check.h"

namespace libswap {

using formats::Code;
using formats::DType;
using formats::EmitPlan;
using formats::Error;
using formats::Fragment;
using formats::OutputFile;
using formats::RangeCrcs;
using formats::TensorData;

namespace {

constexpr std::uint64_t kBlock = 4096;  // what a file system gives out at least
constexpr std::uint64_t kCastBytes = 512 * formats::KiB;

// Steps 3 to 6: the files of a plan, below one directory.
class FileWriter {
 public:
  FileWriter(IoQueue& io, const formats::Checkpoint& content, const EmitPlan& plan,
             const WriteOptions& options)
      : io_(io),
        content_(content),
        plan_(plan),
        options_(options),
        stores_(stores_of(plan, content.catalog())),
        readers_(content.catalog().tensors.size()),
        fingerprints_(content.catalog().tensors.size(), 0),
        total_(bytes_of(plan)) {}

  Result<> write_all(const fs::path& directory);
  Result<> verify_content() const;
  Result<> verify_derived() const;
  const Stores& stores() const { return stores_; }
  std::vector<std::uint64_t> take_fingerprints() { return std::move(fingerprints_); }

 private:
  Result<> make_directories(const fs::path& directory);
  Result<> write_file(const fs::path& directory, const OutputFile& file);
  Result<> write_fragment(const Fragment& fragment);
  Result<> write_data(const TensorData& data);
  Result<> write_as_is(BoxStream& elements);
  Result<> write_cast(BoxStream& elements, DType from, DType to);
  Result<> append(formats::ByteView bytes);
  Result<> append_zeros(std::uint64_t count);
  Result<> check_cancelled() const;
  Result<const BoxReader*> reader_of(std::uint32_t tensor);
  void report(std::uint64_t position_in_file) const;

  IoQueue& io_;
  const formats::Checkpoint& content_;
  const EmitPlan& plan_;
  const WriteOptions& options_;
  Stores stores_;
  std::unique_ptr<FileStream> stream_;
  std::vector<std::unique_ptr<BoxReader>> readers_;  // made when first needed
  std::vector<std::uint64_t> fingerprints_;
  std::set<fs::path> subdirectories_;  // parents sort before their children
  std::optional<RangeCrcs> crcs_;      // of the file being written
  std::uint64_t finished_ = 0;         // bytes of the files that are complete
  std::uint64_t total_ = 0;
};

Result<> FileWriter::write_all(const fs::path& directory) {
  TRY_ASSIGN(stream_, FileStream::create(io_, options_.priority));
  TRY(make_directories(directory));
  for (const OutputFile& file : plan_.files) TRY(write_file(directory, file));
  for (auto sub = subdirectories_.rbegin(); sub != subdirectories_.rend(); ++sub)
    TRY(io_.backend().sync_directory(directory / *sub));
  TRY(io_.backend().sync_directory(directory));
  for (const OutputFile& file : plan_.commit_files) {
    TRY(write_file(directory, file));
    TRY(io_.backend().sync_directory((directory / file.name).parent_path()));
  }
  return {};
}

Result<> FileWriter::make_directories(const fs::path& directory) {
  for (const auto* files : {&plan_.files, &plan_.commit_files})
    for (const OutputFile& file : *files)
      for (fs::path sub = fs::path(file.name).parent_path(); !sub.empty(); sub = sub.parent_path())
        subdirectories_.insert(sub);
  TRY(io_.backend().make_directory(directory, Visibility::by_umask));
  for (const fs::path& sub : subdirectories_)
    TRY(io_.backend().make_directory(directory / sub, Visibility::by_umask));
  return {};
}

Result<> FileWriter::write_file(const fs::path& directory, const OutputFile& file) {
  TRY(check_cancelled());
  TRY(stream_->open(directory / file.name, file.size));
  crcs_.emplace(file);
  for (const Fragment& fragment : file.fragments) {
    TRY(append_zeros(fragment.offset - stream_->position()));
    TRY(write_fragment(fragment));
    report(stream_->position());
  }
  TRY(append_zeros(file.size - stream_->position()));
  TRY(stream_->finish());
  finished_ += file.size;
  report(0);
  return {};
}

Result<> FileWriter::append(formats::ByteView bytes) {
  crcs_->feed(bytes);
  return stream_->append(bytes);
}

Result<> FileWriter::append_zeros(std::uint64_t count) {
  crcs_->feed_zeros(count);
  return stream_->append_zeros(count);
}

Result<> FileWriter::write_fragment(const Fragment& fragment) {
  if (const auto* bytes = std::get_if<formats::ByteVector>(&fragment.data)) return append(*bytes);
  if (const auto* data = std::get_if<TensorData>(&fragment.data)) return write_data(*data);
  const auto& sealed = std::get<formats::Sealed>(fragment.data);
  const formats::ByteVector bytes = sealed.bytes(crcs_->of(sealed.over));
  CHECK(bytes.size() == sealed.size);
  return append(bytes);
}

Result<> FileWriter::write_data(const TensorData& data) {
  TRY_ASSIGN(const BoxReader* reader, reader_of(data.tensor));
  TRY_ASSIGN(BoxStream elements, BoxStream::open(*reader, data.box));
  const DType held = reader->tensor().dtype;
  const DType written = written_dtype(data, content_.catalog());
  TRY(held == written ? write_as_is(elements) : write_cast(elements, held, written));
  if (stores_.contains(&data)) fingerprints_[data.tensor] += elements.fingerprint();
  return {};
}

Result<> FileWriter::write_as_is(BoxStream& elements) {
  while (elements.bytes_left() > 0) {
    TRY(check_cancelled());
    TRY_ASSIGN(std::span<std::byte> room, stream_->space());
    room = room.first(std::min<std::uint64_t>(room.size(), elements.bytes_left()));
    TRY(elements.read(room));
    crcs_->feed(room);
    TRY(stream_->advance(room.size()));
    report(stream_->position());
  }
  return {};
}

Result<> FileWriter::write_cast(BoxStream& elements, DType from, DType to) {
  formats::ByteVector in;
  formats::ByteVector out;
  while (elements.bytes_left() > 0) {
    TRY(check_cancelled());
    in.resize(std::min(kCastBytes, elements.bytes_left()));
    out.resize(in.size() / bytes_of(from) * bytes_of(to));
    TRY(elements.read(in));
    formats::cast_floats(from, in, to, out);
    TRY(append(out));
    report(stream_->position());
  }
  return {};
}

Result<> FileWriter::check_cancelled() const {
  if (options_.cancel == nullptr || !options_.cancel->load(std::memory_order_relaxed)) return {};
  return Error{Code::cancelled, "stopped on request before anything was published",
               "the same command starts again"};
}

Result<const BoxReader*> FileWriter::reader_of(std::uint32_t tensor) {
  std::unique_ptr<BoxReader>& reader = readers_[tensor];
  if (reader == nullptr) {
    TRY_ASSIGN(BoxReader made, BoxReader::open(content_, content_.catalog().tensors[tensor]));
    reader = std::make_unique<BoxReader>(std::move(made));
  }
  return reader.get();
}

void FileWriter::report(std::uint64_t position_in_file) const {
  if (options_.progress) options_.progress({finished_ + position_in_file, total_});
}

Result<> FileWriter::verify_content() const {
  std::set<std::uint32_t> stored;
  for (const TensorData* data : stores_) stored.insert(data->tensor);
  for (const std::uint32_t tensor : stored) {
    TRY(check_cancelled());
    const formats::TensorEntry& entry = content_.catalog().tensors[tensor];
    TRY_ASSIGN(const std::uint64_t fingerprint, fingerprint_of(content_, entry));
    if (fingerprint != fingerprints_[tensor])
      return Error{Code::corrupt,
                   label_of(entry) +
                       ": what was written is not what the source holds; nothing was "
                       "published",
                   {}};
  }
  return {};
}

Result<> FileWriter::verify_derived() const {
  for (const auto& [tensor, from] : plan_.derived) {
    TRY(check_cancelled());
    const formats::TensorEntry& entry = content_.catalog().tensors[tensor];
    formats::Catalog rounded;
    rounded.tensors.push_back(entry);
    const ContentView derived(content_, std::move(rounded), {{from}});
    TRY_ASSIGN(const std::uint64_t wanted, fingerprint_of(content_, entry));
    TRY_ASSIGN(const std::uint64_t found,
               fingerprint_of(derived, derived.catalog().tensors.front()));
    if (wanted != found)
      return Error{Code::unsupported,
                   label_of(entry) + ": the format keeps only " +
                       label_of(content_.catalog().tensors[from]) +
                       ", and that one rounds to other values; nothing was published",
                   "--drop goes on without it"};
  }
  return {};
}

// Step 1's questions to the disk.
Result<> check_destination(IoBackend& files, const fs::path& destination, std::uint64_t needed,
                           Overwrite overwrite) {
  TRY_ASSIGN(const bool there, files.exists(destination));
  if (there && overwrite == Overwrite::refuse)
    return Error{Code::usage, destination.string() + ": exists already and was left as it is",
                 "choose another destination, or allow it to be replaced with -f"};
  TRY_ASSIGN(const std::uint64_t free, files.free_bytes(destination.parent_path()));
  if (free >= needed) return {};
  return Error{Code::no_space,
               destination.string() + ": needs " + std::to_string(needed) + " bytes, but " +
                   destination.parent_path().string() + " has " + std::to_string(free) + " free",
               "free some space, or choose a destination on another disk"};
}

// Steps 8 to 11.
Result<> publish(IoBackend& files, const Temporary& temporary, const fs::path& destination,
                 Overwrite overwrite) {
  const fs::path parent = destination.parent_path();
  bool moved = false;
  if (overwrite == Overwrite::replace) {
    TRY_ASSIGN(moved, files.exists(destination));
    if (moved) TRY(files.rename_new(destination, temporary.moved_aside()));
  }
  if (Result<> renamed = files.rename_new(temporary.fresh(), destination); !renamed) {
    if (moved) TRY(files.rename_new(temporary.moved_aside(), destination));
    return renamed;
  }
  if (Result<> durable = files.sync_directory(parent); !durable)
    return std::move(durable).error().within(destination.string() +
                                             " is complete, but may not survive a power loss");
  if (!moved) return {};
  if (Result<> removed = remove_tree(files, temporary.moved_aside()); !removed)
    return std::move(removed).error().within(destination.string() +
                                             " is complete, but what it replaced remains");
  return {};
}

// Absolute enough to have a parent and a name.
fs::path with_parent(const fs::path& destination) {
  fs::path path = destination.lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.has_parent_path() ? path : fs::path(".") / path;
}

}  // namespace

Result<WriteReport> write_checkpoint(IoQueue& io, const formats::Checkpoint& content,
                                     const EmitPlan& plan, const fs::path& destination,
                                     const WriteOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const fs::path target = with_parent(destination);
  IoBackend& files = io.backend();
  TRY(check_plan(plan, content.catalog()));
  FileWriter writer(io, content, plan, options);
  if (options.verify == Verify::full)
    TRY(check_stores_everything(plan, content.catalog(), writer.stores()));
  TRY(remove_stale_temporaries(files, target.parent_path()));
  WriteReport report;
  report.files = plan.files.size() + plan.commit_files.size();
  report.bytes = bytes_of(plan);
  TRY(check_destination(files, target, report.bytes + report.files * kBlock, options.overwrite));

  TRY_ASSIGN(const Temporary temporary, Temporary::reserve(files, target));
  TRY(writer.write_all(temporary.fresh()));
  if (options.verify == Verify::full) TRY(writer.verify_content());
  if (options.derived == Derivation::proven) TRY(writer.verify_derived());
  report.fingerprints = writer.take_fingerprints();
  if (options.check) TRY(options.check(temporary.fresh(), report.fingerprints));
  TRY(publish(files, temporary, target, options.overwrite));
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace libswap
