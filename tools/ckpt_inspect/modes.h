// What ckpt-inspect can show of a checkpoint: one function per mode. Text goes to people, JSON
// (schema "ckpt.inspect/1", fields only ever added) to programs.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "tools/cli/arguments.h"
#include "tools/cli/console.h"
#include "tools/cli/json.h"
#include "tools/cli/rows_text.h"
#include "tools/cli/selection.h"

namespace ebb::tools::inspect {

enum class Output : std::uint8_t { text, json };
enum class Digest : std::uint8_t { none, sha256 };

struct View {
  std::string path;  // as the user gave it
  const Checkpoint& checkpoint;
  std::vector<const TensorEntry*> tensors;  // selected, in natural order
  Selection selection;
  Output output = Output::text;
  std::optional<std::uint64_t> limit;  // lines of a list

  const Catalog& catalog() const { return checkpoint.catalog(); }
};

// Where a checkpoint cannot be described: the reason, for the modes that make an answer of it.
struct Unreadable {
  std::string path;
  Error error;
  Output output = Output::text;
};

Result<Exit> show_summary(Console& console, const View& view);
Result<Exit> show_tensors(Console& console, const View& view, Digest digest);
Result<Exit> show_shards(Console& console, const View& view);
Result<Exit> show_groups(Console& console, const View& view);
// Proves coverage and reads every element of the selected tensors, so that whatever checksum the
// format has is verified. Exit::different when something is wrong.
Result<Exit> verify(Console& console, const View& view);
// With JSON only: the document that says so; the message is the caller's.
void verify_unreadable(Console& console, const Unreadable& what);
// `picture_file`: as a page of HTML instead of lines.
Result<Exit> show_statistics(Console& console, const View& view,
                             const std::optional<std::string>& picture_file);
// Tensors are matched by name and state, or by key where that is not unique.
Result<Exit> show_difference(Console& console, const View& view, const View& other);
// Exit::different when the framework could not resume it on that many ranks.
Result<Exit> explain_resume(Console& console, const View& view, std::uint32_t world);
Result<Exit> explain_unreadable(Console& console, const Unreadable& what, std::uint32_t world);
Result<std::uint32_t> world_of(const Arguments& arguments);  // of --explain-resume
struct RawRequest {
  std::string path;
  std::shared_ptr<const formats::SourceTree> tree;
  std::vector<std::string> files;  // globs; none: all
  Output output = Output::text;
  std::optional<std::uint64_t> limit;  // lines of each file
};
Result<Exit> show_raw(Console& console, const RawRequest& request);
// One self-contained HTML page; written whole or not at all.
Result<Exit> write_map(Console& console, const View& view, const std::string& file);

// Tensors in forms that are not read (Catalog::unread), as far as they are selected.
std::vector<const formats::UnreadEntry*> unread_of(const View& view);
// "not read  16 tensors (exp_avg 8, exp_avg_sq 8): torchao's 8-bit state": a line for each form.
std::string unread_text(const View& view);
// The same in one line, without states.
std::string unread_line(const View& view);
void write_unread(JsonWriter& json, const View& view);  // a list, under "unread"
// Where not one tensor is read.
Result<> check_read(const View& view);

// Shared by the modes.
void open_document(JsonWriter& json, std::string_view mode);
// Opens an object and says in it which tensor it is of, in the same words in every mode.
void write_identity(JsonWriter& json, const TensorEntry& tensor);
// The same as cells: name, state, dtype, shape.
std::vector<std::string> identity_cells(const TensorEntry& tensor);
// "  label     text\n": a line of a screen about one thing.
std::string labelled(std::string_view label, std::string_view text);
std::string value_text(const Value& value);  // short, for people
// The chunks of `rank` in one cell: "-", rows, "el 0-18" for a run of elements, or "3 boxes".
std::string held_text(const TensorEntry& tensor, Rank rank);
// "  ... 7 more\n"; "" where all are shown.
std::string left_out(std::size_t shown, std::size_t total);
// How many of `total` lines to show.
std::size_t shown_of(const View& view, std::size_t total, std::size_t otherwise);

}  // namespace ebb::tools::inspect
