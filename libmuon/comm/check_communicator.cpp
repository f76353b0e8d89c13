#include "ebb/libmuon/comm/check_communicator.h"

#include <array>
#include <vector>

namespace ebb::libmuon {
namespace {

Error wrong(std::string what) {
  return {Code::usage, "the communicator " + std::move(what),
          "ebb/libmuon/comm/communicator.h says what it owes"};
}

// Every rank is there, once.
Result<> check_sum(Communicator& ranks, std::uint32_t me) {
  std::vector<std::int64_t> here(ranks.world());
  here[me] = 1;
  EBB_TRY(ranks.sum(here));
  for (std::size_t rank = 0; rank < here.size(); ++rank)
    if (here[rank] != 1)
      return wrong(compose("does not sum, or its ranks are not 0 to {}: rank {} is there {} times",
                           here.size() - 1, rank, here[rank]));
  return {};
}

Result<> check_agree(Communicator& ranks, std::int64_t me) {
  EBB_TRY_ASSIGN(const std::int64_t least, ranks.agree(me));
  EBB_TRY_ASSIGN(const std::int64_t most, ranks.agree(-me));
  const std::int64_t last = ranks.world() - 1;
  if (least == 0 && most == -last) return {};
  return wrong(compose("does not agree on the smallest: {} of 0 to {}, {} of their negatives",
                       least, last, most));
}

// To the next rank, and to oneself.
Result<> check_exchange(Communicator& ranks, std::uint32_t me) {
  const std::uint32_t world = ranks.world();
  const std::uint32_t next = (me + 1) % world, before = (me + world - 1) % world;
  std::array<std::uint32_t, 2> out = {1000 + me, 2000 + me}, in{};
  const auto bytes_of = [](std::uint32_t& number) {
    return libswap::buffer_of(std::span<std::byte>(std::as_writable_bytes(std::span(&number, 1))));
  };
  const std::array<SendBuffer, 2> sends = {
      {{Rank{next}, bytes_of(out[0])}, {Rank{me}, bytes_of(out[1])}}};
  const std::array<ReceiveBuffer, 2> receives = {
      {{Rank{before}, bytes_of(in[0])}, {Rank{me}, bytes_of(in[1])}}};
  EBB_TRY(world == 1 ? ranks.exchange(std::span(sends).last(1), std::span(receives).last(1))
                     : ranks.exchange(sends, receives));
  if ((world == 1 || in[0] == 1000 + before) && in[1] == out[1]) return {};
  return wrong(compose("does not exchange: what rank {} sent is not what rank {} received",
                       in[1] == out[1] ? before : me, me));
}

Result<> check_all(Communicator& ranks) {
  const std::uint32_t me = index_of(ranks.rank());
  if (me >= ranks.world())
    return wrong(compose("says that it is rank {} of {}", me, ranks.world()));
  EBB_TRY(check_sum(ranks, me));
  EBB_TRY(check_agree(ranks, me));
  return check_exchange(ranks, me);
}

}  // namespace

Result<> check_communicator(Communicator& ranks) {
  Result<> well = check_all(ranks);
  if (!well) ranks.abort();
  return well;
}

Result<> check_duplicate(const Communicator& of, const Communicator& duplicate) {
  if (duplicate.rank() == of.rank() && duplicate.world() == of.world() &&
      duplicate.limit() == of.limit())
    return {};
  return wrong(compose("of rank {} of {} duplicates as rank {} of {}, or with another limit",
                       index_of(of.rank()), of.world(), index_of(duplicate.rank()),
                       duplicate.world()));
}

}  // namespace ebb::libmuon
