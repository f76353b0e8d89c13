#include "libmuon/comm/communicator.h"
