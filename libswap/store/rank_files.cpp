#include "ebb/libswap/store/rank_files.h"

#include <algorithm>

#include "ebb/formats/native/store_files.h"
#include "ebb/libswap/queue/io_batch.h"
#include "ebb/libswap/sys/aligned_buffer.h"
#include "ebb/libswap/sys/block_file.h"

namespace ebb::libswap {
namespace {

using formats::native::kBlock;
using formats::native::Superblock;

constexpr OpenOptions kNew{.access = Access::read_write, .creation = Creation::create_new};
constexpr OpenOptions kExisting{.access = Access::read_write};

constexpr std::uint64_t kZeros = 4u << 20;
constexpr std::uint32_t kInFlight = 8;

// Writes zeros over bytes [begin, end), multiples of 4096, with several large writes in flight: the
// first write to a reserved extent costs journal work that no step should pay.
Result<> zero_fill(IoQueue& io, FileId file, std::uint64_t begin, std::uint64_t end) {
  EBB_TRY_ASSIGN(AlignedBuffer zeros, AlignedBuffer::allocate(kZeros));
  IoBatch writes;
  for (std::uint64_t at = begin; at < end && writes.wait_below(kInFlight); at += kZeros) {
    const auto size = static_cast<std::size_t>(std::min(kZeros, end - at));
    io.submit({.kind = RawOp::Kind::write,
               .file = file,
               .offset = at,
               .data = zeros.bytes().first(size),
               .priority = Priority::background,
               .done = writes.add()});
  }
  return writes.wait();
}

}  // namespace

RankFiles::RankFiles(IoQueue& io, const fs::path& store, Rank rank, std::uint32_t world)
    : io_(io),
      folder_(store / formats::native::rank_directory(rank, world)),
      place_(fs::absolute(folder_)),
      meta_of_rank_zero_(store / formats::native::rank_directory(Rank{0}, world) /
                         formats::native::kMetaFile) {}

RankFiles::~RankFiles() {
  close(holds_file_);
  close(data_file_);
  close(meta_file_);
  close(lock_file_);
}

void RankFiles::close(std::optional<FileId>& file) {
  // What had to be durable was synced before; a failing close says nothing more.
  if (file) static_cast<void>(io_.backend().close(*file).has_value());
  file.reset();
}

Result<> RankFiles::lock() {
  const fs::path path = folder_ / formats::native::kLockFile;
  EBB_TRY_ASSIGN(lock_file_, io_.backend().open(path, {.access = Access::read_write,
                                                       .creation = Creation::create_or_open}));
  return io_.backend().lock(*lock_file_);
}

Result<std::unique_ptr<RankFiles>> RankFiles::create(IoQueue& io, const fs::path& store,
                                                     const Superblock& superblock) {
  std::unique_ptr<RankFiles> files(new RankFiles(io, store, superblock.rank, superblock.world));
  files->found_.superblock = superblock;
  files->data_name_ = formats::native::data_file(superblock.store, superblock.rank);
  if (Result<> made = files->make(store); !made) {
    files->remove_made();
    return std::move(made).error();
  }
  return files;
}

Result<> RankFiles::make(const fs::path& store) {
  IoBackend& backend = io_.backend();
  const Superblock& superblock = found_.superblock;
  const std::uint64_t wanted = formats::native::data_file_bytes(superblock) +
                               formats::native::meta_file_bytes(superblock) + kBlock;
  EBB_TRY_ASSIGN(const std::uint64_t available, backend.free_bytes(store.parent_path()));
  if (available < wanted)
    return Error{Code::no_space,
                 compose("{}: rank {} of the swap store needs {} bytes, the disk has {} left",
                         store.string(), index_of(superblock.rank), wanted, available),
                 "free space there, take 2 slots, or name a directory on a larger disk"};
  EBB_TRY(backend.make_directory(store));
  EBB_TRY(backend.make_directory(folder_));
  EBB_TRY(lock());
  EBB_TRY_ASSIGN(const bool used, backend.exists(folder_ / formats::native::kMetaFile));
  if (used) return Error{Code::state, folder_.string() + ": a store lies here already"};
  made_files_ = true;
  EBB_TRY(make_data());
  EBB_TRY(make_meta());
  EBB_TRY(backend.sync_directory(folder_));
  EBB_TRY(backend.sync_directory(store));
  return store.has_parent_path() ? backend.sync_directory(store.parent_path()) : Result<>();
}

Result<> RankFiles::make_data() {
  EBB_TRY_ASSIGN(data_file_, open_block_file(io_.backend(), folder_ / data_name_, kNew));
  const std::uint64_t bytes = formats::native::data_file_bytes(found_.superblock);
  EBB_TRY(io_.backend().allocate(data(), bytes));
  EBB_TRY(zero_fill(io_, data(), kBlock, bytes));
  EBB_TRY_ASSIGN(AlignedBuffer buffer, AlignedBuffer::allocate(kBlock));
  std::ranges::copy(formats::native::encode_data_header(found_.superblock), buffer.bytes().begin());
  EBB_TRY(io_.write(data(), 0, buffer.bytes()));
  return io_.backend().sync(data());
}

Result<> RankFiles::make_meta() {
  EBB_TRY_ASSIGN(meta_file_, io_.backend().open(folder_ / formats::native::kMetaFile, kNew));
  meta_bytes_ = formats::native::meta_file_bytes(found_.superblock);
  EBB_TRY(io_.backend().allocate(meta(), meta_bytes_));
  EBB_TRY(zero_fill(io_, meta(), 2 * kBlock, meta_bytes_));
  const ByteVector superblock = encode(found_.superblock);
  EBB_TRY(io_.write(meta(), 0, superblock));
  EBB_TRY(io_.write(meta(), kBlock, superblock));
  return io_.backend().sync(meta());
}

// The store's own directory stays: another rank may be about to make its folder there.
void RankFiles::remove_made() {
  close(data_file_);
  close(meta_file_);
  const auto remove = [&](const fs::path& path) {
    static_cast<void>(io_.backend().remove(path).has_value());  // the first failure is the news
  };
  if (made_files_) {
    remove(folder_ / data_name_);
    remove(folder_ / formats::native::kMetaFile);
    remove(folder_ / formats::native::kLockFile);
  }
  close(lock_file_);
  remove(folder_);
}

Result<std::unique_ptr<RankFiles>> RankFiles::open(IoQueue& io, const fs::path& store, Rank rank,
                                                   std::uint32_t world) {
  std::unique_ptr<RankFiles> files(new RankFiles(io, store, rank, world));
  EBB_TRY_ASSIGN(const bool there, io.backend().exists(files->folder_));
  if (!there)
    return Error{Code::incomplete, files->folder_.string() + ": the folder of this rank is missing",
                 "ckpt-inspect " + store.string()};
  EBB_TRY(files->lock());
  EBB_TRY(files->read_everything());
  return files;
}

Result<> RankFiles::read_everything() {
  EBB_TRY_ASSIGN(meta_file_, io_.backend().open(folder_ / formats::native::kMetaFile, kExisting));
  EBB_TRY(io_.backend().sync(meta()));
  EBB_TRY_ASSIGN(const FileInfo meta_info, io_.backend().info(meta()));
  meta_bytes_ = meta_info.size;
  EBB_TRY_ASSIGN(found_, formats::native::scan_meta(meta_source()));
  const Superblock& superblock = found_.superblock;
  if (folder_.filename() != formats::native::rank_directory(superblock.rank, superblock.world))
    return Error{Code::layout, compose("{}: these are the files of rank {} of {}", folder_.string(),
                                       index_of(superblock.rank), superblock.world)};
  EBB_TRY(repair_superblock());
  data_name_ = formats::native::data_file(superblock.store, superblock.rank);
  EBB_TRY_ASSIGN(data_file_, open_block_file(io_.backend(), folder_ / data_name_, kExisting));
  EBB_TRY(io_.backend().sync(data()));
  EBB_TRY_ASSIGN(const FileInfo data_info, io_.backend().info(data()));
  if (data_info.size < formats::native::data_file_bytes(superblock))
    return Error{Code::corrupt,
                 compose("{}:{}: the file ends here; its tiles need {} bytes", data_name(),
                         data_info.size, formats::native::data_file_bytes(superblock))};
  EBB_TRY_ASSIGN(AlignedBuffer header, AlignedBuffer::allocate(kBlock));
  EBB_TRY(io_.read(data(), 0, header.bytes()));
  return formats::native::check_data_header(header.bytes(), superblock, data_name());
}

Result<> RankFiles::repair_superblock() {
  if (!found_.damage_a && !found_.damage_b) return {};
  const ByteVector good = encode(found_.superblock);
  EBB_TRY(io_.write(meta(), found_.damage_a ? 0 : kBlock, good));
  return sync_meta();
}

IoSource RankFiles::meta_source() const {
  return {io_, meta(), (folder_ / formats::native::kMetaFile).string(), meta_bytes_};
}

Result<formats::native::Manifest> RankFiles::read_manifest(std::uint32_t region) const {
  return formats::native::read_manifest(meta_source(), superblock(), region);
}

Result<> RankFiles::write_manifest(std::uint32_t region, ByteView bytes) {
  return io_.write(meta(), formats::native::region_offset(superblock(), region), bytes,
                   Priority::background);
}

Result<> RankFiles::void_manifest(std::uint32_t region,
                                  const formats::native::ManifestHeader& header) {
  EBB_TRY(io_.write(meta(), formats::native::region_offset(superblock(), region),
                    formats::native::encode_void_header(header)));
  return sync_meta();
}

Result<> RankFiles::sync(FileId file) {
  EBB_TRY(trusted());
  Result<> synced = io_.sync_data(file);
  if (!synced)
    distrust({Code::state,
              compose("{}: the disk failed to make data durable: {}", io_.backend().path_of(file),
                      synced.error().message),
              std::string(kSaveElsewhere) + "a new start recovers the last committed generation"});
  return synced;
}

Result<> RankFiles::trusted() const {
  const MutexLock lock(mutex_);
  return distrusted_ ? *distrusted_ : Result<>();
}

// The first is the news.
void RankFiles::distrust(const Error& why) {
  const MutexLock lock(mutex_);
  if (!distrusted_) distrusted_ = why;
}

Result<> RankFiles::check_file(FileId file, std::uint64_t bytes) const {
  EBB_TRY_ASSIGN(const FileInfo info, io_.backend().info(file));
  const std::string path = io_.backend().path_of(file);
  const std::string no_start = std::string(kSaveElsewhere) + "no new start will find it here";
  if (!info.named)
    return Error{Code::state, path + " was removed while the store was in use", no_start};
  if (info.size < bytes)
    return Error{Code::state,
                 compose("{}:{}: the file was cut here while the store was in use; it had {} bytes",
                         path, info.size, bytes),
                 no_start};
  return {};
}

// By the data file, whose name is this store's alone. Not to know is no reason.
Result<> RankFiles::check_place() const {
  const auto there = io_.backend().exists(place_ / data_name_);
  if (!there || *there) return {};
  return Error{Code::state, compose("{} was moved away while the store was in use", data_name()),
               "move it back and start again: it is whole where it is now"};
}

Result<> RankFiles::check_files() {
  Result<> whole = check_file(data(), formats::native::data_file_bytes(superblock()));
  if (whole) whole = check_file(meta(), formats::native::meta_file_bytes(superblock()));
  if (whole) whole = check_place();
  if (!whole) distrust(whole.error());
  return whole;
}

// All ranks look at one file, so that a reader needs one lock. A rank that cannot open it has the
// store on a disk of its own: nobody reads all ranks there.
bool RankFiles::is_read(std::uint64_t generation) {
  if (!holds_file_) {
    auto opened = io_.backend().open(meta_of_rank_zero_, {});
    if (!opened) return false;
    holds_file_ = *opened;
  }
  return io_.backend().is_held(*holds_file_, formats::native::hold_byte(generation));
}

Result<> RankFiles::verify(const formats::native::Manifest& manifest) {
  const Superblock& s = superblock();
  EBB_TRY_ASSIGN(AlignedBuffer buffer, AlignedBuffer::allocate(s.tile_bytes));
  for (std::uint64_t i = 0; i < manifest.tiles.size(); ++i) {
    const formats::native::Tile& tile = manifest.tiles[i];
    const std::uint64_t offset = formats::native::tile_offset(s, i, tile.slot);
    const std::uint64_t bytes = tile.crcs.size() * s.block_bytes;
    EBB_TRY(io_.read(data(), offset, buffer.bytes().first(bytes)));
    for (std::uint64_t block = 0; block < tile.crcs.size(); ++block) {
      const formats::native::BlockPlace place{s.store,   s.rank, i,
                                              tile.slot, block,  tile.written_step};
      const auto view = buffer.bytes().subspan(block * s.block_bytes, s.block_bytes);
      if (formats::native::block_crc(place, view) != tile.crcs[block])
        return damaged_block(data_name(), offset + block * s.block_bytes, i, block);
    }
  }
  return {};
}

Error damaged_block(const std::string& file, std::uint64_t offset, std::uint64_t tile,
                    std::uint64_t block) {
  return {
      Code::corrupt,
      compose("{}:{}: block {} of tile {} does not match its checksum", file, offset, block, tile),
      "ckpt-inspect " + fs::path(file).parent_path().parent_path().string() + " --verify"};
}

}  // namespace ebb::libswap
