
#include "ebb/formats/native/ebb.h"

namespace ebb::formats {
namespace {

constexpr ResumeRule kRules[] = {
    {ResumeRule::Says::yes, always,
     "the engine takes over a store of {saved} on any number of ranks, with the same bits"},
};

}  // namespace

ResumeRules ebb_resume() { return {"Ebb's engine", kRules}; }

}  // namespace ebb::formats
