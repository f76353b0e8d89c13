// Opens a checkpoint of any format and prints its tensors.
#include <cstdio>

#include "ebb/formats/describe.h"
#include "ebb/libswap/tree/file_tree.h"

namespace {

ebb::Result<> print_tensors(const char* path) {
  EBB_TRY_ASSIGN(auto tree, ebb::libswap::open_tree(path));
  EBB_TRY_ASSIGN(const auto checkpoint, ebb::formats::describe(std::move(tree)));
  const ebb::Catalog& catalog = checkpoint->catalog();
  EBB_TRY(ebb::formats::prove_coverage(catalog));  // every element is stored exactly once
  std::printf("%s of %u ranks\n", catalog.format.c_str(), catalog.world);
  for (const auto& tensor : catalog.tensors) {
    std::printf("%-40s %s [", ebb::formats::label_of(tensor).c_str(),
                std::string(ebb::formats::name_of(tensor.dtype)).c_str());
    for (const auto size : tensor.shape)
      std::printf(" %llu", static_cast<unsigned long long>(size));
    std::printf(" ] in %zu pieces\n", tensor.chunks.size());
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: inspect_minimal CHECKPOINT\n"), 2;
  const auto done = print_tensors(argv[1]);
  if (!done) std::fprintf(stderr, "%s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
