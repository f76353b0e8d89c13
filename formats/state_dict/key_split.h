// A key of a state dict cut where a word stands: an item of its path, or, where an object flattened
// what it saved itself, between dots of the last item. Internal to formats/state_dict.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats {

// A key and its path, where each item begins in the key. Borrows both.
class KeyPath {
 public:
  // A path that does not spell the key, or none, counts as one item.
  KeyPath(std::string_view key, const std::vector<PathItem>& path);

  std::string_view key() const { return key_; }
  std::size_t items() const { return starts_.size(); }
  std::size_t start(std::size_t item) const { return starts_[item]; }
  std::string_view item(std::size_t number) const;
  bool is_number(std::size_t item) const;  // not a word
  // Whether nothing is behind it but positions in lists.
  bool is_last_word(std::size_t item) const;
  // The place of what begins at byte `at` of the key.
  StateDictPlace place_before(std::size_t at) const;

 private:
  std::string_view key_;
  const std::vector<PathItem>* path_;  // nullptr: one item
  std::vector<std::size_t> starts_;
};

struct KeySplit {
  using Keys = StateDictOptimizer::Keys;
  std::size_t word = 0;  // where it begins in the key
  std::size_t rest = 0;  // what is behind it and its dot; the key's size where nothing is
  std::size_t item = 0;  // in which the word stands
  Keys keys = Keys::nested;

  std::string_view at(std::string_view key) const {  // what is before it
    return key.substr(0, word == 0 ? 0 : word - 1);
  }
};

// Every way to cut at `word`, from the front.
std::vector<KeySplit> splits_at(const KeyPath& key, std::string_view word);

}  // namespace ebb::formats
