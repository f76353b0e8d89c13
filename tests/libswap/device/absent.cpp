extern "C" int ebb_absent() { return 1; }
