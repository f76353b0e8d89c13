#include "ebb/libmuon/step/exchange.h"

#include <algorithm>
#include <optional>

namespace ebb::libmuon {
namespace {

using formats::Move;
using formats::Piece;

std::uint64_t bytes_of(const Move& move) { return move.elems() * sizeof(float); }

template <typename Float>
std::span<Float> piece_data(std::span<Float> buffer, const Piece& piece) {
  return buffer.subspan(piece.local_first, formats::volume(piece.box.extent));
}

// Where the region begins in the piece's buffer if its elements lie there without gaps.
std::optional<std::uint64_t> dense_first(const Piece& piece, const Box& region) {
  Box inner = region;
  for (std::size_t d = 0; d < inner.offset.size(); ++d) inner.offset[d] -= piece.box.offset[d];
  const auto range = formats::flat_range_of(piece.box.extent, inner);
  if (!range) return std::nullopt;
  return piece.local_first + range->first;
}

void copy(const Box& region, const Box& source_box, std::span<const float> source,
          const Box& target_box, std::span<float> target) {
  formats::copy_region(region, {source_box, std::as_bytes(source)},
                       {target_box, std::as_writable_bytes(target)}, sizeof(float));
}

void append(std::vector<Move>& into, const std::vector<Move>& moves,
            const Exchange::Selection& selected) {
  std::ranges::copy_if(moves, std::back_inserter(into),
                       [&](const Move& move) { return selected(move.tensor); });
}

// Between a pair of ranks both sides must list messages in one order: by tensor, then as planned.
void order(std::vector<Move>& moves) { std::ranges::stable_sort(moves, {}, &Move::tensor); }

std::uint64_t overlap(FlatRange a, FlatRange b) {
  const std::uint64_t first = std::max(a.first, b.first);
  const std::uint64_t end = std::min(a.first + a.count, b.first + b.count);
  return end > first ? end - first : 0;
}

}  // namespace

// As ReshardPlan::between cuts it: a rank that holds an element itself takes it from there, the
// others take it from the first copy.
std::uint64_t busiest_rank_bytes(const Layout& from, const Layout& to, std::uint32_t tensor) {
  if (from.spec().policy == Policy::replicated) return 0;
  const formats::Mesh& source = from.spec().mesh;
  const formats::Mesh& target = to.spec().mesh;
  const std::uint64_t copies =
      to.spec().policy == Policy::replicated ? target.world() : target.replicas;
  std::uint64_t busiest = 0;
  std::vector<std::uint64_t> kept(source.shard_world);  // by the ranks that hold a shard, together
  for (std::uint32_t rank = 0; rank < target.world(); ++rank) {
    const FlatRange wanted = to.held(tensor, Rank{rank});
    const std::uint64_t here = overlap(from.held(tensor, Rank{rank}), wanted);
    kept[source.shard_of(Rank{rank})] += here;
    busiest = std::max(busiest, wanted.count - here);
  }
  for (std::uint32_t shard = 0; shard < source.shard_world; ++shard) {
    const std::uint64_t held = from.held(tensor, Rank{shard}).count;
    busiest = std::max(busiest, copies * held - kept[shard]);
  }
  return busiest * sizeof(float);
}

void Exchange::add(const formats::ReshardPlan& plan, const Selection& selected,
                   const Selection& in_place) {
  append(sends_, plan.sends, selected);
  append(receives_, plan.receives, selected);
  append(keeps_, plan.keeps,
         [&](std::uint32_t tensor) { return selected(tensor) && !in_place(tensor); });
}

void Exchange::plan_rounds(std::span<const std::uint64_t> busiest_bytes,
                           std::uint64_t round_bytes) {
  order(sends_);
  order(receives_);
  std::vector<std::size_t> round_of(busiest_bytes.size());
  std::uint64_t filled = 0;
  std::size_t round = 0;
  for (std::size_t tensor = 0; tensor < busiest_bytes.size(); ++tensor) {
    const std::uint64_t bytes = busiest_bytes[tensor];
    EBB_CHECK(bytes <= round_bytes);
    if (filled > 0 && filled + bytes > round_bytes) {
      ++round;
      filled = 0;
    }
    filled += bytes;
    round_of[tensor] = round;
  }
  rounds_.resize(round + 1);
  for (Move& move : sends_) {
    sent_bytes_ += bytes_of(move);
    rounds_[round_of[move.tensor]].sends.push_back(std::move(move));
  }
  for (Move& move : receives_) rounds_[round_of[move.tensor]].receives.push_back(std::move(move));
  for (const Round& planned : rounds_) {
    std::uint64_t packed = 0;
    for (const Move& move : planned.sends)
      if (!dense_first(move.source, move.region)) packed += bytes_of(move);
    for (const Move& move : planned.receives)
      if (!dense_first(move.target, move.region)) packed += bytes_of(move);
    workspace_bytes_ = std::max(workspace_bytes_, packed);
  }
  sends_.clear();
  receives_.clear();
}

Result<> Exchange::run(Communicator& ranks, const Source& source, const Target& target) {
  for (const Move& move : keeps_)
    copy(move.region, move.source.box, piece_data(source(move.tensor), move.source),
         move.target.box, piece_data(target(move.tensor), move.target));
  if (ranks.world() == 1) return {};
  for (const Round& round : rounds_) EBB_TRY(run_round(round, ranks, source, target));
  return {};
}

Result<> Exchange::run_round(const Round& round, Communicator& ranks, const Source& source,
                             const Target& target) {
  std::vector<std::vector<float>> packed;
  packed.reserve(round.sends.size() + round.receives.size());
  std::vector<SendBuffer> sends;
  for (const Move& move : round.sends) {
    const auto buffer = source(move.tensor);
    if (const auto first = dense_first(move.source, move.region)) {
      sends.push_back({move.to, std::as_bytes(buffer.subspan(*first, move.elems()))});
      continue;
    }
    auto& dense = packed.emplace_back(move.elems());
    copy(move.region, move.source.box, piece_data(buffer, move.source), move.region, dense);
    sends.push_back({move.to, std::as_bytes(std::span<const float>(dense))});
  }
  std::vector<ReceiveBuffer> receives;
  std::vector<std::pair<const Move*, std::span<const float>>> unpack;
  for (const Move& move : round.receives) {
    const auto buffer = target(move.tensor);
    if (const auto first = dense_first(move.target, move.region)) {
      receives.push_back({move.from, std::as_writable_bytes(buffer.subspan(*first, move.elems()))});
      continue;
    }
    auto& dense = packed.emplace_back(move.elems());
    receives.push_back({move.from, std::as_writable_bytes(std::span(dense))});
    unpack.push_back({&move, dense});
  }
  EBB_TRY(ranks.exchange(sends, receives));
  for (const auto& [move, dense] : unpack)
    copy(move->region, move->region, dense, move->target.box,
         piece_data(target(move->tensor), move->target));
  return {};
}

}  // namespace ebb::libmuon
