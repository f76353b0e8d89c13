#include "libswap/transfer/write_checkpoint.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "libswap/transfer/digest.h"
#include "libswap/transfer/in_parallel.h"
#include "libswap/transfer/piece_writer.h"
#include "libswap/transfer/plan_check.h"

namespace libswap {

using formats::Code;
using formats::EmitPlan;
using formats::Error;
using formats::OutputFile;

namespace {

constexpr std::uint64_t kBlock = 4096;  // what a file system gives out at least

// Steps 3 to 6: the files of a plan, below one directory.
class PlanWriter {
 public:
  PlanWriter(IoQueue& io, const formats::Checkpoint& content, const EmitPlan& plan,
             const WriteOptions& options)
      : io_(io),
        content_(content),
        plan_(plan),
        options_(options),
        stores_(stores_of(plan, content.catalog())),
        filler_(content, plan, stores_),
        fingerprints_(content.catalog().tensors.size(), 0),
        derived_(plan.derived.size(), 0),
        total_(bytes_of(plan)) {}

  Result<> write_all(const fs::path& directory);
  Result<> verify_derived() const;
  const Stores& stores() const { return stores_; }
  std::vector<std::uint64_t> take_fingerprints() { return std::move(fingerprints_); }

 private:
  Result<> make_directories(const fs::path& directory);
  Result<> write(std::span<const OutputFile> files, const fs::path& directory);
  void count(const Piece& piece, const Shares& shares);

  IoQueue& io_;
  const formats::Checkpoint& content_;
  const EmitPlan& plan_;
  const WriteOptions& options_;
  Stores stores_;
  PieceFiller filler_;
  std::vector<std::uint64_t> fingerprints_;
  std::vector<std::uint64_t> derived_;  // fingerprints of what readers will derive
  std::set<fs::path> subdirectories_;   // parents sort before their children
  std::uint64_t finished_ = 0;          // bytes
  std::uint64_t total_ = 0;
};

Result<> PlanWriter::write_all(const fs::path& directory) {
  TRY(make_directories(directory));
  TRY(write(plan_.files, directory));
  for (auto sub = subdirectories_.rbegin(); sub != subdirectories_.rend(); ++sub)
    TRY(io_.backend().sync_directory(directory / *sub));
  TRY(io_.backend().sync_directory(directory));
  for (const OutputFile& file : plan_.commit_files) {
    TRY(write({&file, 1}, directory));
    TRY(io_.backend().sync_directory((directory / file.name).parent_path()));
  }
  return {};
}

Result<> PlanWriter::make_directories(const fs::path& directory) {
  for (const auto* files : {&plan_.files, &plan_.commit_files})
    for (const OutputFile& file : *files)
      for (fs::path sub = fs::path(file.name).parent_path(); !sub.empty(); sub = sub.parent_path())
        subdirectories_.insert(sub);
  TRY(io_.backend().make_directory(directory, Visibility::by_umask));
  for (const fs::path& sub : subdirectories_)
    TRY(io_.backend().make_directory(directory / sub, Visibility::by_umask));
  return {};
}

Result<> PlanWriter::write(std::span<const OutputFile> files, const fs::path& directory) {
  return write_pieces(
      io_, filler_, files, directory,
      {.workers = workers_or_cores(options_.workers),
       .piece_bytes = options_.piece_bytes,
       .priority = options_.priority,
       .cancel = options_.cancel,
       .written = [this](const Piece& piece, const Shares& shares) { count(piece, shares); }});
}

void PlanWriter::count(const Piece& piece, const Shares& shares) {
  for (const Share& share : shares.stored) fingerprints_[share.number] += share.fingerprint;
  for (const Share& share : shares.derived) derived_[share.number] += share.fingerprint;
  finished_ += piece.size;
  if (options_.progress) options_.progress({finished_, total_});
}

// The tensors that are not stored are read once, for this alone.
Result<> PlanWriter::verify_derived() const {
  std::vector<TensorOf> tensors;
  for (const formats::Derived& derived : plan_.derived)
    tensors.push_back({&content_, &content_.catalog().tensors[derived.tensor]});
  TRY_ASSIGN(const auto wanted,
             fingerprints_of(tensors, workers_or_cores(options_.workers), options_.cancel));
  for (std::size_t i = 0; i < wanted.size(); ++i)
    if (wanted[i] != derived_[i])
      return Error{Code::unsupported,
                   label_of(*tensors[i].tensor) + ": the format keeps only " +
                       label_of(content_.catalog().tensors[plan_.derived[i].from]) +
                       ", and that one rounds to other values; nothing was published",
                   "--drop goes on without it"};
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
  if (options.piece_bytes == 0) return Error{Code::usage, "pieces of 0 bytes hold nothing", {}};
  TRY(check_plan(plan, content.catalog()));
  PlanWriter writer(io, content, plan, options);
  if (options.verify == Verify::full)
    TRY(check_stores_everything(plan, content.catalog(), writer.stores()));
  TRY(remove_stale_temporaries(files, target.parent_path()));
  WriteReport report;
  report.files = plan.files.size() + plan.commit_files.size();
  report.bytes = bytes_of(plan);
  TRY(check_destination(files, target, report.bytes + report.files * kBlock, options.overwrite));

  TRY_ASSIGN(const Temporary temporary, Temporary::reserve(files, target));
  TRY(writer.write_all(temporary.fresh()));
  if (options.derived == Derivation::proven) TRY(writer.verify_derived());
  report.fingerprints = writer.take_fingerprints();
  if (options.check) TRY(options.check(temporary.fresh(), report.fingerprints));
  if (options.cancel != nullptr && options.cancel->load(std::memory_order_relaxed))
    return stopped_on_request();
  TRY(publish(files, temporary, target, options.overwrite));
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace libswap
