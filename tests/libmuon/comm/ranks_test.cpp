// What every kind of ranks owes that needs nobody else.
#include "tests/libmuon/comm/kinds.h"
#include "tests/libmuon/comm/ranks_contract.h"

namespace ebb::libmuon {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(InOneSystem, RanksOfAnyKind, Kinds);

}  // namespace
}  // namespace ebb::libmuon
