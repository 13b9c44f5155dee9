/* tests/checkpoint/ranks.h - the storages of several ranks, which share tables filled by a formula of the
 * key. */
#pragma once

#include "checkpoint/checkpoint.h"

#include <pthread.h>

enum { RANKS_MOST = 61, RANKS_TABLES = 3, RANKS_KEYS = 400 };

/* The world sizes that are combined with each other. */
enum { RANKS_WORLDS = 9 };
extern const uint32_t ranks_worlds[RANKS_WORLDS]; /* 1, 2, 3, 4, 5, 7, 8, 16, 61 */

/* "hash": 400 keys, f32, dim 6; "static": `rows` rows, bf16, dim 3; "small": 5 keys, f32, dim 1. */
typedef struct ranks_shape {
    hotbed_optimizer_kind optimizer;
    hotbed_route_kind route;     /* of a static table HASH_ROUND_ROBIN means CONTINUOUS */
    uint64_t rows;               /* 0: 90 */
    hotbed_score_strategy score; /* of table "hash" */
    bool tracks;                 /* tables record their changes, and saves with a mark use them */
    bool stored;                 /* each rank's rows are in an external store */
} ranks_shape;

typedef struct ranks {
    uint32_t world;
    hotbed_stream *stream; /* borrowed */
    hotbed_external *stores[RANKS_MOST];
    ranks_shape shape;
    uint32_t versions[RANKS_TABLES][RANKS_KEYS]; /* version of each key's row; 0: no row */
    hotbed_route routes[RANKS_TABLES];
    hotbed_storage *storages[RANKS_MOST];
    hotbed_checkpoint_mark *marks[RANKS_MOST]; /* NULL without ranks_mark() */
    uint64_t step;                             /* step number of a save; 5 unless set */
    const char *extra;                         /* the caller's bytes of a save, or NULL; borrowed */
} ranks;

void ranks_create(ranks *r, const ranks_shape *shape, uint32_t world, hotbed_stream *stream);
void ranks_destroy(ranks *r);

/* Set the rows of all keys, in version `version`, on the ranks that own them. */
void ranks_fill(ranks *r, uint32_t version);

/* The same for every `step`-th key of each table from `first` on; or erase these keys from the hash tables. */
void ranks_change(ranks *r, uint32_t version, uint32_t first, uint32_t step);
void ranks_erase(ranks *r, uint32_t first, uint32_t step);

/* Set some rows to version 2 and erase some keys. */
void ranks_change_some(ranks *r);

/* Each rank has exactly the rows that `model` was given for it. */
void ranks_check(ranks *r, const ranks *model);
void ranks_check_rank(ranks *r, const ranks *model, uint32_t rank);

/* Options of a save by rank `rank`. */
hotbed_checkpoint_options ranks_options(const ranks *r, uint32_t rank);

/* Small blocks and windows, and few buckets, so that parts have several of each. */
hotbed_checkpoint_config ranks_config(const hotbed_io_calls *calls);

/* The system's calls, without syncs. */
hotbed_io_calls ranks_calls(void);

/* Whether the environment has HOTBED_TEST_WHOLE: run all combinations, which takes minutes, instead of some. */
bool ranks_whole(void);

/* Create marks, so that increments can be saved. */
void ranks_mark(ranks *r);

void ranks_save(ranks *r, const char *path);
void ranks_save_after(ranks *r, const char *path, const char *parent);
void ranks_load(ranks *r, const char *path, const hotbed_io_calls *calls);
void ranks_load_chain(
    ranks *r, const char *path, const char *const *increments, uint32_t n,
    const hotbed_io_calls *calls);

/* Change some rows and erase some keys. */
void ranks_train(ranks *r, uint32_t version);

/* Take a snapshot of rank `rank`, with ranks_config(); parent and arena may be NULL. */
hotbed_checkpoint_snapshot *ranks_take(
    ranks *r, uint32_t rank, const char *parent, hotbed_checkpoint_arena *arena);

/* Write a snapshot, with ranks_config() and ranks_calls(). */
hotbed_status ranks_write(hotbed_checkpoint_snapshot *snapshot, const char *path);

/* Write a snapshot on another thread; joining checks that the write is OK, and destroys the snapshot. */
typedef struct ranks_writer {
    hotbed_checkpoint_snapshot *snapshot;
    const char *path;
    hotbed_status status;
    pthread_t thread;
} ranks_writer;
void ranks_write_begin(ranks_writer *w, hotbed_checkpoint_snapshot *snapshot, const char *path);
void ranks_write_end(ranks_writer *w);

/* The MANIFEST of a checkpoint; free it. */
hotbed_manifest ranks_manifest(const char *path);
