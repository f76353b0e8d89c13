#include "tools/hdf5_reader/walk.h"

#include <array>
#include <map>

#include "ebb/formats/core/units.h"
#include "tools/hdf5_reader/attributes.h"
#include "tools/hdf5_reader/chunks.h"
#include "tools/hdf5_reader/handle.h"
#include "tools/hdf5_reader/types.h"

namespace ebb::hdf5_reader {
namespace {

using formats::hdf5::Dataset;
using formats::hdf5::Description;
using formats::hdf5::Link;
using formats::hdf5::Mapping;
using formats::hdf5::Selection;

constexpr std::size_t kMostLinks = 4'000'000;
constexpr int kMostDepth = 64;
constexpr std::uint64_t kMostCompact = 64 * 1024;
constexpr std::size_t kMostMappings = 1'000'000;

struct FoundLink {
  std::string name;
  H5L_info_t info;
};

// What the library's get functions give: asked once for the length, once for the text.
template <typename Get>
std::string text_from(Get get) {
  const ssize_t length = get(nullptr, 0);
  if (length <= 0) return {};
  std::string text(static_cast<std::size_t>(length), '\0');
  get(text.data(), text.size() + 1);
  return text;
}

Shape numbers(const std::vector<hsize_t>& from) { return {from.begin(), from.end()}; }

Result<Shape> shape_of(hid_t space, const std::string& where) {
  const int dims = H5Sget_simple_extent_ndims(space);
  if (dims < 0) return library_error(where);
  std::vector<hsize_t> extents(static_cast<std::size_t>(dims));
  if (H5Sget_simple_extent_dims(space, extents.data(), nullptr) < 0) return library_error(where);
  return numbers(extents);
}

Selection selection_of(hid_t space) {
  Selection out;
  switch (H5Sget_select_type(space)) {
    case H5S_SEL_ALL:
      return out;
    case H5S_SEL_NONE:
      out.kind = Selection::Kind::none;
      return out;
    case H5S_SEL_HYPERSLABS:
      break;
    default:
      out.kind = Selection::Kind::irregular;
      return out;
  }
  const auto dims = static_cast<std::size_t>(std::max(0, H5Sget_simple_extent_ndims(space)));
  std::vector<hsize_t> start(dims), stride(dims), count(dims), block(dims);
  out.kind = Selection::Kind::irregular;
  if (H5Sis_regular_hyperslab(space) <= 0 ||
      H5Sget_regular_hyperslab(space, start.data(), stride.data(), count.data(), block.data()) < 0)
    return out;
  return {Selection::Kind::blocks, numbers(start), numbers(stride), numbers(count), numbers(block)};
}

class Walker {
 public:
  explicit Walker(Bytes& bytes) : bytes_(bytes) {}

  Result<Description> run(hid_t file) {
    const Handle root(H5Gopen2(file, "/", H5P_DEFAULT), H5Gclose);
    H5O_info_t info{};
    if (!root || H5Oget_info1(root.get(), &info) < 0) return library_error("/");
    groups_.emplace(info.addr, "/");
    EBB_TRY(group(root.get(), "/", 0));
    return std::move(out_);
  }

 private:
  Result<std::vector<FoundLink>> links_of(hid_t group, const std::string& path) {
    unsigned order = 0;
    const Handle plist(H5Gget_create_plist(group), H5Pclose);
    if (!plist || H5Pget_link_creation_order(plist.get(), &order) < 0) return library_error(path);
    std::vector<FoundLink> links;
    hsize_t from = 0;
    const H5_index_t index =
        (order & H5P_CRT_ORDER_TRACKED) != 0 ? H5_INDEX_CRT_ORDER : H5_INDEX_NAME;
    const herr_t done = H5Literate(
        group, index, H5_ITER_INC, &from,
        [](hid_t, const char* name, const H5L_info_t* info, void* out) -> herr_t {
          auto& list = *static_cast<std::vector<FoundLink>*>(out);
          list.push_back({name, *info});
          return list.size() > kMostLinks ? 1 : 0;
        },
        &links);
    if (done < 0) return library_error(path);
    links_ += links.size();
    if (done > 0 || links_ > kMostLinks)
      return Error{Code::limit, compose("{}: more than {} links in the file", path, kMostLinks)};
    return links;
  }

  Result<> group(hid_t id, const std::string& path, int depth) {
    if (depth > kMostDepth)
      return Error{Code::limit,
                   compose("{}: groups are nested more than {} deep", path, kMostDepth)};
    EBB_TRY_ASSIGN(auto attributes, attributes_of(id, path));
    out_.groups.push_back({path, std::move(attributes)});
    EBB_TRY_ASSIGN(const std::vector<FoundLink> links, links_of(id, path));
    for (const FoundLink& link : links)
      EBB_TRY(follow(id, link, (path == "/" ? "" : path) + "/" + link.name, depth));
    return {};
  }

  Result<> follow(hid_t group_id, const FoundLink& link, const std::string& path, int depth) {
    if (link.info.type != H5L_TYPE_HARD) return list_link(group_id, link, path);
    // Not by its name: in a group that lists its links in its header, the library looks at all of
    // them for each.
    const Handle object(H5Oopen_by_addr(group_id, link.info.u.address), H5Oclose);
    if (!object) return library_error(path);
    const H5I_type_t kind = H5Iget_type(object.get());
    if (kind == H5I_DATASET) return dataset(object.get(), path);
    if (kind == H5I_DATATYPE) {
      out_.notes.push_back(path + " is a named data type: not read");
      return {};
    }
    const auto [first, is_new] = groups_.emplace(link.info.u.address, path);
    if (is_new) return group(object.get(), path, depth + 1);
    out_.links.push_back({Link::Kind::group_again, path, first->second, {}});
    return {};
  }

  Result<> list_link(hid_t group_id, const FoundLink& link, const std::string& path) {
    std::vector<char> bytes(link.info.u.val_size + 1);
    if (link.info.u.val_size > kMostCompact ||
        H5Lget_val(group_id, link.name.c_str(), bytes.data(), bytes.size(), H5P_DEFAULT) < 0)
      return library_error(path);
    if (link.info.type == H5L_TYPE_SOFT) {
      out_.links.push_back({Link::Kind::soft, path, bytes.data(), {}});
      return {};
    }
    Link found{Link::Kind::other, path, {}, {}};
    const char *file = nullptr, *target = nullptr;
    unsigned flags = 0;
    if (link.info.type == H5L_TYPE_EXTERNAL &&
        H5Lunpack_elink_val(bytes.data(), link.info.u.val_size, &flags, &file, &target) >= 0)
      found = {Link::Kind::external, path, target, file};
    out_.links.push_back(std::move(found));
    return {};
  }

  Result<> dataset(hid_t id, const std::string& path) {
    Dataset out{.path = path};
    const Handle type(H5Dget_type(id), H5Tclose);
    const Handle space(H5Dget_space(id), H5Sclose);
    const Handle plist(H5Dget_create_plist(id), H5Pclose);
    if (!type || !space || !plist) return library_error(path);
    out.type = element_type_of(type.get());
    out.has_space = H5Sget_simple_extent_type(space.get()) != H5S_NULL;
    EBB_TRY_ASSIGN(out.shape, shape_of(space.get(), path));
    EBB_TRY_ASSIGN(out.attributes, attributes_of(id, path));
    EBB_TRY(storage(id, plist.get(), type.get(), out));
    out_.datasets.push_back(std::move(out));
    return {};
  }

  Result<> storage(hid_t id, hid_t plist, hid_t type, Dataset& out) {
    EBB_TRY(external_files(plist, out));
    EBB_TRY(filters(plist, out));
    const std::optional<std::uint64_t> elements = formats::checked_volume(out.shape);
    out.stored = H5Dget_storage_size(id);
    switch (H5Pget_layout(plist)) {
      case H5D_COMPACT:
        out.layout = Dataset::Layout::compact;
        EBB_TRY(compact(id, type, out));
        break;
      case H5D_CONTIGUOUS:
        out.layout = Dataset::Layout::contiguous;
        if (out.external.empty()) out.address = H5Dget_offset(id);
        H5Eclear2(H5E_DEFAULT);  // a dataset without storage has no offset, which is no error
        break;
      case H5D_CHUNKED:
        out.layout = Dataset::Layout::chunked;
        EBB_TRY(chunked(id, plist, out));
        break;
      case H5D_VIRTUAL:
        out.layout = Dataset::Layout::mapped;
        EBB_TRY(mappings(plist, out));
        break;
      default:
        return library_error(out.path + ": layout");
    }
    // One text is a value; what its storage looks like is the library's business alone.
    if (out.type.kind == formats::hdf5::ElementType::Kind::text && elements == 1u &&
        out.external.empty() && out.layout != Dataset::Layout::mapped) {
      EBB_TRY_ASSIGN(out.text, text_of(id, type, out.path));
    }
    return {};
  }

  Result<> external_files(hid_t plist, Dataset& out) {
    const int count = H5Pget_external_count(plist);
    for (unsigned i = 0; count > 0 && i < static_cast<unsigned>(count); ++i) {
      std::array<char, 4096> name{};
      off_t offset = 0;
      hsize_t size = 0;
      if (H5Pget_external(plist, i, name.size() - 1, name.data(), &offset, &size) < 0)
        return library_error(out.path);
      out.external.push_back({name.data(), size});
    }
    return {};
  }

  Result<> filters(hid_t plist, Dataset& out) {
    const int count = H5Pget_nfilters(plist);
    for (unsigned i = 0; count > 0 && i < static_cast<unsigned>(count); ++i) {
      std::vector<unsigned> settings(256);
      std::size_t used = settings.size();
      unsigned flags = 0, config = 0;
      const H5Z_filter_t id =
          H5Pget_filter2(plist, i, &flags, &used, settings.data(), 0, nullptr, &config);
      if (id < 0) return library_error(out.path);
      settings.resize(std::min(used, settings.size()));
      out.filters.push_back({static_cast<std::uint32_t>(id), {settings.begin(), settings.end()}});
    }
    return {};
  }

  static Result<> compact(hid_t id, hid_t type, Dataset& out) {
    if (out.stored > kMostCompact || out.type.kind == formats::hdf5::ElementType::Kind::text)
      return {};
    out.content.resize(static_cast<std::size_t>(out.stored));
    const auto elements = formats::checked_volume(out.shape);
    if (!elements || formats::checked_mul(*elements, H5Tget_size(type)) != out.stored ||
        H5Dread(id, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, out.content.data()) < 0)
      return library_error(out.path);
    return {};
  }

  Result<> chunked(hid_t id, hid_t plist, Dataset& out) {
    std::vector<hsize_t> extents(out.shape.size());
    const int dims = static_cast<int>(extents.size());
    if (H5Pget_chunk(plist, dims, extents.data()) != dims) return library_error(out.path);
    out.chunk = numbers(extents);
    for (const std::uint64_t extent : out.chunk)
      if (extent == 0) return Error{Code::corrupt, out.path + ": a chunk without elements"};
    if (out.type.kind == formats::hdf5::ElementType::Kind::text) return {};
    return list_chunks(id, bytes_, out);
  }

  static Result<> mappings(hid_t plist, Dataset& out) {
    std::size_t count = 0;
    if (H5Pget_virtual_count(plist, &count) < 0) return library_error(out.path);
    if (count > kMostMappings)
      return Error{Code::limit, compose("{}: {} mappings", out.path, count)};
    for (std::size_t i = 0; i < count; ++i) {
      Mapping mapping;
      mapping.file = text_from([&](char* into, std::size_t size) {
        return H5Pget_virtual_filename(plist, i, into, size);
      });
      mapping.dataset = text_from([&](char* into, std::size_t size) {
        return H5Pget_virtual_dsetname(plist, i, into, size);
      });
      const Handle target(H5Pget_virtual_vspace(plist, i), H5Sclose);
      const Handle source(H5Pget_virtual_srcspace(plist, i), H5Sclose);
      if (!target || !source) return library_error(out.path);
      mapping.target = selection_of(target.get());
      mapping.source = selection_of(source.get());
      out.mappings.push_back(std::move(mapping));
    }
    return {};
  }

  Bytes& bytes_;
  Description out_;
  std::map<haddr_t, std::string> groups_;  // by the address of the object
  std::size_t links_ = 0;
};

}  // namespace

Result<Description> describe_file(hid_t file, Bytes& bytes) { return Walker(bytes).run(file); }

}  // namespace ebb::hdf5_reader
