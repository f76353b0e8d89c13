// Checkpoints of any format, read from C.
#include <algorithm>
#include <iterator>

#include "bindings/c/arguments.h"
#include "bindings/c/guarded.h"
#include "bindings/c/json.h"
#include "bindings/c/objects.h"
#include "ebb/formats/catalog/value_json.h"
#include "ebb/formats/conversion/weights.h"
#include "ebb/formats/describe.h"
#include "ebb/formats/registry.h"
#include "ebb/libswap/read/load.h"
#include "ebb/libswap/tree/file_tree.h"

namespace ebb::c {

Handles<CheckpointObject>& checkpoints() {
  static auto* const all = new Handles<CheckpointObject>("checkpoint");
  return *all;
}

namespace {

Result<std::shared_ptr<CheckpointObject>> open(const char* given) {
  EBB_TRY_ASSIGN(const std::string_view path, text_of(given, "ebb_checkpoint_open: path"));
  EBB_TRY_ASSIGN(auto tree, libswap::open_tree(path));
  auto object = std::make_shared<CheckpointObject>();
  EBB_TRY_ASSIGN(object->checkpoint, formats::describe(std::move(tree)));
  return object;
}

Result<std::shared_ptr<CheckpointObject>> weights_of(const CheckpointObject& source) {
  const Checkpoint& whole = *source.checkpoint;
  EBB_TRY_ASSIGN(formats::Weights weights,
                 formats::weights_of(formats::format_of(whole.catalog()), whole.catalog(), {}));
  Catalog content = whole.catalog();
  content.tensors = std::move(weights.tensors);
  std::vector<std::string> unwrapped =
      formats::unwrap_names(formats::Wrappers::off, weights.names, content);
  std::ranges::move(unwrapped, std::back_inserter(weights.changes));
  auto object = std::make_shared<CheckpointObject>();
  object->checkpoint =
      std::make_shared<formats::ContentView>(whole, std::move(content), std::move(weights.made_of));
  object->changes = std::move(weights.changes);
  object->source = source.checkpoint;
  return object;
}

void tell(Json& json, const TensorEntry& tensor) {
  json.open_list();
  json.item(tensor.name);
  json.item(tensor.state);
  if (tensor.key)
    json.item(*tensor.key);
  else
    json.json_item("null");
  json.item(formats::name_of(tensor.dtype));
  json.numbers_item(tensor.shape);
  json.number_item(tensor.chunks.size());
  json.close_list();
}

std::string about(const CheckpointObject& object) {
  const Catalog& catalog = object.checkpoint->catalog();
  Json json;
  json.text("format", catalog.format);
  json.text("producer", catalog.producer);
  json.json("step", catalog.step ? std::to_string(*catalog.step) : "null");
  json.number("world", std::uint64_t{catalog.world});
  json.text("partition", catalog.partition);
  json.open_list("notes");
  if (catalog.part_of)
    json.item("this is one part of a save that several hold together: " + catalog.part_of->why);
  for (const auto* lines : {&catalog.notes, &object.changes})
    for (const std::string& line : *lines) json.item(line);
  json.close_list();
  json.open_list("tensors");
  for (const TensorEntry& tensor : catalog.tensors) tell(json, tensor);
  json.close_list();
  json.open_list("unread");
  for (const formats::UnreadEntry& unread : catalog.unread) {
    json.open_list();
    for (const auto* text : {&unread.key, &unread.name, &unread.state, &unread.what})
      json.item(*text);
    json.close_list();
  }
  json.close_list();
  json.json("groups", formats::groups_json(catalog.groups));
  json.json("values", formats::values_json(catalog.values));
  return json.whole();
}

Result<const TensorEntry*> tensor_of(const CheckpointObject& object, std::uint32_t number) {
  const auto& tensors = object.checkpoint->catalog().tensors;
  if (number < tensors.size()) return &tensors[number];
  return Error{Code::usage, compose("tensor {}: the checkpoint has {}", number, tensors.size())};
}

Result<std::string> chunks(const CheckpointObject& object, std::uint32_t number) {
  EBB_TRY_ASSIGN(const TensorEntry* const tensor, tensor_of(object, number));
  Json json;
  json.open_list("chunks");
  for (const Chunk& chunk : tensor->chunks) {
    json.open_list();
    const auto& files = object.checkpoint->catalog().files;
    json.item(chunk.file < files.size() ? std::string_view(files[chunk.file].name) : "");
    for (const std::uint64_t value :
         {chunk.offset, chunk.length, std::uint64_t{index_of(chunk.holder)}})
      json.number_item(value);
    json.numbers_item(chunk.box.offset);
    json.numbers_item(chunk.box.extent);
    json.close_list();
  }
  json.close_list();
  return json.whole();
}

Result<libswap::Wanted> wanted_of(const CheckpointObject& object, const ebb_wanted& given) {
  EBB_TRY_ASSIGN(const TensorEntry* const tensor, tensor_of(object, given.tensor));
  libswap::Wanted wanted{.tensor = given.tensor};
  const std::size_t dimensions = tensor->shape.size();
  wanted.box = {Shape(dimensions, 0), tensor->shape};
  if ((given.offsets == nullptr) != (given.extents == nullptr))
    return Error{Code::usage, compose("{}: offsets or extents is NULL, and not both",
                                      formats::label_of(*tensor))};
  if (given.offsets != nullptr)
    wanted.box = {Shape(given.offsets, given.offsets + dimensions),
                  Shape(given.extents, given.extents + dimensions)};
  if (given.into == nullptr && given.bytes > 0) return missing(formats::label_of(*tensor));
  wanted.into = {static_cast<std::byte*>(given.into), given.bytes};
  return wanted;
}

Result<> read(const CheckpointObject& object, const ebb_wanted* given, uint64_t count,
              uint32_t workers) {
  EBB_TRY_ASSIGN(const auto all, array_of(given, count, "ebb_checkpoint_read: wanted"));
  std::vector<libswap::Wanted> wanted;
  for (const ebb_wanted& one : all) {
    EBB_TRY_ASSIGN(libswap::Wanted next, wanted_of(object, one));
    wanted.push_back(std::move(next));
  }
  EBB_TRY(libswap::load(*object.checkpoint, wanted, {.workers = workers}));
  return {};
}

// body(object) of the one that the handle leads to.
template <typename Body>
ebb_status with_checkpoint(ebb_checkpoint* checkpoint, const Body& body) {
  return guarded([&]() -> Result<> {
    EBB_TRY_ASSIGN(const std::shared_ptr<CheckpointObject> object, checkpoints().find(checkpoint));
    return body(object);
  });
}

}  // namespace
}  // namespace ebb::c

using ebb::Result;
using ebb::c::CheckpointObject;
using ebb::c::guarded;
using Object = std::shared_ptr<CheckpointObject>;

ebb_status ebb_checkpoint_open(const char* path, ebb_checkpoint** checkpoint) noexcept {
  return guarded([&]() -> Result<> {
    EBB_TRY(ebb::c::check_place(checkpoint, "ebb_checkpoint_open: checkpoint"));
    EBB_TRY_ASSIGN(auto object, ebb::c::open(path));
    return ebb::c::checkpoints().add(std::move(object), checkpoint);
  });
}

ebb_status ebb_checkpoint_weights(ebb_checkpoint* checkpoint, ebb_checkpoint** weights) noexcept {
  return ebb::c::with_checkpoint(checkpoint, [&](const Object& object) -> Result<> {
    EBB_TRY(ebb::c::check_place(weights, "ebb_checkpoint_weights: weights"));
    EBB_TRY_ASSIGN(auto made, ebb::c::weights_of(*object));
    return ebb::c::checkpoints().add(std::move(made), weights);
  });
}

ebb_status ebb_checkpoint_about(ebb_checkpoint* checkpoint, char** json) noexcept {
  return ebb::c::with_checkpoint(checkpoint, [&](const Object& object) {
    return ebb::c::answer_text(json, ebb::c::about(*object), "ebb_checkpoint_about: json");
  });
}

ebb_status ebb_checkpoint_chunks(ebb_checkpoint* checkpoint, uint32_t tensor,
                                 char** json) noexcept {
  return ebb::c::with_checkpoint(checkpoint, [&](const Object& object) -> Result<> {
    EBB_TRY_ASSIGN(const std::string text, ebb::c::chunks(*object, tensor));
    return ebb::c::answer_text(json, text, "ebb_checkpoint_chunks: json");
  });
}

ebb_status ebb_checkpoint_read(ebb_checkpoint* checkpoint, const ebb_wanted* wanted, uint64_t count,
                               uint32_t workers) noexcept {
  return ebb::c::with_checkpoint(checkpoint, [&](const Object& object) {
    return ebb::c::read(*object, wanted, count, workers);
  });
}

ebb_status ebb_checkpoint_close(ebb_checkpoint* checkpoint) noexcept {
  return guarded([&]() -> Result<> {
    EBB_TRY(ebb::c::checkpoints().remove(checkpoint));
    return {};
  });
}
