/* tests/checkpoint/model.h - a model of several storages on several ranks, and two blobs. */
#pragma once

#include "checkpoint/checkpoint.h"
#include "hotbed/stream.h"

enum { MODEL_TABLES = 5, MODEL_STORAGES = 3, MODEL_WORLD = 5 };

/* Tables "users" and "tags" are HASH, "items" and "places" STATIC, "words" HASH. {0}: sums of users and items,
 * means of tags, sequences of words and places. */
typedef struct model_shape {
    bool regrouped; /* other storages, in another order, with other poolings */
    uint32_t shift; /* each table has the dtype that is so many further */
    /* bit t: table t has bf16 states: here, and in the model that was saved */
    uint32_t narrow, saved_narrow;
    bool thirds;                     /* states are not exact in bf16 */
    int more[MODEL_TABLES];          /* rows more than usual of a STATIC table */
    uint32_t dim[MODEL_TABLES];      /* 0: the usual dim */
    const char *names[MODEL_TABLES]; /* NULL: the usual name */
    uint64_t capacity;               /* of users, which then evicts; 0: enough for all keys */
} model_shape;

typedef struct model {
    model_shape shape;
    uint32_t world;
    hotbed_stream *stream;
    hotbed_storage *storages[MODEL_WORLD][MODEL_STORAGES];
    hotbed_checkpoint_mark *marks[MODEL_WORLD];
    hotbed_route routes[MODEL_TABLES]; /* in the order of the storages */
    uint32_t version;                  /* of all rows; 0: none were set */
} model;

/* Create the storages and an empty mark for each rank. */
void model_create(model *m, const model_shape *shape, uint32_t world, hotbed_stream *stream);
void model_destroy(model *m);

/* Set all rows, except of users that do not fit, to the values of a version, 1 to 3; `some`: every third row
 * only. */
void model_fill(model *m, uint32_t version, bool some);

/* Check that a table has the rows of a version, and of `later` (0: none) where model_fill() set some, up to as
 * many rows as a STATIC table was saved with. */
void model_check_table(model *m, uint32_t table, uint32_t version, uint32_t later);
void model_check(model *m, uint32_t version, uint32_t later);

hotbed_checkpoint_options model_options(model *m, uint32_t rank);

/* Save all ranks one after the other, up to the first failure. `parent`: NULL, a full checkpoint. */
hotbed_status model_save(
    model *m, const char *path, const char *parent, const hotbed_io_calls *calls);

/* Load all ranks, each alone; report is of the last rank. */
hotbed_status model_load(
    model *m, const char *path, const char *increment, hotbed_checkpoint_report *report);

/* Check the blobs of a checkpoint. */
void model_check_blobs(const char *path);

/* Return the place of a table in the reports of a model, or fail. */
const hotbed_checkpoint_table *model_find(const hotbed_checkpoint_report *report, const char *name);
