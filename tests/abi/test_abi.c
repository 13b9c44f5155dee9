/* tests/abi/test_abi.c - calls from programs that were compiled with older or newer headers.
 *
 * Such a program passes structs whose `size` is smaller or larger than the library's.  Each call is made with every
 * size from the smallest on: the library must read and write only `size` bytes, zero output fields that it does not
 * know, and refuse nonzero input fields that it does not know, and impossible sizes.  Bytes beyond the caller's
 * struct are filled with a pattern, which must stay.
 */
#include "hotbed/hotbed.h"
#include "tests/support/harness.h"

#include <stddef.h>
#include <string.h>

enum { BUFFER_BYTES = 2048, CANARY = 0xa5 };

/* --- the objects whose calls are tested ------------------------------------------------------ */

typedef struct objects {
    hotbed_stream *stream;
    hotbed_storage *storage;
    hotbed_ticket *ticket;
    hotbed_state_dict *dict;
    hotbed_meter *meter;
    hotbed_index *index;
    hotbed_flat_table *flat;
} objects;

static void objects_create(objects *b) {
    hotbed_stream_options stream = {.size = sizeof stream};
    hotbed_table_options table = {.size = sizeof table};
    hotbed_storage_options options;
    hotbed_index_options index;
    hotbed_flat_table_options flat;
    const uint64_t capacity = 100;
    const int64_t key = 7;
    memset(b, 0, sizeof *b);
    stream.backend = HOTBED_BACKEND_HOST;
    stream.run_inline = true;
    CHECK_OK(hotbed_stream_create_with(&stream, &b->stream));
    table.name = "t";
    table.dim = 4;
    table.capacity = capacity;
    table.max_capacity = 2 * capacity;
    hotbed_storage_options_init(&options);
    options.num_tables = 1;
    options.tables = &table;
    options.optimizer.kind = HOTBED_OPT_SGD;
    CHECK_OK(hotbed_storage_create(&options, b->stream, &b->storage));
    CHECK_OK(hotbed_storage_grow(b->storage, 0, 2 * capacity, b->stream));
    CHECK_OK(hotbed_ticket_create(b->storage, 8, 8, b->stream, &b->ticket));
    hotbed_batch batch = {.size = sizeof batch, .batch_size = 1, .num_keys = 1, .keys = &key};
    CHECK_OK(hotbed_storage_prefetch(b->storage, &batch, b->ticket, b->stream));
    CHECK_OK(hotbed_state_dict_create(b->storage, NULL, &b->dict));
    CHECK_OK(hotbed_meter_create(b->storage, b->stream, &b->meter));
    index = (hotbed_index_options){.size = sizeof index, .num_tables = 1, .capacities = &capacity};
    CHECK_OK(hotbed_index_create(&index, b->stream, &b->index));
    flat = (hotbed_flat_table_options){.size = sizeof flat, .dim = 4, .capacity = 8};
    CHECK_OK(hotbed_flat_table_create(&flat, b->stream, &b->flat));
}

static void objects_destroy(objects *b) {
    hotbed_flat_table_destroy(b->flat);
    hotbed_index_destroy(b->index);
    hotbed_meter_destroy(b->meter);
    hotbed_state_dict_destroy(b->dict);
    hotbed_ticket_destroy(b->ticket);
    hotbed_storage_destroy(b->storage);
    hotbed_stream_destroy(b->stream);
}

/* --- outputs --------------------------------------------------------------------------------- */

static hotbed_status get_info(const objects *b, void *out) {
    return hotbed_storage_table(b->storage, 0, out);
}

static hotbed_status get_stats(const objects *b, void *out) {
    return hotbed_storage_stats(b->storage, 0, out, b->stream);
}

static hotbed_status get_state(const objects *b, void *out) {
    return hotbed_storage_get_state(b->storage, out, b->stream);
}

static hotbed_status get_ticket(const objects *b, void *out) {
    return hotbed_ticket_read(b->ticket, out);
}

static hotbed_status get_segment(const objects *b, void *out) {
    return hotbed_storage_segment(b->storage, 0, 0, out);
}

static hotbed_status get_tensor(const objects *b, void *out) {
    return hotbed_state_dict_tensor(b->dict, 0, out);
}

static hotbed_status get_reading(const objects *b, void *out) {
    return hotbed_meter_read(b->meter, 0, out, NULL, NULL);
}

static hotbed_status get_total(const objects *b, void *out) {
    hotbed_reading reading = {.size = sizeof reading};
    return hotbed_meter_read(b->meter, 0, &reading, out, NULL);
}

static hotbed_status get_index(const objects *b, void *out) {
    return hotbed_index_table(b->index, 0, out);
}

static hotbed_status get_flat(const objects *b, void *out) {
    return hotbed_flat_table_read(b->flat, out);
}

static hotbed_status get_counters(const objects *b, void *out) {
    return hotbed_counters_read(out);
}

/* Call `get` for a caller whose struct has `size` bytes. */
static hotbed_status ask(
    const objects *b, hotbed_status (*get)(const objects *b, void *out), uint32_t size,
    unsigned char buffer[BUFFER_BYTES]) {
    memset(buffer, CANARY, BUFFER_BYTES);
    memcpy(buffer, &size, sizeof size);
    return get(b, buffer);
}

static bool is_filled(const unsigned char *from, size_t n, unsigned char value) {
    for (size_t i = 0; i < n; i++)
        if (from[i] != value)
            return false;
    return true;
}

static void outputs_fit_older_and_newer_callers(hotbed_backend backend) {
/* Bytes up to the end of a struct's last field.  Padding after it may have any value. */
#define END(type, last) (offsetof(type, last) + sizeof((type *)0)->last)
    static const struct {
        const char *name;
        hotbed_status (*get)(const objects *b, void *out);
        size_t end;
    } outputs[] = {
        {"hotbed_table_info", get_info, END(hotbed_table_info, state_dtypes)},
        {"hotbed_table_stats", get_stats, END(hotbed_table_stats, expired)},
        {"hotbed_storage_state", get_state, END(hotbed_storage_state, time)},
        {"hotbed_ticket_view", get_ticket, END(hotbed_ticket_view, counts)},
        {"hotbed_segment_info", get_segment, END(hotbed_segment_info, weights)},
        {"hotbed_state_tensor", get_tensor, END(hotbed_state_tensor, pieces)},
        {"hotbed_reading", get_reading, END(hotbed_reading, step_prefetches)},
        {"hotbed_table_stats", get_total, END(hotbed_table_stats, expired)},
        {"hotbed_index_info", get_index, END(hotbed_index_info, evict)},
        {"hotbed_flat_table_view", get_flat, END(hotbed_flat_table_view, state_dtypes)},
        {"hotbed_counters", get_counters,
         4}, /* the counters change between calls; compare only `size` */
    };
#undef END
    static const uint32_t impossible[] = {0, 4, 7, 10, 1025, 1028, 0xa5a5a5a5, UINT32_MAX};
    static _Alignas(16) unsigned char buffer[BUFFER_BYTES], whole[BUFFER_BYTES];
    objects b;
    objects_create(&b);
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) {
        const uint32_t known = (uint32_t)hotbed_struct_bytes(outputs[i].name);
        const size_t end = outputs[i].end;
        CHECK(known > 8 && known < 1024);
        CHECK(outputs[i].get == get_counters || (end <= known && known < end + 8));
        CHECK_OK(ask(&b, outputs[i].get, known, whole));
        CHECK(is_filled(whole + known, BUFFER_BYTES - known, CANARY));
        for (uint32_t size = 8; size < known; size += 4) { /* older callers */
            CHECK_OK(ask(&b, outputs[i].get, size, buffer));
            CHECK_BYTES(buffer + 4, whole + 4, (size < end ? size : end) - 4);
            CHECK(is_filled(buffer + size, BUFFER_BYTES - size, CANARY));
        }
        CHECK_OK(ask(&b, outputs[i].get, known + 24, buffer)); /* a newer caller */
        CHECK_BYTES(buffer + 4, whole + 4, end - 4);
        CHECK(is_filled(buffer + known, 24, 0));
        CHECK(is_filled(buffer + known + 24, BUFFER_BYTES - known - 24, CANARY));
        for (size_t j = 0; j < sizeof impossible / sizeof *impossible; j++) {
            CHECK_STATUS(ask(&b, outputs[i].get, impossible[j], buffer), HOTBED_ERR_ARGUMENT);
            CHECK(is_filled(buffer + 4, BUFFER_BYTES - 4, CANARY));
            CHECK(strstr(hotbed_last_error(), outputs[i].name) != NULL);
        }
        if (outputs[i].get != get_total) /* its output may be NULL */
            CHECK_STATUS(outputs[i].get(&b, NULL), HOTBED_ERR_ARGUMENT);
    }
    objects_destroy(&b);
}

/* --- inputs ---------------------------------------------------------------------------------- */

static hotbed_status use_stream_options(const objects *b, const void *from) {
    hotbed_stream *stream = NULL;
    hotbed_status status = hotbed_stream_create_with(from, &stream);
    hotbed_stream_destroy(stream);
    return status;
}

static hotbed_status use_storage_options(const objects *b, const void *from) {
    hotbed_storage *storage = NULL;
    hotbed_status status = hotbed_storage_create(from, b->stream, &storage);
    hotbed_storage_destroy(storage);
    return status;
}

static hotbed_status use_table_options(const objects *b, const void *from) {
    hotbed_storage_options options;
    hotbed_storage_options_init(&options);
    options.num_tables = 1;
    options.tables = from;
    return use_storage_options(b, &options);
}

static hotbed_status use_batch(const objects *b, const void *from) {
    return hotbed_storage_prefetch(b->storage, from, b->ticket, b->stream);
}

static hotbed_status use_kjt(const objects *b, const void *from) {
    return hotbed_kjt_check(from);
}

static hotbed_status use_state(const objects *b, const void *from) {
    return hotbed_storage_set_state(b->storage, from, b->stream);
}

static void inputs_of_older_and_newer_callers_are_read(hotbed_backend backend) {
    static const int64_t key = 7;
    hotbed_stream_options stream = {.size = sizeof stream};
    hotbed_table_options table = {.size = sizeof table};
    hotbed_storage_options storage;
    hotbed_batch batch = {.size = sizeof batch, .batch_size = 1, .num_keys = 1, .keys = &key};
    hotbed_kjt kjt = {.size = sizeof kjt};
    hotbed_storage_state state = {.size = sizeof state};
    stream.backend = HOTBED_BACKEND_HOST;
    table.name = "t";
    table.dim = 4;
    table.capacity = 10;
    hotbed_storage_options_init(&storage);
    storage.num_tables = 1;
    storage.tables = &table;
    kjt.num_features = kjt.batch_size = 1;
    kjt.num_keys = 1;
    kjt.keys = &key;
    const struct {
        const char *name;
        const void *from;
        size_t least; /* smallest size, of the oldest caller */
        hotbed_status (*use)(const objects *b, const void *from);
    } inputs[] = {
        {"hotbed_stream_options", &stream, 8, use_stream_options},
        {"hotbed_table_options", &table, 24, use_table_options},
        {"hotbed_storage_options", &storage, 16, use_storage_options},
        {"hotbed_batch", &batch, offsetof(hotbed_batch, weights), use_batch},
        {"hotbed_kjt", &kjt, offsetof(hotbed_kjt, weights), use_kjt},
        {"hotbed_storage_state", &state, 44, use_state},
    };
    static const uint32_t impossible[] = {0, 4, 1026, 1028, 0xa5a5a5a5, UINT32_MAX};
    static _Alignas(16) unsigned char buffer[BUFFER_BYTES];
    objects b;
    objects_create(&b);
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        const uint32_t known = (uint32_t)hotbed_struct_bytes(inputs[i].name);
        for (uint32_t size = (uint32_t)inputs[i].least; size <= known + 24; size += 4) {
            if (strcmp(inputs[i].name, "hotbed_storage_options") == 0 && size < known &&
                size > offsetof(hotbed_storage_options, optimizer))
                continue; /* such a size would cut the optimizer, a frozen struct, in half */
            memset(buffer, CANARY, BUFFER_BYTES);
            memset(buffer, 0, known + 24);
            memcpy(buffer, inputs[i].from, known);
            memset(
                buffer + (size < known ? size : known), 0,
                known + 24 - (size < known ? size : known));
            if (size < known)
                memset(buffer + size, CANARY, known + 24 - size);
            memcpy(buffer, &size, sizeof size);
            CHECK_OK(inputs[i].use(&b, buffer));
            if (size > known) { /* a field that only the newer caller knows */
                buffer[size - 1] = 1;
                CHECK_STATUS(inputs[i].use(&b, buffer), HOTBED_ERR_ARGUMENT);
            }
        }
        for (size_t j = 0; j < sizeof impossible / sizeof *impossible; j++) {
            memcpy(buffer, &impossible[j], sizeof impossible[j]);
            CHECK_STATUS(inputs[i].use(&b, buffer), HOTBED_ERR_ARGUMENT);
            CHECK(strstr(hotbed_last_error(), inputs[i].name) != NULL);
        }
    }
    objects_destroy(&b);
}

static void reserved_words_must_be_zero(hotbed_backend backend) {
    objects b;
    hotbed_table_options table = {.size = sizeof table};
    hotbed_storage_options options;
    objects_create(&b);
    table.name = "t";
    table.dim = 4;
    table.capacity = 10;
    hotbed_storage_options_init(&options);
    options.num_tables = 1;
    options.tables = &table;
    options.optimizer.kind = HOTBED_OPT_SGD;
    options.optimizer.reserved[6] = 1;
    CHECK_STATUS(use_storage_options(&b, &options), HOTBED_ERR_ARGUMENT);
    CHECK(strstr(hotbed_last_error(), "reserved[6]") != NULL);
    objects_destroy(&b);
}

/* --- hotbed_struct_bytes(), init functions --------------------------------------------------- */

static void struct_bytes_returns_the_size_of_a_named_struct(hotbed_backend backend) {
    CHECK_EQ(hotbed_struct_bytes("hotbed_batch"), sizeof(hotbed_batch));
    CHECK_EQ(hotbed_struct_bytes("hotbed_optimizer"), 128);
    CHECK_EQ(hotbed_struct_bytes("hotbed_stream"), 0); /* opaque */
    CHECK_EQ(hotbed_struct_bytes(""), 0);
    CHECK_EQ(hotbed_struct_bytes(NULL), 0);
}

static void init_writes_only_the_callers_bytes(hotbed_backend backend) {
    unsigned char buffer[BUFFER_BYTES];
    hotbed_storage_options *options = (hotbed_storage_options *)(void *)buffer;
    memset(buffer, CANARY, sizeof buffer);
    hotbed_storage_options_init_sized(options, 16); /* an older caller */
    CHECK_EQ(options->size, 16);
    CHECK(is_filled(buffer + 4, 12, 0));
    CHECK(is_filled(buffer + 16, BUFFER_BYTES - 16, CANARY));
    hotbed_storage_options_init_sized(options, sizeof *options + 64);
    CHECK_EQ(options->size, sizeof *options + 64);
    CHECK(options->optimizer.size == sizeof options->optimizer && options->optimizer.beta1 == 0.9F);
    CHECK(is_filled(buffer + sizeof *options, 64, 0));
    CHECK(is_filled(buffer + sizeof *options + 64, BUFFER_BYTES - sizeof *options - 64, CANARY));
}

const hotbed_test hotbed_tests[] = {
    {TEST(outputs_fit_older_and_newer_callers)},
    {TEST(inputs_of_older_and_newer_callers_are_read)},
    {TEST(reserved_words_must_be_zero)},
    {TEST(struct_bytes_returns_the_size_of_a_named_struct)},
    {TEST(init_writes_only_the_callers_bytes)},
    {NULL, NULL},
};
