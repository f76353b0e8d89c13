#include "tests/libmuon/support/real_models.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <string_view>

#include "ebb/formats/core/check.h"

namespace ebb::test {
namespace {

using libmuon::ModelSpec;
using libmuon::ParamSpec;

// A line of the list: `count` parameters whose names have numbers for each "#".
struct Tensor {
  std::string name;
  Shape shape;
  std::uint64_t count = 0;
  bool matrix = false;
  std::size_t numbers() const { return static_cast<std::size_t>(std::ranges::count(name, '#')); }
};

// What follows a key, from `at` on, which is moved behind it.
std::string_view value_of(std::string_view text, std::string_view key, std::size_t& at) {
  at = text.find("\"" + std::string(key) + "\":", at);
  EBB_CHECK(at != text.npos);
  at += key.size() + 3;
  return text.substr(at, text.find_first_of("}", at) - at);
}

std::uint64_t number_in(std::string_view text) {
  std::uint64_t number = 0;
  const std::size_t first = text.find_first_of("0123456789");
  EBB_CHECK(first != text.npos);
  std::from_chars(text.data() + first, text.data() + text.size(), number);
  return number;
}

std::string quoted(std::string_view text) {
  const std::size_t first = text.find('"') + 1;
  return std::string(text.substr(first, text.find('"', first) - first));
}

std::vector<Tensor> tensors_of(const std::string& model) {
  std::ifstream file(std::string(EBB_FIXTURES) + "/shapes/" + model + ".json");
  EBB_CHECK(file.is_open());
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::vector<Tensor> tensors;
  for (std::size_t at = text.find("\"tensors\""); text.find("\"name\"", at) != text.npos;) {
    Tensor& tensor = tensors.emplace_back();
    tensor.name = quoted(value_of(text, "name", at));
    std::string_view shape = value_of(text, "shape", at);
    shape = shape.substr(0, shape.find(']'));
    for (std::size_t comma = 0; comma != shape.npos; comma = shape.find(',', comma + 1))
      tensor.shape.push_back(number_in(shape.substr(comma)));
    tensor.matrix = quoted(value_of(text, "kind", at)) == "matrix";
    tensor.count = number_in(value_of(text, "count", at));
  }
  return tensors;
}

std::string numbered(std::string name, std::uint64_t number) {
  const std::size_t at = name.find('#');
  return at == name.npos ? name : name.replace(at, 1, std::to_string(number));
}

class Builder {
 public:
  Builder(std::vector<Tensor> tensors, Experts experts)
      : tensors_(std::move(tensors)), experts_(experts) {}

  ModelSpec build() {
    model_.groups = {libmuon::MuonSpec::keller(), libmuon::AdamSpec{}};
    const auto first = std::ranges::find_if(tensors_, [](auto& t) { return t.numbers() > 0; });
    const auto last = std::find_if(tensors_.rbegin(), tensors_.rend(), [](auto& t) {
                        return t.numbers() > 0;
                      }).base();
    layers_ = first->count;
    for (auto tensor = tensors_.begin(); tensor != first; ++tensor) add(*tensor, tensor->name);
    for (std::uint64_t layer = 0; layer < layers_; ++layer)
      for (auto tensor = first; tensor != last;) tensor = add_of_layer(tensor, last, layer);
    for (auto tensor = last; tensor != tensors_.end(); ++tensor) add(*tensor, tensor->name);
    return std::move(model_);
  }

 private:
  using At = std::vector<Tensor>::const_iterator;

  void add(const Tensor& tensor, std::string name) {
    model_.params.push_back({std::move(name), tensor.shape, tensor.matrix ? 0u : 1u});
  }

  // Those of an expert lie side by side. The tensor behind what was added.
  At add_of_layer(At tensor, At last, std::uint64_t layer) {
    if (tensor->numbers() < 2) {
      add(*tensor, numbered(tensor->name, layer));
      return tensor + 1;
    }
    const At end = std::find_if(tensor, last, [](const Tensor& t) { return t.numbers() < 2; });
    const std::uint64_t experts = tensor->count / layers_;
    if (experts_ == Experts::stacked)
      for (At part = tensor; part != end; ++part) {
        Tensor stack = *part;
        stack.shape.insert(stack.shape.begin(), experts);
        add(stack, numbered(part->name, layer));
      }
    else
      for (std::uint64_t expert = 0; expert < experts; ++expert)
        for (At part = tensor; part != end; ++part)
          add(*part, numbered(numbered(part->name, layer), expert));
    return end;
  }

  const std::vector<Tensor> tensors_;
  const Experts experts_;
  std::uint64_t layers_ = 0;
  ModelSpec model_;
};

}  // namespace

std::vector<std::string> real_model_names() {
  return {"gpt2-124m", "gpt2-1.5b", "llama-3-8b", "llama-3-70b", "qwen3-30b-a3b"};
}

ModelSpec real_model(const std::string& name, Experts experts) {
  return Builder(tensors_of(name), experts).build();
}

}  // namespace ebb::test
