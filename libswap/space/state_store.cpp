#include "ebb/libswap/space/state_store.h"

#include <algorithm>

#include "ebb/libswap/sys/home_process.h"

namespace ebb::libswap {

struct StateStore::Impl {
  Result<> describe(const Layout::Spec& partition);
  Result<> open(const StateStoreConfig& config, const Visitor& initial);
  Visit visit_of(std::size_t tensor, std::span<std::byte> bytes) const;
  // One after the other from `position` on, which stays at what could not be visited.
  Result<> visit_each(std::size_t& position, SwapSpace::Access access, const Visitor& visitor);
  Result<> visit_one(std::size_t tensor, SwapSpace::Access access, const Visitor& visitor);

  std::vector<StoredTensor> tensors;
  std::vector<FlatRange> ranges;    // by tensor: this rank's
  std::vector<std::uint64_t> ends;  // by tensor: where its bytes and those before it end
  std::uint64_t bytes_ahead = 0;    // of what is asked for before it is visited

  const HomeProcess process{"state store"};
  Alone alone;
  Ranks* ranks = nullptr;
  std::unique_ptr<IoQueue> io;
  std::unique_ptr<SwapDirectory> directory;
  std::unique_ptr<SwapSpace> space;

  std::uint64_t step = 0;
  std::size_t position = 0;     // of the step under way: the tensor that is next
  std::uint64_t under_way = 0;  // which step that is; 0: none
};

const std::string& StateStore::Visit::name() const { return impl_->tensors[tensor_].name; }
FlatRange StateStore::Visit::range() const { return impl_->ranges[tensor_]; }

// The parts of a buffer lie one behind the other, each aligned (Buffers).
Result<std::span<std::byte>> StateStore::Visit::bytes_of(std::string_view state,
                                                         std::size_t elem_bytes) const {
  const StoredTensor& tensor = impl_->tensors[tensor_];
  std::uint64_t offset = 0;
  for (const StoredState& one : tensor.states) {
    const std::uint64_t bytes = range().count * formats::bytes_of(one.dtype);
    if (one.name == state && formats::bytes_of(one.dtype) == elem_bytes)
      return bytes == 0 ? std::span<std::byte>() : bytes_.subspan(offset, bytes);
    if (one.name == state)
      return Error{Code::usage,
                   compose("{} ({}) is {}; elements of {} bytes were asked for", tensor.name, state,
                           formats::name_of(one.dtype), elem_bytes)};
    offset = formats::align_up(offset + bytes, Buffers::kAlignBytes);
  }
  return Error{Code::usage, compose("{} has no state {}", tensor.name, state)};
}

StateStore::StateStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StateStore::~StateStore() { impl_->process.let_go(std::move(impl_)); }

Result<> StateStore::Impl::describe(const Layout::Spec& partition) {
  std::vector<Shape> shapes;
  for (const StoredTensor& tensor : tensors) shapes.push_back(tensor.shape);
  EBB_TRY_ASSIGN(const Layout layout, Layout::make(partition, shapes));
  if (layout.spec().mesh.world() != ranks->world())
    return Error{Code::layout, compose("the partition is for {} ranks, {} are here",
                                       layout.spec().mesh.world(), ranks->world())};
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    ranges.push_back(layout.held(i, ranks->rank()));
    std::vector<BufferPart> parts;
    for (const StoredState& state : tensors[i].states)
      parts.push_back({tensors[i].name, state.name, state.dtype, tensors[i].shape, ranges[i]});
    EBB_TRY(space->register_buffer(std::move(parts)));
    std::uint64_t bytes = 0;
    for (const StoredState& state : tensors[i].states)
      bytes += ranges[i].count * formats::bytes_of(state.dtype);
    ends.push_back((ends.empty() ? 0 : ends.back()) + bytes);
  }
  return {};
}

Result<> StateStore::Impl::open(const StateStoreConfig& config, const Visitor& initial) {
  const auto begin = [&]() -> Result<> {
    EBB_TRY_ASSIGN(auto chosen, open_backend(BackendChoice::automatic));
    EBB_TRY_ASSIGN(io, IoQueue::start(std::move(chosen.backend), {}));
    return {};
  };
  EBB_TRY(agree_all(*ranks, begin(), "starting its I/O"));
  EBB_TRY_ASSIGN(directory, SwapDirectory::open(*io, config.directory, *ranks, config.sources));
  space = std::make_unique<SwapSpace>(*io, *directory, *ranks,
                                      SwapSpaceConfig{.budget_bytes = config.budget_bytes,
                                                      .tile_bytes = config.tile_bytes,
                                                      .threads = config.threads});
  EBB_TRY(agree_all(*ranks, describe(config.partition), "describing its state"));
  SwapSpace::InitialContent content;
  if (initial)
    content = [&](BufferId buffer, std::span<std::byte> bytes) {
      return initial(visit_of(index_of(buffer), bytes));
    };
  EBB_TRY(space->open(content));
  step = space->step();
  bytes_ahead = space->useful_bytes_ahead();
  return {};
}

Result<std::unique_ptr<StateStore>> StateStore::open(const StateStoreConfig& config,
                                                     std::vector<StoredTensor> tensors,
                                                     const Visitor& initial) {
  std::unique_ptr<StateStore> store(new StateStore(std::make_unique<Impl>()));
  store->impl_->tensors = std::move(tensors);
  store->impl_->ranks = config.ranks != nullptr ? config.ranks : &store->impl_->alone;
  EBB_TRY(store->impl_->open(config, initial));
  return store;
}

std::uint64_t StateStore::step() const { return impl_->step; }
const std::string& StateStore::origin() const { return impl_->space->origin(); }
const std::filesystem::path& StateStore::store_directory() const {
  return impl_->space->store_directory();
}
SwapSpaceStats StateStore::stats() const { return impl_->space->stats(); }

StateStore::Visit StateStore::Impl::visit_of(std::size_t tensor, std::span<std::byte> bytes) const {
  Visit visit;
  visit.impl_ = this;
  visit.tensor_ = tensor;
  visit.bytes_ = bytes;
  return visit;
}

Result<> StateStore::Impl::visit_one(std::size_t tensor, SwapSpace::Access access,
                                     const Visitor& visitor) {
  const BufferId buffer{static_cast<std::uint32_t>(tensor)};
  EBB_TRY_ASSIGN(auto lease, space->acquire(buffer, Tier::host, access));
  EBB_TRY(visitor(visit_of(tensor, lease.bytes())));
  const auto how =
      access == SwapSpace::Access::read ? SwapSpace::Release::clean : SwapSpace::Release::dirty;
  return space->release(lease, how);
}

Result<> StateStore::Impl::visit_each(std::size_t& from, SwapSpace::Access access,
                                      const Visitor& visitor) {
  if (!visitor) return Error{Code::usage, "there is no function to visit the tensors with"};
  space->go_on();
  for (std::size_t ahead = from; from < tensors.size(); ++from) {
    for (; ahead < tensors.size() && ends[ahead] <= ends[from] + bytes_ahead; ++ahead)
      EBB_TRY(space->prefetch(BufferId{static_cast<std::uint32_t>(ahead)}));
    EBB_TRY(visit_one(from, access, visitor));
  }
  return {};
}

Result<> StateStore::for_each(std::uint64_t step, const Visitor& update) {
  Impl& self = *impl_;
  EBB_TRY(self.process.check());
  if (step <= self.step || (self.under_way != 0 && step != self.under_way))
    return Error{Code::usage,
                 self.under_way != 0
                     ? compose("step {} was cut and is not finished, step {} was asked for",
                               self.under_way, step)
                     : compose("step {} was asked for, the state is at step {}", step, self.step)};
  if (self.under_way == 0) EBB_TRY(self.space->poll_snapshot());
  if (self.under_way == 0) self.position = 0;
  self.under_way = step;
  EBB_TRY(self.visit_each(self.position, SwapSpace::Access::modify, update));
  self.step = step;
  self.under_way = 0;
  return {};
}

Result<> StateStore::set_blob(std::string key, ByteVector bytes) {
  return impl_->space->set_blob(std::move(key), std::move(bytes));
}
const ByteVector* StateStore::blob(std::string_view key) const { return impl_->space->blob(key); }

Result<> StateStore::read_each(const Visitor& look) {
  EBB_TRY(impl_->process.check());
  std::size_t position = 0;
  return impl_->visit_each(position, SwapSpace::Access::read, look);
}

Result<bool> StateStore::snapshot() {
  EBB_TRY(impl_->process.check());
  if (impl_->under_way != 0)
    return Error{Code::state,
                 compose("step {} was cut: the state is between two steps", impl_->under_way),
                 "for_each() with the same step goes on"};
  return impl_->space->snapshot(impl_->step);
}

Result<std::uint64_t> StateStore::wait_snapshot() { return impl_->space->wait_snapshot(); }

}  // namespace ebb::libswap
