/* Compiled as C11: what the structs of ebb.h measure, for abi_test.cpp. */
#include "tests/bindings/c/struct_sizes.h"

const struct_size struct_sizes[] = {
    {"ebb_axis", sizeof(ebb_axis)},           {"ebb_buffer", sizeof(ebb_buffer)},
    {"ebb_error", sizeof(ebb_error)},         {"ebb_group", sizeof(ebb_group)},
    {"ebb_layout", sizeof(ebb_layout)},       {"ebb_model", sizeof(ebb_model)},
    {"ebb_on_axis", sizeof(ebb_on_axis)},     {"ebb_param", sizeof(ebb_param)},
    {"ebb_partition", sizeof(ebb_partition)}, {"ebb_plan", sizeof(ebb_plan)},
    {"ebb_save", sizeof(ebb_save)},           {"ebb_saved", sizeof(ebb_saved)},
    {"ebb_setting", sizeof(ebb_setting)},     {"ebb_start", sizeof(ebb_start)},
    {"ebb_step_args", sizeof(ebb_step_args)}, {"ebb_step_result", sizeof(ebb_step_result)},
    {"ebb_swap_config", sizeof(ebb_swap_config)},
    {"ebb_swap_part", sizeof(ebb_swap_part)},
    {"ebb_transport", sizeof(ebb_transport)}, {"ebb_wanted", sizeof(ebb_wanted)},
    {0, 0},
};
