/* tests/storage/test_fault_names.c - the text of a fault has the name of its table.
 *
 * Every storage here has a static table of five rows. An eval of key 7 latches the fault.
 */
#include "hotbed/flat_table.h"
#include "hotbed/storage.h"
#include "tests/support/harness.h"

#include <stdio.h>
#include <string.h>

enum { DIM = 4, STORAGES = 9 };

static const char user[] = "table user: key 7 is not in [0, 5)";
static const char item[] = "table item: key 7 is not in [0, 5)";
static const char either[] = "table number 0 (user or item): key 7 is not in [0, 5)";
static const char unknown[] = "table number 0: key 7 is not in [0, 5)";

/* A stream, and the arrays of evals on it. */
typedef struct place {
    hotbed_stream *stream;
    hotbed_memory key, output;
} place;

static place new_place(hotbed_stream *stream) {
    static const int64_t key = 7;
    place p = {.stream = stream};
    CHECK_OK(hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, sizeof key, NULL, &p.key));
    CHECK_OK(
        hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, DIM * sizeof(float), NULL, &p.output));
    CHECK_OK(hotbed_copy(p.key.data, &key, sizeof key, stream));
    CHECK_OK(hotbed_stream_sync(stream));
    return p;
}

static place open_place(hotbed_backend backend) {
    hotbed_stream *stream = hotbed_test_stream(backend);
    return new_place(stream);
}

static void close_place(place *p) {
    CHECK_OK(hotbed_stream_sync(p->stream));
    hotbed_memory_free(&p->key);
    hotbed_memory_free(&p->output);
    hotbed_stream_destroy(p->stream);
}

/* A storage with a table of this name and, if `second` is not NULL, with a second table. */
static hotbed_storage *open_storage(const place *p, const char *name, const char *second) {
    hotbed_table_options tables[2];
    hotbed_storage_options options;
    hotbed_storage *storage;
    const uint32_t first = 0;
    for (int t = 0; t < 2; t++) {
        tables[t] = (hotbed_table_options){.size = sizeof tables[t]};
        tables[t].name = t == 0 ? name : second;
        tables[t].kind = HOTBED_TABLE_STATIC;
        tables[t].dim = DIM;
        tables[t].capacity = 5;
    }
    hotbed_storage_options_init(&options);
    options.num_tables = second == NULL ? 1 : 2;
    options.tables = tables;
    options.num_features = 1;
    options.feature_tables = &first;
    CHECK_OK(hotbed_storage_create(&options, p->stream, &storage));
    CHECK_OK(hotbed_stream_sync(p->stream));
    return storage;
}

/* Enqueue an eval of key 7 of table 0. */
static void eval(const place *p, hotbed_storage *storage) {
    hotbed_batch batch = {
        .size = sizeof batch, .batch_size = 1, .num_keys = 1, .keys = p->key.data};
    CHECK_OK(hotbed_storage_eval(storage, &batch, p->output.data, 0, p->stream));
}

static void faults_name_their_table(hotbed_backend backend) {
    place p = open_place(backend);
    hotbed_storage *users = open_storage(&p, "user", NULL), *items = open_storage(&p, "item", NULL);
    eval(&p, users);
    CHECK_STATUS(hotbed_stream_sync(p.stream), HOTBED_ERR_RANGE);
    CHECK_STRING(hotbed_last_error(), user);
    eval(&p, items); /* all work on `users` is done */
    CHECK_STATUS(hotbed_stream_sync(p.stream), HOTBED_ERR_RANGE);
    CHECK_STRING(hotbed_last_error(), item);
    hotbed_storage_destroy(users);
    hotbed_storage_destroy(items);
    close_place(&p);
}

/* The kernel stores a number, so both storages may have found the fault. */
static void several_storages_give_several_names(hotbed_backend backend) {
    place p = open_place(backend);
    hotbed_storage *users = open_storage(&p, "user", NULL), *items = open_storage(&p, "item", NULL);
    hotbed_storage *twin = open_storage(&p, "user", "item");
    eval(&p, users);
    eval(&p, items);
    CHECK_STATUS(hotbed_stream_sync(p.stream), HOTBED_ERR_RANGE);
    CHECK_STRING(hotbed_last_error(), either);
    eval(&p, users);
    eval(&p, twin); /* its table 0 has the same name */
    CHECK_STATUS(hotbed_stream_sync(p.stream), HOTBED_ERR_RANGE);
    CHECK_STRING(hotbed_last_error(), user);
    hotbed_storage_destroy(users);
    hotbed_storage_destroy(items);
    hotbed_storage_destroy(twin);
    close_place(&p);
}

/* A poll does not wait, so a storage whose work may still run stays a source; a destroyed one does not. */
static void polls_forget_destroyed_storages(hotbed_backend backend) {
    place p = open_place(backend);
    hotbed_storage *users = open_storage(&p, "user", NULL), *items = open_storage(&p, "item", NULL);
    hotbed_event *event;
    CHECK_OK(hotbed_event_create(p.stream, &event));
    for (int round = 0; round < 3; round++) {
        if (round < 2)
            eval(&p, users);
        else
            hotbed_storage_destroy(users);
        if (round == 2)
            CHECK_OK(hotbed_stream_fault(p.stream));
        if (round > 0)
            eval(&p, items);
        CHECK_OK(hotbed_event_record(event, p.stream));
        CHECK_OK(hotbed_event_sync(event));
        CHECK_STATUS(hotbed_stream_fault(p.stream), HOTBED_ERR_RANGE);
        CHECK_STRING(hotbed_last_error(), round == 0 ? user : round == 1 ? either : item);
    }
    hotbed_event_destroy(event);
    hotbed_storage_destroy(items);
    close_place(&p);
}

static void faults_outlive_their_storage(hotbed_backend backend) {
    place p = open_place(backend);
    hotbed_storage *users = open_storage(&p, "user", NULL);
    hotbed_event *event;
    CHECK_OK(hotbed_event_create(p.stream, &event));
    eval(&p, users);
    CHECK_OK(hotbed_event_record(event, p.stream));
    CHECK_OK(hotbed_event_sync(event));
    hotbed_storage_destroy(users);
    CHECK_STATUS(hotbed_stream_sync(p.stream), HOTBED_ERR_RANGE);
    CHECK_STRING(hotbed_last_error(), user);
    hotbed_event_destroy(event);
    close_place(&p);
}

/* A graph repeats its work after a sync. */
static void faults_of_graphs_name_their_table(hotbed_backend backend) {
    place p = open_place(backend);
    hotbed_storage *users = open_storage(&p, "user", NULL);
    hotbed_graph *graph;
    eval(&p, users); /* allocates */
    CHECK_STATUS(hotbed_stream_sync(p.stream), HOTBED_ERR_RANGE);
    CHECK_OK(hotbed_graph_begin(p.stream));
    eval(&p, users);
    CHECK_OK(hotbed_graph_end(p.stream, &graph));
    for (int launch = 0; launch < 3; launch++) {
        CHECK_OK(hotbed_graph_launch(graph, p.stream));
        CHECK_STATUS(hotbed_stream_sync(p.stream), HOTBED_ERR_RANGE);
        CHECK_STRING(hotbed_last_error(), user);
    }
    hotbed_graph_destroy(graph);
    hotbed_storage_destroy(users);
    close_place(&p);
}

/* An inline stream has done all work when a call returns, so a poll is enough. */
static void polls_of_inline_streams_name_the_table(hotbed_backend backend) {
    hotbed_stream *stream;
    hotbed_stream_options options = {.size = sizeof options};
    if (backend != HOTBED_BACKEND_HOST)
        SKIP("streams on a GPU do not run inline");
    options.backend = backend;
    options.run_inline = true;
    CHECK_OK(hotbed_stream_create_with(&options, &stream));
    place p = new_place(stream);
    hotbed_storage *users = open_storage(&p, "user", NULL), *items = open_storage(&p, "item", NULL);
    for (int round = 0; round < 4; round++) {
        eval(&p, round % 2 == 0 ? users : items);
        CHECK_STATUS(hotbed_stream_fault(stream), HOTBED_ERR_RANGE);
        CHECK_STRING(hotbed_last_error(), round % 2 == 0 ? user : item);
    }
    hotbed_storage_destroy(users);
    hotbed_storage_destroy(items);
    close_place(&p);
}

/* Without a complete list of possible names, the text has the number alone. */
static void unknown_tables_have_numbers(hotbed_backend backend) {
    place p = open_place(backend);
    hotbed_storage *storages[STORAGES];
    char name[16];
    for (int s = 0; s < STORAGES; s++) { /* one more than a stream remembers */
        (void)snprintf(name, sizeof name, "t%d", s);
        storages[s] = open_storage(&p, name, NULL);
    }
    for (int s = 0; s < STORAGES; s++)
        eval(&p, storages[s]);
    CHECK_STATUS(hotbed_stream_sync(p.stream), HOTBED_ERR_RANGE);
    CHECK_STRING(hotbed_last_error(), unknown);
    for (int s = 0; s < STORAGES - 1; s++)
        eval(&p, storages[s]);
    CHECK_STATUS(hotbed_stream_sync(p.stream), HOTBED_ERR_RANGE);
    CHECK_STRING(
        hotbed_last_error(),
        "table number 0 (t0 or t1 or t2 or t3 or t4 or t5 or t6 or t7): key 7 is not in [0, 5)");
    hotbed_flat_table_options options = {.size = sizeof options};
    hotbed_flat_table *flat;
    options.dim = DIM;
    options.capacity = 5;
    CHECK_OK(hotbed_flat_table_create(&options, p.stream, &flat));
    CHECK_OK(hotbed_stream_sync(p.stream));
    eval(&p, storages[0]);
    const hotbed_rows rows = {.weights = p.output.data};
    CHECK_OK(hotbed_flat_table_load(flat, 1, p.key.data, &rows, p.stream));
    CHECK_STATUS(hotbed_stream_sync(p.stream), HOTBED_ERR_RANGE);
    CHECK_STRING(hotbed_last_error(), unknown);
    hotbed_flat_table_destroy(flat);
    for (int s = 0; s < STORAGES; s++)
        hotbed_storage_destroy(storages[s]);
    close_place(&p);
}

const hotbed_test hotbed_tests[] = {
    {TEST(faults_name_their_table)},           {TEST(several_storages_give_several_names)},
    {TEST(polls_forget_destroyed_storages)},   {TEST(faults_outlive_their_storage)},
    {TEST(faults_of_graphs_name_their_table)}, {TEST(polls_of_inline_streams_name_the_table)},
    {TEST(unknown_tables_have_numbers)},       {NULL, NULL},
};
