// Python objects that DeepSpeed's pickles consist of. Internal to formats/deepspeed.
#pragma once

#include <string_view>

#include "ebb/formats/torch/file_writer.h"

namespace ebb::formats::deepspeed {

// `fill` writes the entries: keys and values in turn.
template <typename Fill>
void pickle_dict(PickleWriter& pickle, Fill fill) {
  pickle.empty_dict();
  pickle.mark();
  fill();
  pickle.setitems();
}
template <typename Fill>
void pickle_ordered_dict(PickleWriter& pickle, Fill fill) {
  pickle.global("collections", "OrderedDict");
  pickle.empty_tuple();
  pickle.reduce();
  pickle.mark();
  fill();
  pickle.setitems();
}
template <typename Fill>
void pickle_list(PickleWriter& pickle, Fill fill) {
  pickle.empty_list();
  pickle.mark();
  fill();
  pickle.appends();
}

inline void pickle_entry(PickleWriter& pickle, std::string_view key, std::uint64_t number) {
  pickle.string(key);
  pickle.integer(static_cast<std::int64_t>(number));
}

// An object of a Python class whose attributes `fill` writes.
template <typename Fill>
void pickle_object(PickleWriter& pickle, std::string_view module, std::string_view name,
                   Fill fill) {
  pickle.global(module, name);
  pickle.empty_tuple();
  pickle.newobj();
  pickle_dict(pickle, fill);
  pickle.build();
}

}  // namespace ebb::formats::deepspeed
