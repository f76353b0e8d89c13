#include <array>

#include "formats/hdf5/hdf5.h"

namespace formats {
namespace {

using Says = ResumeRule::Says;
constexpr std::array kRules = {
    ResumeRule{
        Says::no,
        weights_only,
        "no optimizer state is recognised in it: loading it starts a new optimizer, which is "
        "no resume",
        {},
        {}},
    ResumeRule{Says::no,
               always,
               "no framework's optimizer loads HDF5; as DCP the tensors can be loaded",
               "dcp",
               {}},
};

}  // namespace

ResumeRules hdf5_resume() { return {"a training framework", kRules}; }

}  // namespace formats
