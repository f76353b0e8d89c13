#include "ebb/libswap/store/agreement.h"

#include <algorithm>
#include <cstring>

namespace ebb::libswap {
namespace {

constexpr std::size_t kWord = sizeof(std::int64_t);

std::size_t words_of(std::int64_t bytes) {
  return (static_cast<std::size_t>(bytes) + kWord - 1) / kWord;
}

}  // namespace

Result<> Ranks::together(std::string_view doing, const std::function<Result<>()>& work) {
  return agree_all(*this, work(), doing);
}

Result<> Ranks::together_reading(std::string_view /*doing*/, const FilesApart& files,
                                 const std::function<Result<>(const ReadThere& there)>& /*work*/) {
  return Error{Code::unsupported, files.who + ", and these ranks pass no bytes to each other",
               "name directories that every rank reaches, or give ranks that pass bytes: those of "
               "ebb/libmuon/comm/communicator.h do"};
}

// By sums to which one rank alone adds something.
Result<std::vector<formats::ByteVector>> gather(Ranks& ranks, formats::ByteView mine) {
  const std::size_t me = index_of(ranks.rank());
  std::vector<std::int64_t> sizes(ranks.world(), 0);
  sizes[me] = static_cast<std::int64_t>(mine.size());
  EBB_TRY(ranks.sum(sizes));
  std::vector<std::size_t> starts(1, 0);
  for (const std::int64_t size : sizes) starts.push_back(starts.back() + words_of(size));
  std::vector<std::int64_t> words(starts.back(), 0);
  if (!mine.empty()) std::memcpy(words.data() + starts[me], mine.data(), mine.size());
  EBB_TRY(ranks.sum(words));
  const auto all = std::as_bytes(std::span(words));
  std::vector<formats::ByteVector> said;
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    const auto part = all.subspan(starts[rank] * kWord, static_cast<std::size_t>(sizes[rank]));
    said.emplace_back(part.begin(), part.end());
  }
  return said;
}

}  // namespace ebb::libswap
