// RankFiles: one rank's lock, meta.ebb and data file (docs/formats/native.md), open and locked.
//
// Threading: every call from any thread but the queue's; calls block.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "ebb/formats/native/meta_scan.h"
#include "ebb/libswap/store/io_source.h"
#include "ebb/libswap/sys/mutex.h"

namespace ebb::libswap {

// Begins a hint where nothing can be committed any more. Whoever has the files open reads the
// state.
constexpr std::string_view kSaveElsewhere =
    "the state can still be read: save_to() takes an engine's to another directory; ";

class RankFiles {
 public:
  // Reserves and writes every byte, durably. On failure what was made is removed again.
  static Result<std::unique_ptr<RankFiles>> create(IoQueue& io, const fs::path& store,
                                                   const formats::native::Superblock& superblock);
  // Makes durable what it is about to believe, and repairs a torn superblock.
  static Result<std::unique_ptr<RankFiles>> open(IoQueue& io, const fs::path& store, Rank rank,
                                                 std::uint32_t world);
  ~RankFiles();
  RankFiles(const RankFiles&) = delete;
  RankFiles& operator=(const RankFiles&) = delete;

  const formats::native::MetaScan& found() const { return found_; }  // by open()
  const formats::native::Superblock& superblock() const { return found_.superblock; }
  FileId data() const { return *data_file_; }
  std::string data_name() const { return (folder_ / data_name_).string(); }
  std::string store_name() const { return folder_.parent_path().string(); }

  Result<formats::native::Manifest> read_manifest(std::uint32_t region) const;
  Result<> write_manifest(std::uint32_t region, ByteView bytes);
  // Durably: the generation in that region can never be chosen again.
  Result<> void_manifest(std::uint32_t region, const formats::native::ManifestHeader& header);
  // fdatasync. One failure and neither file is ever trusted again.
  Result<> sync_data() { return sync(data()); }
  Result<> sync_meta() { return sync(meta()); }
  // The files still have their names, where a new start looks for them, and their length: what is
  // written to them can be found again. One failure and neither file is ever trusted again.
  Result<> check_files();
  // Code::state: what became of them, once something did, and what still saves the state.
  Result<> trusted() const;
  // Whether another process reads this generation (docs/formats/commit.md, "Readers"). Calls must
  // not overlap.
  bool is_read(std::uint64_t generation);

  // Reads every tile and checks every block.
  Result<> verify(const formats::native::Manifest& manifest);

 private:
  RankFiles(IoQueue& io, const fs::path& store, Rank rank, std::uint32_t world);
  FileId meta() const { return *meta_file_; }
  Result<> lock();
  Result<> make(const fs::path& store);
  Result<> make_data();
  Result<> make_meta();
  Result<> read_everything();
  Result<> repair_superblock();
  Result<> sync(FileId file);
  Result<> check_file(FileId file, std::uint64_t bytes) const;
  Result<> check_place() const;
  void distrust(const Error& why);
  IoSource meta_source() const;
  void close(std::optional<FileId>& file);
  void remove_made();

  IoQueue& io_;
  const fs::path folder_;
  const fs::path place_;  // the same, wherever the process goes
  const fs::path meta_of_rank_zero_;
  std::string data_name_;
  formats::native::MetaScan found_;
  std::optional<FileId> lock_file_, meta_file_, data_file_, holds_file_;
  std::uint64_t meta_bytes_ = 0;
  bool made_files_ = false;
  mutable Mutex mutex_;
  std::optional<Error> distrusted_ EBB_GUARDED_BY(mutex_);
};

// The error for a block that is not what its checksum says; `tile` numbers from the rank's first.
Error damaged_block(const std::string& file, std::uint64_t offset, std::uint64_t tile,
                    std::uint64_t block);

}  // namespace ebb::libswap
