/* tests/checkpoint/ranks.h - storages of many ranks that share tables, filled by a formula of the key. */
#ifndef HOTBED_TESTS_CHECKPOINT_RANKS_H
#define HOTBED_TESTS_CHECKPOINT_RANKS_H

#include "checkpoint/checkpoint.h"

enum { RANKS_MOST = 61, RANKS_TABLES = 3 };

/* "hash": 400 keys, f32, dim 6; "static": `rows` rows, bf16, dim 3; "small": 5 keys, f32, dim 1. */
typedef struct ranks_shape {
    hotbed_optimizer_kind optimizer;
    hotbed_route_kind route; /* of the hash tables */
    uint64_t rows;           /* 0: 90 */
} ranks_shape;

typedef struct ranks {
    uint32_t world;
    hotbed_stream *stream; /* borrowed */
    ranks_shape shape;
    hotbed_route routes[RANKS_TABLES];
    hotbed_storage *storages[RANKS_MOST];
} ranks;

void ranks_create(ranks *r, const ranks_shape *shape, uint32_t world, hotbed_stream *stream);
void ranks_destroy(ranks *r);

/* Each rank gets its rows: those of the formula with `version`. */
void ranks_fill(ranks *r, uint32_t version);

/* Each rank has its rows, and no others. */
void ranks_check(ranks *r, uint32_t version);

/* Options of a save by rank `rank`, step 5. */
hotbed_checkpoint_options ranks_options(const ranks *r, uint32_t rank);

/* Small blocks and few buckets, so that parts have several of both. */
hotbed_checkpoint_config ranks_config(const hotbed_io_calls *calls);

void ranks_save(ranks *r, const char *path);
void ranks_load(ranks *r, const char *path, const hotbed_io_calls *calls);

/* MANIFEST of a checkpoint; free it. */
hotbed_manifest ranks_manifest(const char *path);

#endif
