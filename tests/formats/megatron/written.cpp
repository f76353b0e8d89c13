#include "tests/formats/megatron/written.h"

#include <gtest/gtest.h>

#include "ebb/formats/conversion/convert.h"
#include "ebb/formats/describe.h"
#include "ebb/formats/registry.h"
#include "tests/support/emit_in_memory.h"
#include "tests/support/expected.h"

namespace ebb::megatron_test {

Result<Written> written_as(const Checkpoint& source, std::string_view format, std::uint32_t world,
                           std::optional<Policy> policy) {
  const formats::Format& to = *formats::format_named(format);
  const formats::ConvertRequest request{.from = formats::format_of(source.catalog()),
                                        .to = to,
                                        .world = world,
                                        .policy = policy.value_or(to.traits().default_policy)};
  EBB_TRY_ASSIGN(formats::Conversion conversion, plan_conversion(source, request));
  EBB_TRY_ASSIGN(auto tree, test_support::carry_out(conversion.plan, *conversion.content, "out"));
  EBB_TRY_ASSIGN(auto checkpoint, formats::describe(tree));
  if (checkpoint->catalog().format != format)
    return Error{Code::corrupt, "read as " + checkpoint->catalog().format};
  EBB_TRY(prove_coverage(checkpoint->catalog()));
  return Written{std::move(conversion.plan), std::move(tree), std::move(checkpoint)};
}

Content content_of(const Checkpoint& checkpoint) {
  Content out;
  for (const TensorEntry& tensor : checkpoint.catalog().tensors) {
    const auto digest = test_support::sha256_of(checkpoint, tensor);
    EXPECT_TRUE(digest.has_value());
    out[tensor.name + " " + tensor.state] =
        std::string(name_of(tensor.dtype)) + " " + formats::to_string(tensor.shape) + " " + *digest;
  }
  return out;
}

std::map<std::string, std::string> values_of(const Catalog& catalog) {
  std::map<std::string, std::string> out;
  for (const ValueEntry& entry : catalog.values)
    if (entry.key != "folder") out[entry.key] = to_json(entry.value);
  return out;
}

const TensorEntry* find(const Catalog& catalog, std::string_view name, std::string_view state) {
  for (const TensorEntry& tensor : catalog.tensors)
    if (tensor.name == name && tensor.state == state) return &tensor;
  return nullptr;
}

}  // namespace ebb::megatron_test
