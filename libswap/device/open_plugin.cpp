#include "ebb/libswap/device/open_plugin.h"

namespace ebb::libswap {

OpenPlugin::~OpenPlugin() {
  if (device != nullptr) tables->device->close(device);
}

Result<> OpenPlugin::checked(PluginAnswer answer, const PluginWhy& why) {
  if (answer == PluginAnswer::done) return {};
  const MutexLock lock(mutex);
  if (!failure)
    failure = Error{Code::io, compose("{}: {}", name, why.text),
                    "what it computed since the last snapshot is lost: start again from there"};
  return *failure;
}

Result<> OpenPlugin::status() const {
  const MutexLock lock(mutex);
  if (failure) return *failure;
  return {};
}

Result<> check_table(const std::string& plugin, const char* table, const TableHead* found,
                     const TableHead& wanted) {
  if (found == nullptr)
    return Error{Code::unsupported, compose("{} has no table of {}", plugin, table)};
  if (found->version == wanted.version && found->size == wanted.size) return {};
  return Error{Code::unsupported,
               compose("{}: its table of {} has version {} and {} bytes, here it has version {} "
                       "and {} bytes",
                       plugin, table, found->version, found->size, wanted.version, wanted.size),
               "use the plugin that was built with this program"};
}

Result<PluginHandle> open_plugin(const std::string& plugin, std::int32_t index) {
  auto library = SharedLibrary::open(plugin);
  if (!library)
    return Error{library.error().code,
                 compose("cannot load the plugin {}: {}", plugin, library.error().message),
                 "LD_LIBRARY_PATH names folders of libraries that a plugin needs"};
  auto opened = std::make_shared<OpenPlugin>();
  opened->library = *std::move(library);
  opened->name = plugin;
  const auto entry = reinterpret_cast<PluginEntry>(opened->library.symbol(kPluginEntry));
  if (entry == nullptr)
    return Error{Code::unsupported,
                 compose("{} is no plugin: it has no function {}", plugin, kPluginEntry),
                 "ebb-cuda.so is one: ./dev build cuda makes it"};
  opened->tables = entry();
  EBB_TRY(
      check_table(plugin, "tables", &opened->tables->head, {sizeof(PluginTables), kPluginVersion}));
  EBB_TRY(check_table(plugin, "the device", &opened->tables->device->head,
                      {sizeof(DeviceTable), kDeviceTableVersion}));
  PluginWhy why;
  const PluginAnswer answer = opened->tables->device->open(index, &opened->device, &why);
  if (answer == PluginAnswer::unavailable)
    return Error{Code::unsupported, compose("{}: {}", plugin, why.text),
                 "nvidia-smi says which devices there are; without one, compute on the host"};
  EBB_TRY(opened->checked(answer, why));
  return opened;
}

}  // namespace ebb::libswap
