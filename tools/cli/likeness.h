// Whether a checkpoint that cannot be read is of the same model as another: from what can be read
// of it. Who is told to go on from another checkpoint must not be led to another model.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/core/byte_source.h"

namespace ebb::tools {

class Likeness {
 public:
  // `damaged`: the folder's name and its files. Reads its description, or the beginnings of files.
  Likeness(std::string name, std::shared_ptr<const formats::SourceTree> damaged);

  // By parameters' names and shapes; where no name can be read any more, only checkpoints whose
  // folders differ in a number alone are taken for such of one run.
  bool is_of_one_model(const std::string& name,
                       const std::shared_ptr<const formats::SourceTree>& other) const;

 private:
  using Shapes = std::map<std::string, Shape, std::less<>>;
  static Shapes shapes_of(const Catalog& catalog);
  bool names_are_there(const Shapes& other) const;
  bool files_are_as_large(const formats::SourceTree& other) const;

  std::string name_;
  std::shared_ptr<const formats::SourceTree> damaged_;
  Shapes shapes_;                   // where it can be described
  std::vector<std::string> heads_;  // of its files, where it cannot
};

}  // namespace ebb::tools
