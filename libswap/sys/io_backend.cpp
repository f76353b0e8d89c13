#include "libswap/sys/io_backend.h"
