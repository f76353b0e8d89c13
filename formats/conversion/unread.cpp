#include "ebb/formats/conversion/unread.h"

#include <algorithm>
#include <set>

#include "ebb/formats/core/json_text.h"

namespace ebb::formats {
namespace {

bool is_a_models(std::string_view state) { return is_weight(state) && state != "tensor"; }

// Names of which a weight is read.
std::set<std::string_view> read_weights(const Catalog& source) {
  std::set<std::string_view> names;
  for (const TensorEntry& tensor : source.tensors)
    if (is_a_models(tensor.state)) names.insert(tensor.name);
  return names;
}

bool wants(const ConvertRequest& request, const UnreadEntry& unread) {
  return !request.wanted || request.wanted(as_tensor(unread));
}

std::string line_about(const UnreadEntry& unread) {
  return compose("tensor '{}' ({}): {}", printable(unread.name), printable(unread.state),
                 unread.what);
}

// A weight that is unread and of which there is no other copy. Where nothing tells what is a model,
// everything may be.
Result<> check_weights(const Catalog& source, const ConvertRequest& request) {
  const std::set<std::string_view> read = read_weights(source);
  const bool known =
      !read.empty() || std::ranges::any_of(source.unread, is_a_models, &UnreadEntry::state);
  for (const UnreadEntry& unread : source.unread) {
    const bool weight = is_a_models(unread.state) || (!known && unread.state == "tensor");
    if (weight && !read.contains(unread.name) && wants(request, unread))
      return Error{Code::unsupported, compose("a weight is not read: {}", line_about(unread)),
                   unread.hint.empty() ? "-x leaves it out" : unread.hint + "; -x leaves it out"};
  }
  return {};
}

}  // namespace

Result<std::vector<std::string>> unread_in(const Catalog& source, const ConvertRequest& request) {
  std::vector<std::string> lines;
  if (source.unread.empty()) return lines;
  if (request.taking == Taking::weights) {
    EBB_TRY(check_weights(source, request));
    return lines;
  }
  for (const UnreadEntry& unread : source.unread)
    if (wants(request, unread)) lines.push_back(line_about(unread));
  if (source.tensors.empty())
    return Error{Code::unsupported,
                 compose("none of the {} tensors is read: {}", source.unread.size(),
                         line_about(source.unread.front())),
                 source.unread.front().hint};
  return lines;
}

std::string hint_about_unread(const Catalog& source) {
  const bool states = std::ranges::none_of(
      source.unread, [](const UnreadEntry& unread) { return is_weight(unread.state); });
  return compose("{}--drop goes on without what is not read",
                 states ? "--weights converts the weights alone; " : "");
}

}  // namespace ebb::formats
