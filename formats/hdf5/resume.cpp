#include <array>

#include "ebb/formats/hdf5/hdf5.h"

namespace ebb::formats {
namespace {

using Says = ResumeRule::Says;
constexpr std::array kRules = {
    ResumeRule{Says::no, states_without_groups,
               "no framework's optimizer loads HDF5, and the states have no parameter groups "
               "beside them, which loaders ask for in any format"},
    ResumeRule{Says::no,
               always,
               "no framework's optimizer loads HDF5; as DCP the tensors can be loaded",
               "dcp",
               {}},
};

}  // namespace

ResumeRules hdf5_resume() { return {"a training framework", kRules}; }

}  // namespace ebb::formats
