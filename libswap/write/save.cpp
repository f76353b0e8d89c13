#include "ebb/libswap/write/save.h"

#include <algorithm>
#include <limits>
#include <string>

#include "ebb/formats/conversion/convert.h"
#include "ebb/libswap/write/plan_check.h"

namespace ebb::libswap {

namespace {

constexpr std::size_t kIdDigits = 16;  // of a Temporary's id

template <typename T>
Result<> without_value(const Result<T>& result) {
  return result ? Result<>() : Result<>(result.error());
}

// What rank 0 says, on every rank. The others' argument is not looked at.
Result<std::uint64_t> from_rank_0(Agreement& ranks, Rank rank, std::uint64_t number) {
  std::uint64_t said = 0;
  for (const int shift : {0, 32}) {
    const auto half = static_cast<std::int64_t>(number >> shift & 0xffffffffu);
    EBB_TRY_ASSIGN(const std::int64_t least,
                   ranks.agree(rank == Rank{0} ? half : std::numeric_limits<std::int64_t>::max()));
    said |= static_cast<std::uint64_t>(least) << shift;
  }
  return said;
}

std::string hex_id(std::uint64_t number) {
  std::string id(kIdDigits, '0');
  for (char& digit : id) {
    digit = "0123456789abcdef"[number >> 60];
    number <<= 4;
  }
  return id;
}

bool needs_all_ranks(const OutputFile& file) {
  return std::ranges::any_of(file.fragments, [](const Fragment& fragment) {
    const auto* sealed = std::get_if<formats::Sealed>(&fragment.data);
    return sealed != nullptr && sealed->blocks_of.has_value();
  });
}

Result<> check_divisible(const EmitPlan& plan, const SaveRequest& request) {
  if (!plan.dropped.empty())
    return Error{
        Code::unsupported,
        compose("{} cannot hold {}{}", request.format.name(), plan.dropped.front(),
                (plan.dropped.size() > 1 ? compose(" and {} more", plan.dropped.size() - 1) : "")),
        "leave it out of what is saved, or choose another format"};
  if (request.world == 1) return {};
  if (!plan.derived.empty() || plan.packing ||
      std::ranges::any_of(plan.commit_files, needs_all_ranks))
    return Error{Code::unsupported,
                 compose("{} is not written by several ranks: its last files depend on all of them",
                         request.format.name()),
                 "save as dcp, and convert that"};
  for (const OutputFile& file : plan.files)
    if (index_of(file.writer) >= request.world)
      return Error{Code::layout, compose("{} would be written by rank {} of {}", file.name,
                                         index_of(file.writer), request.world)};
  return {};
}

// What one rank does of a plan that is the same on all.
struct OwnPart {
  formats::Conversion conversion;  // its plan: this rank's files alone
  std::int64_t hash = 0;           // of the whole plan
};

Result<OwnPart> part_of(const Checkpoint& content, const SaveRequest& request) {
  if (index_of(request.rank) >= request.world)
    return Error{Code::usage,
                 compose("rank {} of {} cannot save", index_of(request.rank), request.world)};
  OwnPart part;
  EBB_TRY_ASSIGN(part.conversion,
                 formats::plan_conversion(content, {.from = formats::format_of(content.catalog()),
                                                    .to = request.format,
                                                    .world = request.world,
                                                    .policy = request.policy}));
  EmitPlan& plan = part.conversion.plan;
  const Catalog& catalog = part.conversion.content->catalog();
  EBB_TRY_ASSIGN(const CheckedPlan checked, check_plan(plan, catalog));
  EBB_TRY(check_divisible(plan, request));
  if (request.write.verify == Verify::full)
    EBB_TRY(check_stores_everything(plan, catalog, checked));
  part.hash = static_cast<std::int64_t>(
      std::stoull(identity_of(plan, {}, 0).substr(0, kIdDigits), nullptr, 16) >> 1);
  std::erase_if(plan.files, [&](const OutputFile& file) { return file.writer != request.rank; });
  if (request.rank != Rank{0}) plan.commit_files.clear();
  return part;
}

// Collective.
Result<> check_same(Agreement& ranks, std::int64_t hash) {
  EBB_TRY_ASSIGN(const std::int64_t least, ranks.agree(hash));
  EBB_TRY_ASSIGN(const std::int64_t most, ranks.agree(-hash));
  if (least == -most) return {};
  return Error{Code::layout, "the ranks describe different states, or cut them differently",
               "every rank saves with the same description of the whole state"};
}

// Rank 0.
Result<WriteReport> lead(IoQueue& io, Agreement& ranks, const formats::Conversion& conversion,
                         const WriteOptions& options, const fs::path& destination) {
  bool begun = false;
  bool shards_there = false;
  CollectiveHooks hooks;
  hooks.begun = [&](const Temporary& temporary) -> Result<> {
    begun = true;
    EBB_TRY(agree_all(ranks, {}, "beginning to save"));
    EBB_TRY(from_rank_0(ranks, Rank{0}, std::stoull(temporary.id(), nullptr, 16)));
    return {};
  };
  hooks.shards_written = [&](const Result<>& mine) -> Result<> {
    EBB_TRY(agree_all(ranks, mine, "writing its files"));
    shards_there = true;
    return {};
  };
  Result<WriteReport> report =
      write_checkpoint(io, *conversion.content, conversion.plan, destination, options, hooks);
  if (!begun) EBB_TRY(agree_all(ranks, without_value(report), "beginning to save"));
  if (shards_there) EBB_TRY(agree_all(ranks, without_value(report), "publishing"));
  return report;
}

// Every other rank.
Result<WriteReport> follow(IoQueue& io, Agreement& ranks, const formats::Conversion& conversion,
                           const SaveRequest& request, const fs::path& destination) {
  EBB_TRY(agree_all(ranks, {}, "beginning to save"));
  EBB_TRY_ASSIGN(const std::uint64_t id, from_rank_0(ranks, request.rank, 0));
  Result<WriteReport> report =
      write_shards(io, *conversion.content, conversion.plan,
                   fresh_directory(with_parent(destination), hex_id(id)), request.write);
  EBB_TRY(agree_all(ranks, without_value(report), "writing its files"));
  EBB_TRY(agree_all(ranks, {}, "publishing"));
  return report;
}

}  // namespace

Result<WriteReport> save(IoQueue& io, Agreement& ranks, const Checkpoint& content,
                         const SaveRequest& request, const fs::path& destination) {
  const Result<OwnPart> part = part_of(content, request);
  EBB_TRY(agree_all(ranks, without_value(part), "planning to save"));
  EBB_TRY(check_same(ranks, part->hash));
  if (request.rank != Rank{0}) return follow(io, ranks, part->conversion, request, destination);
  WriteOptions options = request.write;
  options.verify = Verify::none;  // the whole plan was checked; this is a part of it
  options.source_identity.clear();
  options.check = nullptr;
  return lead(io, ranks, part->conversion, options, destination);
}

}  // namespace ebb::libswap
