// Libraries that are no plugin of this program's: one line says why, each time.
#include <gtest/gtest.h>

#include "ebb/libswap/device/plugin_device.h"

namespace ebb::libswap {
namespace {

std::string of(const std::string& name) {
  return std::string(EBB_STRANGE_PLUGINS) + "/" + name + ".so";
}

Error refused(const std::string& plugin) {
  const auto device = PluginDevice::open(plugin, 0);
  return device ? Error{} : device.error();
}

TEST(Plugin, ThatIsMissingOrNeedsWhatIsMissingIsNamedByTheLoader) {
  const Error missing = refused(of("no-plugin"));
  EXPECT_EQ(missing.code, Code::io);
  EXPECT_EQ(missing.message, "cannot load the plugin " + of("no-plugin") + ": " + of("no-plugin") +
                                 ": cannot open shared object file: No such file or directory");
  const Error needy = refused(of("needy-plugin"));
  EXPECT_EQ(needy.code, Code::io);
  EXPECT_EQ(needy.message, "cannot load the plugin " + of("needy-plugin") +
                               ": libebb-absent.so: cannot open shared object file: No such file "
                               "or directory");
  EXPECT_NE(needy.hint.find("LD_LIBRARY_PATH"), std::string::npos);
}

TEST(Plugin, OfAnotherVersionOrSizeIsRefusedWithBoth) {
  const Error newer = refused(of("newer-plugin"));
  EXPECT_EQ(newer.code, Code::unsupported);
  EXPECT_EQ(newer.message, of("newer-plugin") +
                               ": its table of tables has version 9 and 40 bytes, here it has "
                               "version 1 and 40 bytes");
  const Error smaller = refused(of("smaller-plugin"));
  EXPECT_EQ(smaller.code, Code::unsupported);
  EXPECT_EQ(smaller.message,
            compose("{}: its table of the device has version 1 and 8 bytes, here it has version 1 "
                    "and {} bytes",
                    of("smaller-plugin"), sizeof(DeviceTable)));
  EXPECT_NE(smaller.hint, "");
}

TEST(Plugin, WithoutTheFunctionIsNone) {
  const Error none = refused("libc.so.6");
  EXPECT_EQ(none.code, Code::unsupported);
  EXPECT_EQ(none.message, "libc.so.6 is no plugin: it has no function ebb_plugin");
}

}  // namespace
}  // namespace ebb::libswap
