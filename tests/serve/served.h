/* tests/serve/served.h - a storage that is published, and what a reader of each cut must answer. */
#pragma once

#include "hotbed/external.h"
#include "hotbed/publish.h"
#include "hotbed/read.h"
#include "hotbed/storage.h"

enum { SERVED_TABLES = 3, SERVED_KEYS = 48, SERVED_DIM_MOST = 16, SERVED_CUTS_MOST = 256 };

/* Keys that a test uses: 0 to 7 and extreme ones. Tables: "hash" f32 that evicts, "half" hash f16
 * with counts as scores, "rows" static bf16. */
extern uint64_t served_keys[SERVED_KEYS];
extern const uint32_t served_dims[SERVED_TABLES];

/* The rows of all keys in one cut, as a reader returns them. */
typedef struct served_cut {
    uint64_t step; /* 0: there is none */
    float rows[SERVED_TABLES][SERVED_KEYS][SERVED_DIM_MOST];
    uint64_t keys[SERVED_TABLES];
} served_cut;

/* Tables whose bit is set in `tracks` record their changes; the log holds 16 keys. */
hotbed_storage *served_create(uint64_t seed, uint32_t tracks, hotbed_stream *stream);

/* Train some keys, set rows, erase keys: what the random numbers say. */
void served_change(hotbed_storage *storage, hotbed_stream *stream);

/* Set *cut to the present rows, in these encodings; NULL: as the tables have them. */
void served_look(
    hotbed_storage *storage, const hotbed_encoding encodings[SERVED_TABLES], uint64_t step,
    served_cut *cut, hotbed_stream *stream);

/* Check that the reader answers exactly the cut. */
void served_check(hotbed_reader *reader, const served_cut *cut);

/* Number of the newest cut's file in a directory; 0: there is none. */
uint64_t served_newest(const char *directory);

/* A storage, the publisher of its cuts in a directory, and a reader of them. */
typedef struct served {
    hotbed_stream *stream;
    hotbed_storage *storage;
    hotbed_external *store; /* NULL without one */
    hotbed_publish_options options;
    hotbed_publisher *publisher;
    hotbed_reader *reader;
    char directory[512];
    served_cut cut; /* the newest */
    uint64_t step;
} served;

/* Create the stream and the storage. The test may set options, then starts the publisher, and opens the reader. */
void served_begin(served *s, hotbed_backend backend);
/* `tracks` as above. `stored`: over an external store; then table "hash" does not evict. */
void served_begin_with(served *s, hotbed_backend backend, uint32_t tracks, bool stored);
void served_start(served *s);

/* Change the storage, and set the cut to its rows at the next step. */
void served_step(served *s);
/* The same, and publish the cut. */
void served_publish(served *s);

/* Path of a file in the directory, until the next call. */
const char *served_file(const served *s, const char *name);

/* Destroy what there is. */
void served_finish(served *s);
