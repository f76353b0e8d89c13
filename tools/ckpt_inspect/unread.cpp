// Tensors that are not read, as every mode shows them.
#include <map>

#include "ebb/formats/core/json_text.h"
#include "tools/ckpt_inspect/modes.h"
#include "tools/cli/text.h"

namespace ebb::tools::inspect {

namespace {

struct Form {
  std::map<std::string_view, std::size_t> states;
  std::size_t tensors = 0;
  const formats::UnreadEntry* first = nullptr;
};

std::map<std::string_view, Form> forms_of(const View& view) {
  std::map<std::string_view, Form> forms;
  for (const formats::UnreadEntry* unread : unread_of(view)) {
    Form& form = forms[unread->what];
    ++form.states[unread->state];
    if (form.tensors++ == 0) form.first = unread;
  }
  return forms;
}

}  // namespace

std::vector<const formats::UnreadEntry*> unread_of(const View& view) {
  std::vector<const formats::UnreadEntry*> unread;
  for (const formats::UnreadEntry& entry : view.catalog().unread)
    if (view.selection.wants(entry)) unread.push_back(&entry);
  return unread;
}

std::string unread_text(const View& view) {
  constexpr std::size_t kForms = 3;
  const auto forms = forms_of(view);
  std::string out;
  std::size_t shown = 0;
  for (const auto& [what, form] : forms) {
    if (shown++ == kForms) {
      out += labelled("", count_text(forms.size() - kForms) + " more forms: --tensors");
      break;
    }
    std::vector<std::string> states;
    for (const auto& [state, count] : form.states)
      states.push_back(compose("{} {}", printable(state, 40), count_text(count)));
    out += labelled("not read", compose("{} ({}): {}", plural(form.tensors, "tensor"),
                                        joined(states), printable(what)));
    if (!form.first->hint.empty()) out += labelled("", printable(form.first->hint));
  }
  return out;
}

std::string unread_line(const View& view) {
  std::vector<std::string> forms;
  for (const auto& [what, form] : forms_of(view))
    forms.push_back(compose("{} not read: {}", plural(form.tensors, "tensor"), printable(what)));
  return joined(forms, "; ");
}

void write_unread(JsonWriter& json, const View& view) {
  json.key("unread").open_list();
  for (const formats::UnreadEntry* unread : unread_of(view))
    json.open_object()
        .put("key", unread->key)
        .put("name", unread->name)
        .put("state", unread->state)
        .put("what", unread->what)
        .put("hint", unread->hint)
        .close_object();
  json.close_list();
}

Result<> check_read(const View& view) {
  const auto& unread = view.catalog().unread;
  if (unread.empty() || !view.catalog().tensors.empty()) return {};
  return Error{Code::unsupported,
               compose("{}: none of its {} is read: {}", view.path, plural(unread.size(), "tensor"),
                       unread.front().what),
               unread.front().hint};
}

}  // namespace ebb::tools::inspect
