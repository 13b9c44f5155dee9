/* tests/storage/test_storage_load_large.c - a table holds a million keys at a load of 0.97. */
#include "tests/storage/fill.h"

static void a_large_table_holds_its_capacity(hotbed_backend backend) {
    fill_table(backend, 1000000, key_makers[0], 100000);
    fill_table(backend, 300000, key_makers[1], 300000);
}

const hotbed_test hotbed_tests[] = {
    {TEST(a_large_table_holds_its_capacity)},
    {NULL, NULL},
};
