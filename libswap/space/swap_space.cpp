#include "ebb/libswap/space/swap_space.h"

#include <algorithm>

#include "ebb/libswap/space/swap_space_impl.h"

namespace ebb::libswap {
namespace {

constexpr std::size_t kMostNamed = 8;  // leases in a message

}  // namespace

SwapSpace::Lease::~Lease() {
  if (held()) space_->drop(*this);
}

void SwapSpace::Lease::swap(Lease& other) noexcept {
  std::swap(space_, other.space_);
  std::swap(buffer_, other.buffer_);
  std::swap(access_, other.access_);
  std::swap(bytes_, other.bytes_);
  std::swap(memory_, other.memory_);
}

Buffer SwapSpace::Lease::memory_of(std::size_t part) const {
  if (!held()) return {};
  const auto& parts = space_->impl_->buffers.all()[index_of(buffer_)].parts;
  if (part >= parts.size() || parts[part].bytes == 0) return {};
  return memory_.sub(parts[part].offset, parts[part].bytes);
}

std::span<std::byte> SwapSpace::Lease::bytes_of(const Buffer& memory) {
  return memory.device == nullptr ? memory.bytes() : std::span<std::byte>();
}

SwapSpace::SwapSpace(IoQueue& io, SwapDirectory& directory, Ranks& ranks,
                     const SwapSpaceConfig& config)
    : impl_(std::make_unique<Impl>(io, directory, ranks, config)) {}
SwapSpace::~SwapSpace() { impl_->process.let_go(std::move(impl_)); }

Result<BufferId> SwapSpace::register_buffer(std::vector<BufferPart> parts) {
  EBB_TRY(impl_->process.check());
  if (impl_->open)
    return Error{Code::state, "buffers are registered before the space is opened",
                 "open another space, in another directory"};
  return impl_->buffers.add(std::move(parts));
}

std::uint64_t SwapSpace::step() const { return impl_->step; }
const std::string& SwapSpace::origin() const { return impl_->home.origin(); }
Result<> SwapSpace::set_blob(std::string key, ByteVector bytes) {
  EBB_TRY(impl_->usable());
  return impl_->home.blobs().set(std::move(key), std::move(bytes));
}
const ByteVector* SwapSpace::blob(std::string_view key) const {
  return impl_->home.blobs().find(key);
}
const std::filesystem::path& SwapSpace::store_directory() const { return impl_->home.path(); }

Result<> SwapSpace::Impl::usable() const {
  EBB_TRY(process.check());
  if (!open) return Error{Code::state, "the space is not open", "call open() first"};
  return home.cache().failure();
}

Result<const Buffers::Buffer*> SwapSpace::Impl::find(BufferId buffer) const {
  if (index_of(buffer) < buffers.all().size()) return &buffers.all()[index_of(buffer)];
  return Error{Code::usage, compose("there is no buffer {}; {} are registered", index_of(buffer),
                                    buffers.all().size())};
}

Residency::Piece SwapSpace::Impl::piece_of(BufferId buffer) const {
  const Buffers::Buffer& found = buffers.all()[index_of(buffer)];
  return {found.extent, found.offset, found.bytes};
}

Error SwapSpace::Impl::held_in_the_way(const Buffers::Buffer& wanted,
                                       std::string_view budget) const {
  std::string names;
  std::size_t held = 0;
  for (std::size_t i = 0; i < leases.size(); ++i) {
    if (leases[i].reading == 0 && !leases[i].modifying) continue;
    if (held++ < kMostNamed) names += (names.empty() ? "" : ", ") + buffers.all()[i].name;
  }
  if (held > kMostNamed) names += compose(" and {} more", held - kMostNamed);
  return {Code::no_memory,
          compose("{}: its {} bytes find no place in the budget of {} beside what is acquired: {}",
                  wanted.name, wanted.bytes, budget, names),
          "release some of them first, or give a larger budget"};
}

Result<> SwapSpace::Impl::can_serve(Tier tier) const {
  if (tier == Tier::host || (tier == Tier::device && device_room)) return {};
  return Error{Code::unsupported,
               tier == Tier::device ? "the space was given no device to acquire buffers on"
                                    : "buffers are acquired in memory, not on the disk",
               "SwapSpaceConfig::device names one; Tier::host needs none"};
}

Result<std::span<std::byte>> SwapSpace::Impl::bring(BufferId buffer, Access access) {
  const Buffers::Buffer& found = buffers.all()[index_of(buffer)];
  const auto piece = piece_of(buffer);
  auto bytes = access == Access::read ? residency->to_read(piece) : residency->to_modify(piece);
  if (bytes) return bytes;
  if (bytes.error().code == Code::no_memory)
    return held_in_the_way(found, compose("{} bytes", frames * config.tile_bytes));
  return std::move(bytes).error().within(found.name);
}

void SwapSpace::Impl::let_go(BufferId buffer, Access access) {
  if (access == Access::read)
    residency->end_reading(piece_of(buffer));
  else
    residency->forget(piece_of(buffer));
}

Result<Buffer> SwapSpace::Impl::lift(const Buffers::Buffer& buffer, std::span<std::byte> bytes) {
  const auto there = device_room->take(bytes.size());
  if (!there)
    return held_in_the_way(buffer,
                           compose("{} bytes of {}", config.device_bytes, config.device->name()));
  pool->help_until(libswap::copy(buffer_of(bytes), *there, {}));
  return *there;
}

Result<> SwapSpace::prefetch(BufferId buffer) {
  EBB_TRY(impl_->usable());
  EBB_TRY_ASSIGN(const auto* found, impl_->find(buffer));
  if (found->bytes == 0) return {};
  impl_->residency->prefetch(found->extent);
  impl_->residency->advance();
  return {};
}

std::uint64_t SwapSpace::useful_bytes_ahead() const {
  return impl_->open ? impl_->residency->ready_frames() / 2 * impl_->config.tile_bytes : 0;
}

Result<SwapSpace::Lease> SwapSpace::acquire(BufferId buffer, Tier tier, Access access) {
  EBB_TRY(impl_->usable());
  EBB_TRY(impl_->can_serve(tier));
  EBB_TRY_ASSIGN(const auto* found, impl_->find(buffer));
  if (access != Access::read && access != Access::modify)
    return Error{Code::usage,
                 compose("{}: {} is no access", found->name, static_cast<unsigned>(access))};
  Impl::Leases& leases = impl_->leases[index_of(buffer)];
  if (leases.modifying || (access == Access::modify && leases.reading > 0))
    return Error{Code::state,
                 compose("{} is acquired to be {} already", found->name,
                         leases.modifying ? "modified" : "read"),
                 "release it first"};
  Lease lease;
  lease.buffer_ = buffer;
  lease.access_ = access;
  if (found->bytes > 0) {
    EBB_TRY_ASSIGN(lease.bytes_, impl_->bring(buffer, access));
    lease.memory_ = buffer_of(lease.bytes_);
    impl_->residency->advance();
  }
  if (found->bytes > 0 && tier == Tier::device) {
    const auto there = impl_->lift(*found, lease.bytes_);
    if (!there) impl_->let_go(buffer, access);
    EBB_TRY_ASSIGN(lease.memory_, there);
  }
  lease.space_ = this;
  ++impl_->acquires;
  if (access == Access::read)
    ++leases.reading;
  else
    leases.modifying = true;
  return lease;
}

Result<> SwapSpace::release(Lease& lease, Release how, const Event& done) {
  EBB_TRY(impl_->process.check());
  if (lease.space_ != this) return Error{Code::usage, "what is released is no lease of this space"};
  if (how != Release::clean && how != Release::dirty)
    return Error{Code::usage,
                 compose("{} is no way to release a lease", static_cast<unsigned>(how))};
  impl_->pool->help_until(done);
  if (how == Release::clean) {
    drop(lease);
    return impl_->home.cache().failure();
  }
  if (lease.access_ == Access::read)
    return Error{Code::usage, compose("{} was acquired to be read: it cannot be released dirty",
                                      impl_->buffers.all()[index_of(lease.buffer_)].name)};
  EBB_TRY(impl_->home.cache().failure());
  if (!lease.bytes_.empty()) {
    if (lease.memory_.device != nullptr)
      impl_->pool->help_until(libswap::copy(lease.memory_, buffer_of(lease.bytes_), {}));
    EBB_TRY(impl_->residency->keep(impl_->piece_of(lease.buffer_), impl_->step + 1));
  }
  impl_->changed = true;
  end(lease);
  return {};
}

// Without a word: nothing can go wrong.
void SwapSpace::drop(Lease& lease) {
  if (!impl_->process.here()) return;
  if (!lease.bytes_.empty()) impl_->let_go(lease.buffer_, lease.access_);
  end(lease);
}

void SwapSpace::end(Lease& lease) {
  Impl::Leases& leases = impl_->leases[index_of(lease.buffer_)];
  if (lease.access_ == Access::read)
    --leases.reading;
  else
    leases.modifying = false;
  if (lease.memory_.device != nullptr) impl_->device_room->give_back(lease.memory_);
  lease.space_ = nullptr;
  lease.bytes_ = {};
  lease.memory_ = {};
  impl_->residency->advance();
}

Result<> SwapSpace::flush() {
  EBB_TRY(impl_->usable());
  return impl_->residency->write_all();
}

void SwapSpace::go_on() {
  if (impl_->process.here() && impl_->open) impl_->home.cache().go_on();
}

Result<bool> SwapSpace::snapshot(std::uint64_t step) {
  Impl& self = *impl_;
  EBB_TRY(self.process.check());
  EBB_TRY(agree_all(self.ranks, self.open ? self.home.cache().settle() : self.usable(),
                    "beginning a snapshot"));
  EBB_TRY(same_everywhere(
      self.ranks, std::vector<Setting>{{"the step of the snapshot", std::to_string(step)}}));
  EBB_TRY_ASSIGN(const std::int64_t unchanged, self.ranks.agree(self.changed ? 0 : 1));
  if (step < self.step || (step == self.step && unchanged == 0))
    return Error{Code::usage,
                 compose("a snapshot at step {}: the last one was at step {}, and what was "
                         "released since is newer",
                         step, self.step),
                 "count every step once"};
  EBB_TRY_ASSIGN(const bool begun, self.home.begin_snapshot(step, self.manifest()));
  if (!begun) return false;
  self.step = step;
  self.changed = false;
  EBB_TRY(self.home.settle(Snapshots::Mode::poll));  // two slots: waits for the commit
  return true;
}

Result<> SwapSpace::poll_snapshot() {
  EBB_TRY(impl_->process.check());
  if (!impl_->open) return impl_->usable();
  return impl_->home.settle(Snapshots::Mode::poll);
}

Result<std::uint64_t> SwapSpace::wait_snapshot() {
  EBB_TRY(impl_->process.check());
  if (!impl_->open) return impl_->usable().error();
  return impl_->home.wait_snapshot();
}

SwapSpaceStats SwapSpace::stats() const {
  SwapSpaceStats stats;
  if (!impl_->open || !impl_->process.here()) return stats;
  stats.pager = impl_->home.cache().stats();
  stats.acquires = impl_->acquires;
  stats.stalls = impl_->residency->stalls();
  stats.copied_bytes = impl_->residency->copied_bytes();
  stats.snapshots_put_off = impl_->home.counted().snapshots_put_off;
  return stats;
}

}  // namespace ebb::libswap
