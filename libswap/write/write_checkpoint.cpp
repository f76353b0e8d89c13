#include "ebb/libswap/write/write_checkpoint.h"

#include <algorithm>
#include <set>
#include <utility>

#include "ebb/formats/catalog/range_crcs.h"
#include "ebb/formats/core/check.h"
#include "ebb/formats/core/compose.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/elements/box_reader.h"
#include "ebb/libswap/publish/attempt.h"
#include "ebb/libswap/read/digest.h"
#include "ebb/libswap/read/in_parallel.h"
#include "ebb/libswap/sys/process.h"
#include "ebb/libswap/tree/cold_reads.h"
#include "ebb/libswap/write/packed_segments.h"
#include "ebb/libswap/write/plain_segments.h"
#include "ebb/libswap/write/plan_check.h"
#include "ebb/libswap/write/segment_writer.h"
#include "ebb/libswap/write/written_so_far.h"

namespace ebb::libswap {

namespace {

// Steps 3 to 6: the files of a plan, below one directory.
class PlanWriter {
 public:
  PlanWriter(IoQueue& io, const Checkpoint& content, const EmitPlan& plan, CheckedPlan checked,
             const WriteOptions& options)
      : io_(io),
        content_(content),
        plan_(plan),
        options_(options),
        checked_(std::move(checked)),
        reader_(content, plan, checked_),
        block_crcs_(plan),
        sums_(content.catalog().tensors.size(), plan.derived.size()),
        bytes_(checked_.bytes) {
    if (plan.packing) {
      auto packed = std::make_unique<PackedSegments>(reader_, plan, options.segment_bytes);
      packed_ = packed.get();
      shards_ = std::move(packed);
    } else {
      shards_ =
          std::make_unique<PlainSegments>(reader_, plan.files, options.segment_bytes, block_crcs_);
    }
  }

  // Chooses the workers: as many as are asked for and the memory holds.
  Result<> choose_workers();

  // Resumes what the attempt has finished, where that is there.
  Result<> resume(Attempt& attempt);
  // Noted in the attempt, if there is one.
  Result<> write_shards(const fs::path& directory, Attempt* attempt);
  Result<> write_commit_files(const fs::path& directory);
  Result<> verify_derived() const;
  // What was written so far can be resumed.
  Result<> save(Attempt& attempt);
  const WrittenBytes& bytes() const { return bytes_; }
  const CheckedPlan& checked() const { return checked_; }
  const std::vector<std::uint64_t>& fingerprints() const { return sums_.stored(); }

 private:
  Result<> make_directories(const fs::path& directory);
  std::vector<WrittenSegment> lasting(std::span<const WrittenSegment> durable) const;
  Segment segment_of(const WrittenSegment& written) const {
    return shards_->segments().at(written.index);
  }
  SegmentWriterOptions writer_options();
  Result<bool> usable(const WrittenSegment& written, const fs::path& directory);
  void report() const;

  IoQueue& io_;
  std::uint32_t workers_ = 1;
  const Checkpoint& content_;
  const EmitPlan& plan_;
  const WriteOptions& options_;
  CheckedPlan checked_;
  FragmentReader reader_;
  formats::BlockCrcs block_crcs_;
  std::unique_ptr<SegmentSource> shards_;
  PackedSegments* packed_ = nullptr;   // the same, where the plan packs
  std::set<fs::path> subdirectories_;  // parents sort before their children
  std::set<std::uint32_t> begun_;      // shard files with segments that are noted
  std::set<fs::path> named_;           // directories whose names are durable
  ShareSums sums_;
  WrittenBytes bytes_;
};

Result<> PlanWriter::write_shards(const fs::path& directory, Attempt* attempt) {
  EBB_TRY(make_directories(directory));
  if (bytes_.found() > 0) report();
  SegmentWriterOptions shards = writer_options();
  if (attempt != nullptr) shards.durable_before = attempt->finished();
  if (attempt != nullptr && attempt->can_be_kept())
    shards.durable = [&](std::span<const WrittenSegment> durable) -> Result<> {
      const std::vector<WrittenSegment> noted = lasting(durable);
      for (const WrittenSegment& segment : noted) begun_.insert(segment_of(segment).file);
      return attempt->note(noted) ? save(*attempt) : Result<>();
    };
  if (packed_ != nullptr) shards.files.reservation = Reservation::none;
  EBB_TRY(write_segments(io_, *shards_, plan_.files, directory, shards));
  for (std::uint32_t file = 0; file < plan_.files.size(); ++file)
    bytes_.on_disk(shards_->size_of(file));
  for (auto sub = subdirectories_.rbegin(); sub != subdirectories_.rend(); ++sub)
    EBB_TRY(io_.backend().sync_directory(directory / *sub));
  return io_.backend().sync_directory(directory);
}

// What the next attempt need not make again. Not so the head of a packed file: it may be durable
// before an item that it speaks of, and that one will lie elsewhere.
std::vector<WrittenSegment> PlanWriter::lasting(std::span<const WrittenSegment> durable) const {
  std::vector<WrittenSegment> lasting(durable.begin(), durable.end());
  if (packed_ != nullptr)
    std::erase_if(lasting,
                  [this](const WrittenSegment& written) { return segment_of(written).items == 0; });
  return lasting;
}

Result<> PlanWriter::write_commit_files(const fs::path& directory) {
  std::vector<OutputFile> placed;
  const bool late = plan_.packing && plan_.packing->commit_files != nullptr;
  if (late) {
    placed = plan_.packing->commit_files(packed_->places());
    const auto size_of = [](const std::vector<OutputFile>& files) {
      std::uint64_t bytes = 0;
      for (const OutputFile& file : files) bytes += file.size;
      return bytes;
    };
    bytes_.replan(size_of(plan_.commit_files), size_of(placed));
  }
  for (const OutputFile& file : late ? placed : plan_.commit_files) {
    PlainSegments segments(reader_, {&file, 1}, options_.segment_bytes, block_crcs_);
    EBB_TRY(write_segments(io_, segments, {&file, 1}, directory, writer_options()));
    EBB_TRY(io_.backend().sync_directory((directory / file.name).parent_path()));
    bytes_.on_disk(file.size);
  }
  return {};
}

Result<> PlanWriter::make_directories(const fs::path& directory) {
  for (const auto* files : {&plan_.files, &plan_.commit_files})
    for (const OutputFile& file : *files)
      for (fs::path sub = fs::path(file.name).parent_path(); !sub.empty(); sub = sub.parent_path())
        subdirectories_.insert(sub);
  EBB_TRY(io_.backend().make_directory(directory, Visibility::by_umask));
  for (const fs::path& sub : subdirectories_)
    EBB_TRY(io_.backend().make_directory(directory / sub, Visibility::by_umask));
  return {};
}

SegmentWriterOptions PlanWriter::writer_options() {
  const auto creation = bytes_.found() > 0 ? Creation::create_or_open : Creation::create_new;
  return {.workers = workers_,
          .files = {options_.segment_bytes, options_.priority, creation},
          .cancel = options_.cancel,
          .commit_interval = options_.journal_interval,
          .block_crcs = block_crcs_,
          .written = [this](const Segment& segment, const Shares& shares) {
            sums_.add(shares);
            bytes_.made(segment.size);
            report();
          }};
}

void PlanWriter::report() const {
  if (options_.progress) options_.progress({bytes_.finished(), bytes_.total(), bytes_.found()});
}

// The names of what the journal speaks of become durable before it does.
Result<> PlanWriter::save(Attempt& attempt) {
  const fs::path& directory = attempt.temporary().fresh();
  std::set<fs::path> folders;
  for (const std::uint32_t file : std::exchange(begun_, {}))
    folders.insert((directory / plan_.files[file].name).parent_path());
  for (const fs::path& sub : subdirectories_)
    if (named_.insert(sub).second) folders.insert((directory / sub).parent_path());
  for (const fs::path& folder : folders) EBB_TRY(io_.backend().sync_directory(folder));
  return attempt.save();
}

// A journal is a file like others: what it says must fit.
Result<bool> PlanWriter::usable(const WrittenSegment& written, const fs::path& directory) {
  if (written.index >= shards_->segments().count()) return false;
  const Segment segment = segment_of(written);
  if (packed_ != nullptr && !packed_->fits(written)) return false;
  const auto& checked = plan_.files[segment.file].blocks;
  const std::uint64_t blocks = checked ? checked->count : 0;
  if (!sums_.know(written.shares) ||
      std::ranges::any_of(written.block_crcs,
                          [&](const auto& share) { return share.block >= blocks; }))
    return false;
  if (!begun_.insert(segment.file).second) return true;
  return io_.backend().exists(directory / plan_.files[segment.file].name);
}

Result<> PlanWriter::resume(Attempt& attempt) {
  if (attempt.finished().empty()) return attempt.start_over();
  std::set<std::uint64_t> seen;
  for (const WrittenSegment& written : attempt.finished()) {
    EBB_TRY_ASSIGN(const bool good, usable(written, attempt.temporary().fresh()));
    if (!good || !seen.insert(written.index).second) {
      EBB_TRY(attempt.start_over());
      seen.clear();
      break;
    }
  }
  begun_.clear();
  for (const WrittenSegment& written : attempt.finished()) {
    sums_.add(written.shares);
    bytes_.found(segment_of(written).size);
  }
  return {};
}

// The tensors that are not stored are read once, for this alone.
Result<> PlanWriter::verify_derived() const {
  std::vector<TensorOf> tensors;
  for (const formats::Derived& derived : plan_.derived)
    tensors.push_back({&content_, &content_.catalog().tensors[derived.tensor]});
  EBB_TRY_ASSIGN(const auto wanted, fingerprints_of(tensors, workers_, options_.cancel));
  for (std::size_t i = 0; i < wanted.size(); ++i)
    if (wanted[i] != sums_.derived()[i])
      return Error{Code::unsupported,
                   compose("{}: the format keeps only {}, and that one rounds to other values; "
                           "nothing was published",
                           label_of(*tensors[i].tensor),
                           label_of(content_.catalog().tensors[plan_.derived[i].from])),
                   "--drop goes on without it"};
  return {};
}

Result<> check_segments(const WriteOptions& options) {
  if (options.segment_bytes > 0) return {};
  return Error{Code::usage, "pieces of 0 bytes hold nothing"};
}

Result<> PlanWriter::choose_workers() {
  // A run that is gathered from and the bounce buffer it comes through; a cast's sides; and two
  // segments, or what packing takes.
  EBB_TRY_ASSIGN(std::uint64_t each, shards_->worker_bytes());
  each += formats::BoxReader::kMaxRun + BounceBuffers::kBytes + 2 * FragmentReader::kCastBytes;
  const std::uint64_t held = options_.memory_bytes / each;
  if (held == 0)
    return Error{Code::usage,
                 compose("a memory budget of {} bytes is too small: one worker needs {}",
                         options_.memory_bytes, each),
                 compose("--memory {}MiB", formats::div_ceil(each, formats::MiB))};
  workers_ = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(workers_or_default(options_.workers), held));
  return {};
}

bool is_empty_directory(IoBackend& files, const fs::path& path) {
  const auto entries = files.list(path);
  return entries && entries->empty();
}

// Step 1's questions to the disk.
Result<> check_parent(IoBackend& files, const fs::path& destination) {
  const fs::path parent = destination.parent_path();
  EBB_TRY_ASSIGN(const bool there, files.exists(parent));
  if (there) return {};
  return missing_folder(destination, parent);
}

Result<> check_free(IoBackend& files, const fs::path& destination, Overwrite overwrite) {
  EBB_TRY_ASSIGN(const bool there, files.exists(destination));
  if (there && overwrite == Overwrite::refuse && !is_empty_directory(files, destination))
    return Error{Code::usage, destination.string() + ": exists already and was left as it is",
                 "choose another destination; -f replaces a checkpoint"};
  return {};
}

// For the files that are not in `fresh` yet.
Result<> check_space(IoBackend& files, const fs::path& destination, const EmitPlan& plan,
                     const fs::path& fresh) {
  EBB_TRY_ASSIGN(const bool begun, files.exists(fresh));
  std::uint64_t needed = 0;
  for (const auto* list : {&plan.files, &plan.commit_files})
    for (const OutputFile& file : *list) {
      bool there = false;
      if (begun) {
        EBB_TRY_ASSIGN(there, files.exists(fresh / file.name));
      }
      // How large a compressed file gets shows when it is there.
      const bool unknown = plan.packing && list == &plan.files;
      if (!there) needed += (unknown ? 0 : file.size) + OutputFiles::kBlock;
    }
  EBB_TRY_ASSIGN(const std::uint64_t free, files.free_bytes(destination.parent_path()));
  if (free >= needed) return {};
  return Error{Code::no_space,
               compose("{}: needs {} bytes, but {} has {} free", destination.string(), needed,
                       destination.parent_path().string(), free),
               "free some space, or choose a destination on another disk"};
}

Error appeared_meanwhile(const fs::path& destination) {
  return {Code::usage,
          destination.string() + ": was made by somebody else meanwhile, and left as it is",
          "choose another destination; -f replaces a checkpoint"};
}

// Steps 8 to 11.
Result<> publish(IoBackend& files, const Temporary& temporary, const fs::path& made,
                 const fs::path& destination, Overwrite overwrite) {
  const fs::path parent = destination.parent_path();
  bool moved = false;
  if (overwrite == Overwrite::replace) {
    EBB_TRY_ASSIGN(moved, files.exists(destination));
    if (moved) EBB_TRY(files.rename_new(destination, temporary.moved_aside()));
  } else if (is_empty_directory(files, destination)) {
    EBB_TRY(files.remove(destination));
  }
  if (Result<> renamed = files.rename_new(made, destination); !renamed) {
    if (moved) EBB_TRY(files.rename_new(temporary.moved_aside(), destination));
    EBB_TRY_ASSIGN(const bool appeared, files.exists(destination));
    if (appeared && !moved) return appeared_meanwhile(destination);
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

// Steps 3 to 7.
Result<> write_and_check(PlanWriter& writer, Attempt& attempt, const WriteOptions& options,
                         const CollectiveHooks& hooks, std::vector<std::uint64_t>& fingerprints) {
  const fs::path& directory = attempt.temporary().fresh();
  Result<> shards = writer.write_shards(directory, &attempt);
  if (hooks.shards_written) shards = hooks.shards_written(std::move(shards));
  EBB_TRY(shards);
  EBB_TRY(writer.write_commit_files(directory));
  if (options.derived == Derivation::proven) EBB_TRY(writer.verify_derived());
  fingerprints = writer.fingerprints();
  if (options.check) EBB_TRY(options.check(directory, fingerprints));
  if (options.cancel != nullptr && options.cancel->load(std::memory_order_relaxed))
    return stopped_on_request();
  return {};
}

// Who was asked to stop leaves what the next attempt can resume.
Error given_up(Error error, PlanWriter& writer, Attempt& attempt) {
  if (error.code != Code::cancelled || !attempt.can_be_kept()) return error;
  if (!writer.save(attempt)) return error;
  attempt.keep();
  error.hint = compose("the same command goes on from here; to give up, remove {}",
                       attempt.temporary().fresh().string());
  return error;
}

}  // namespace

Result<WriteReport> write_checkpoint(IoQueue& io, const Checkpoint& content, const EmitPlan& plan,
                                     const fs::path& destination, const WriteOptions& options,
                                     const CollectiveHooks& hooks) {
  const auto start = std::chrono::steady_clock::now();
  const fs::path target = with_parent(destination);
  IoBackend& files = io.backend();
  EBB_TRY(check_segments(options));
  if (options.becomes == Becomes::file && (plan.files.size() != 1 || !plan.commit_files.empty()))
    return Error{Code::usage, destination.string() + ": several files cannot become one"};
  EBB_TRY_ASSIGN(CheckedPlan checked, check_plan(plan, content.catalog()));
  PlanWriter writer(io, content, plan, std::move(checked), options);
  EBB_TRY(writer.choose_workers());
  if (options.verify == Verify::full)
    EBB_TRY(check_stores_everything(plan, content.catalog(), writer.checked()));
  EBB_TRY(check_parent(files, target));
  EBB_TRY(remove_stale_temporaries(files, target.parent_path()));
  EBB_TRY(check_free(files, target, options.overwrite));
  std::string identity;
  if (!options.source_identity.empty())
    identity =
        identity_of(plan, content.catalog(), options.segment_bytes) + options.source_identity;
  EBB_TRY_ASSIGN(Attempt attempt,
                 Attempt::begin(io, target, std::move(identity), options.journal_interval));
  EBB_TRY(writer.resume(attempt));
  EBB_TRY(check_space(files, target, plan, attempt.temporary().fresh()));

  WriteReport report;
  report.files = plan.files.size() + plan.commit_files.size();
  report.plain_bytes = writer.checked().bytes;
  report.bytes_found = writer.bytes().found();
  if (hooks.begun) EBB_TRY(hooks.begun(attempt.temporary()));
  if (Result<> done = write_and_check(writer, attempt, options, hooks, report.fingerprints); !done)
    return given_up(std::move(done).error(), writer, attempt);
  report.bytes = writer.bytes().on_disk();
  const fs::path& fresh = attempt.temporary().fresh();
  const bool file = options.becomes == Becomes::file;
  EBB_TRY(publish(files, attempt.temporary(), file ? fresh / plan.files[0].name : fresh, target,
                  options.overwrite));
  report.seconds = seconds_since(start);
  return report;
}

Becomes becomes(const formats::Format& to, const EmitPlan& plan, const fs::path& destination) {
  std::error_code failed;
  const bool file = to.is_called_so(destination.string()) && plan.files.size() == 1 &&
                    plan.commit_files.empty() && !fs::is_directory(destination, failed);
  return file ? Becomes::file : Becomes::directory;
}

Result<> check_destination(IoQueue& io, const EmitPlan& plan, const fs::path& destination) {
  const fs::path target = with_parent(destination);
  EBB_TRY(check_parent(io.backend(), target));
  EBB_TRY(check_free(io.backend(), target, Overwrite::refuse));
  EBB_TRY_ASSIGN(const Temporary names, Temporary::reserve(io.backend(), target));
  return check_space(io.backend(), target, plan, names.fresh());
}

Result<WriteReport> write_shards(IoQueue& io, const Checkpoint& content, const EmitPlan& plan,
                                 const fs::path& directory, const WriteOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  EBB_CHECK(!plan.packing);
  EBB_TRY(check_segments(options));
  EBB_TRY_ASSIGN(CheckedPlan checked, check_plan(plan, content.catalog()));
  PlanWriter writer(io, content, plan, std::move(checked), options);
  EBB_TRY(writer.choose_workers());
  EBB_TRY(writer.write_shards(directory, nullptr));
  const std::uint64_t bytes = writer.checked().bytes;
  WriteReport report{.bytes = bytes, .plain_bytes = bytes, .files = plan.files.size()};
  report.fingerprints = writer.fingerprints();
  report.seconds = seconds_since(start);
  return report;
}

}  // namespace ebb::libswap
