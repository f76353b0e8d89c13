// Checkpoints of what lies in the caller's memory.
#include "ebb/libswap/write/save.h"
#include "bindings/c/arguments.h"
#include "bindings/c/guarded.h"
#include "bindings/c/model.h"
#include "bindings/c/objects.h"
#include "bindings/c/written.h"
#include "ebb/formats/conversion/memory_content.h"

namespace ebb::c {
namespace {

// What a caller saves, borrowed from it.
struct Given {
  ebb_save save{};
  const formats::Format* format = nullptr;
  std::string_view path;
  std::optional<formats::MemoryContent> content;
  std::unique_ptr<libswap::IoQueue> io;
};

Result<Shape> shape_of(const uint64_t* numbers, uint32_t count, const std::string& what) {
  EBB_TRY_ASSIGN(const auto given, array_of(numbers, count, what));
  return Shape(given.begin(), given.end());
}

Result<TensorEntry> entry_of(const ebb_saved& given, std::string_view what) {
  TensorEntry entry;
  EBB_TRY_ASSIGN(entry.name, text_of(given.name, compose("{}: name", what)));
  entry.state = given.state != nullptr ? given.state : "param";
  if (given.state == nullptr) {  // as the format has it where the trainer names it itself
    entry.key = entry.name;
    entry.path = {entry.name};
  }
  EBB_TRY_ASSIGN(entry.dtype, dtype_of(given.dtype, entry.name + ": dtype"));
  EBB_TRY_ASSIGN(entry.shape, shape_of(given.shape, given.ndim, entry.name + ": shape"));
  return entry;
}

Result<std::optional<formats::Held>> held_of(const ebb_saved& given, const TensorEntry& entry,
                                             std::uint32_t number) {
  if (given.data == nullptr) return std::optional<formats::Held>();
  formats::Held held{.tensor = number, .box = {Shape(entry.shape.size(), 0), entry.shape}};
  if (given.offsets != nullptr || given.extents != nullptr) {
    EBB_TRY_ASSIGN(held.box.offset, shape_of(given.offsets, given.ndim, entry.name + ": offsets"));
    EBB_TRY_ASSIGN(held.box.extent, shape_of(given.extents, given.ndim, entry.name + ": extents"));
  }
  const auto elems = formats::checked_volume(held.box.extent);
  const auto bytes = elems ? formats::packed_bytes(entry.dtype, *elems) : std::nullopt;
  if (!bytes) return Error{Code::limit, entry.name + " has more bytes than there are"};
  held.data = {static_cast<const std::byte*>(given.data), static_cast<std::size_t>(*bytes)};
  return std::optional(held);
}

Result<> take(const ebb_save* save, std::uint32_t world, Given& out) {
  EBB_TRY_ASSIGN(out.save, sized(save, "ebb_checkpoint_save: save"));
  EBB_TRY_ASSIGN(out.format, format_of(out.save.format, "ebb_checkpoint_save"));
  EBB_TRY_ASSIGN(out.path, text_of(out.save.path, "ebb_checkpoint_save: path"));
  EBB_TRY_ASSIGN(const auto tensors, all_sized(out.save.tensors, out.save.tensor_count,
                                               "ebb_checkpoint_save: tensors", "tensor"));
  Catalog catalog;
  catalog.format = out.format->name();
  catalog.world = world;
  if (out.save.step > 0) catalog.step = out.save.step - 1;
  std::vector<formats::Held> held;
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    EBB_TRY_ASSIGN(TensorEntry entry, entry_of(tensors[i], compose("tensor {}", i)));
    EBB_TRY_ASSIGN(const auto here, held_of(tensors[i], entry, i));
    if (here) held.push_back(*here);
    catalog.tensors.push_back(std::move(entry));
  }
  EBB_TRY_ASSIGN(out.content, formats::MemoryContent::make(std::move(catalog), std::move(held)));
  EBB_TRY_ASSIGN(out.io, open_io());
  return {};
}

Result<std::uint64_t> save_alone(const ebb_save* save) {
  Given given;
  EBB_TRY(take(save, 1, given));
  EBB_TRY_ASSIGN(const auto report, write(*given.io, *given.content,
                                          {.format = *given.format,
                                           .path = given.path,
                                           .workers = given.save.workers,
                                           .whole = true}));
  return report.bytes;
}

Result<std::uint64_t> save_together(const ebb_save* save, ebb_ranks* handle) {
  EBB_TRY_ASSIGN(const auto known, ranks_handles().find(handle));
  EBB_TRY_ASSIGN(const OnlyCall call, collective_call(*known));
  const Passage passage(*known);
  libmuon::Communicator& ranks = *known->ranks;
  Given given;
  EBB_TRY(libswap::agree_all(ranks, take(save, ranks.world(), given), "saving a checkpoint"));
  libswap::SaveRequest request{
      .format = *given.format, .rank = ranks.rank(), .world = ranks.world()};
  if (given.save.workers != 0) request.write.workers = given.save.workers;
  EBB_TRY_ASSIGN(const auto report,
                 hinted(libswap::save(*given.io, ranks, *given.content, request, given.path)));
  return report.bytes;
}

}  // namespace
}  // namespace ebb::c

ebb_status ebb_checkpoint_save(const ebb_save* save, ebb_ranks* ranks, uint64_t* bytes) noexcept {
  return ebb::c::guarded([&]() -> ebb::Result<> {
    EBB_TRY_ASSIGN(const std::uint64_t written, ranks == nullptr
                                                    ? ebb::c::save_alone(save)
                                                    : ebb::c::save_together(save, ranks));
    if (bytes != nullptr) *bytes = written;
    return {};
  });
}
