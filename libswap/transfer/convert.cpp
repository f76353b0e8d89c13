#include "libswap/transfer/convert.h"

#include <algorithm>
#include <numeric>

namespace libswap {

using formats::Catalog;
using formats::Code;
using formats::Error;
using formats::Layout;
using formats::Policy;
using formats::Result;
using formats::TensorEntry;

namespace {

std::uint64_t stored_bytes(const TensorEntry& tensor) {
  return formats::div_ceil(formats::volume(tensor.shape) * bits_of(tensor.dtype), 8);
}

// The largest first, each to the emptiest rank; ties to the lower number.
std::vector<std::uint32_t> owners_by_size(const std::vector<TensorEntry>& tensors,
                                          std::uint32_t world) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return stored_bytes(tensors[a]) > stored_bytes(tensors[b]);
  });
  std::vector<std::uint64_t> load(world, 0);
  std::vector<std::uint32_t> owners(tensors.size());
  for (const std::size_t tensor : order) {
    const auto least = std::ranges::min_element(load);
    owners[tensor] = static_cast<std::uint32_t>(least - load.begin());
    *least += stored_bytes(tensors[tensor]);
  }
  return owners;
}

}  // namespace

Result<Conversion> plan_conversion(const Catalog& source, const ConvertRequest& request) {
  if (request.format == nullptr || request.format->emit == nullptr)
    return Error{Code::unsupported,
                 std::string(request.format ? request.format->name : "this format") +
                     " is read but not written by this version",
                 {}};
  if (request.world == 0) return Error{Code::usage, "a world of 0 ranks holds nothing", {}};
  Conversion conversion;
  Catalog& content = conversion.content;
  content = source;
  content.files.clear();
  content.tensors.clear();
  const bool same_format = source.format == request.format->name;
  for (std::uint32_t i = 0; i < source.tensors.size(); ++i) {
    if (request.wanted && !request.wanted(source.tensors[i])) continue;
    TensorEntry tensor = source.tensors[i];
    tensor.chunks.clear();
    if (!same_format) {
      tensor.key.reset();
      tensor.path.clear();
    }
    content.tensors.push_back(std::move(tensor));
    conversion.source_tensor_of.push_back(i);
  }
  std::vector<formats::Shape> shapes;
  for (const TensorEntry& tensor : content.tensors) shapes.push_back(tensor.shape);
  Layout::Spec spec{.policy = request.policy, .mesh = {request.world, 1}};
  if (request.policy == Policy::layer_wise)
    spec.owners = owners_by_size(content.tensors, request.world);
  TRY_ASSIGN(const Layout layout, Layout::make(std::move(spec), std::move(shapes)));
  TRY_ASSIGN(conversion.plan, request.format->emit({.content = content, .layout = layout}));
  return conversion;
}

}  // namespace libswap
