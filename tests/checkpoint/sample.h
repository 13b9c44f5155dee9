/* tests/checkpoint/sample.h - a storage with tables of every kind, its rows as plain arrays, and file systems
 * that fail. */
#pragma once

#include "checkpoint/checkpoint.h"

#include <pthread.h>

enum { SAMPLE_TABLES = 5, SAMPLE_FILES = 256 };

/* Options of a sample storage; {0} is SGD, i64 keys and small tables. */
typedef struct sample {
    hotbed_optimizer_kind optimizer; /* 0: SGD */
    hotbed_key_type key_type;        /* 0: I64 */
    uint64_t rows;                   /* of the first table; 0: 300 */
    uint64_t capacity;               /* of the first table; 0: twice its rows */
    uint64_t seed;
    uint32_t dim;          /* of the first table; 0: 16 */
    uint64_t max_capacity; /* of the first table */
    hotbed_mode mode;      /* 0: the mode that hbm_bytes implies */
    uint64_t hbm_bytes;
    bool narrow_states; /* "item" has bf16 states */
} sample;

/* "user.id" hash f32, "item" hash bf16, "geo-x" static f16, "nothing" hash without rows, "." hash f32 of
 * dim 1. */
hotbed_storage *sample_create(const sample *s, hotbed_stream *stream);

/* Fill with random rows: every bit pattern, and extreme keys. */
void sample_fill(const sample *s, hotbed_storage *storage, hotbed_stream *stream);

/* Fill with rows of a formula: element e of column c of the row of key k in table t is ((k mod 1000) + 10 * t
 * + c) / 8 + e, small enough to be exact in every type; scores are k mod 100000. */
void sample_fill_formula(const sample *s, hotbed_storage *storage, hotbed_stream *stream);

/* Load a checkpoint into one storage, whether or not it fits, and return its step. */
hotbed_status sample_load(
    const char *path, hotbed_storage *storage, const hotbed_checkpoint_load_options *options,
    uint64_t *step, hotbed_stream *stream);

/* The functions of checkpoint/checkpoint.h for one storage. */
hotbed_status sample_write(
    const hotbed_checkpoint_config *config, const char *path, hotbed_storage *storage,
    const hotbed_checkpoint_options *options, hotbed_stream *stream);
hotbed_status sample_save_shard(
    const hotbed_checkpoint_config *config, const char *path, hotbed_checkpoint_id id,
    hotbed_storage *storage, const hotbed_checkpoint_options *options, hotbed_stream *stream);
hotbed_status sample_snapshot_take(
    const hotbed_checkpoint_config *config, hotbed_storage *storage,
    const hotbed_checkpoint_options *options, hotbed_stream *stream,
    hotbed_checkpoint_snapshot **out);
hotbed_status sample_load_with(
    const hotbed_checkpoint_config *config, const char *path, hotbed_storage *storage,
    const hotbed_checkpoint_load_options *options, uint64_t *step, hotbed_stream *stream);

/* Set the options' only blob, "extra", to a text; NULL: none. The options point to static memory of
 * the thread. */
void sample_extra(hotbed_checkpoint_options *options, const char *text);

/* Save a storage filled by sample_fill_formula(), with step 1234 and SAMPLE_EXTRA as blob "extra". */
void sample_save_formula(
    const char *path, const char *optimizer, uint32_t bucket_bits, hotbed_backend backend);

/* Load such a checkpoint and compare its rows with the formula. */
void sample_check_formula(const char *path, const char *optimizer, hotbed_backend backend);

#define SAMPLE_EXTRA "extra bytes of the caller"

/* A table's rows in order of key, in host memory. */
typedef struct sample_image {
    uint64_t rows, weight_bytes, state_bytes[2]; /* bytes of a row */
    uint64_t *keys, *scores;
    uint64_t *times; /* NULL: the table has none */
    unsigned char *weights, *states[2];
} sample_image;

/* Allocate an image with capacity for `rows` rows of a table. */
sample_image sample_new(hotbed_storage *storage, uint32_t table, uint64_t rows);

/* Set the rows of the image in the storage. */
void sample_store(
    hotbed_storage *storage, uint32_t table, const sample_image *image, hotbed_stream *stream);

/* Erase the keys of the image from the storage. */
void sample_erase(
    hotbed_storage *storage, uint32_t table, const sample_image *image, hotbed_stream *stream);

sample_image sample_read(hotbed_storage *storage, uint32_t table, hotbed_stream *stream);
void sample_free(sample_image *image);

/* Both storages have the same rows, byte for byte, and the same state. */
void sample_check_same(hotbed_storage *a, hotbed_storage *b, hotbed_stream *stream);

/* No table has a key. */
void sample_check_empty(hotbed_storage *storage, hotbed_stream *stream);

/* Prefetch a batch of `samples` samples with one key in each feature, in host memory, and cancel it. */
void sample_see(
    hotbed_storage *storage, uint32_t samples, uint64_t num_keys, const uint64_t *keys,
    hotbed_stream *stream);

/* --- system calls that fail ------------------------------------------------------------------- */

typedef enum sample_fault {
    SAMPLE_FAULT_NONE = 0,
    SAMPLE_FAULT_ENOSPC = 1,
    SAMPLE_FAULT_EIO = 2,
    SAMPLE_FAULT_EINTR = 3, /* once; the caller retries where POSIX allows it */
    SAMPLE_FAULT_SHORT = 4, /* from this call on, transfers move half of the bytes */
    SAMPLE_FAULT_DEAD = 5,  /* this call and all later calls do nothing, as after a kill */
    SAMPLE_FAULT_NO_DIRECT_OPEN =
        6, /* the file system has no direct transfers, and refuses them at the open */
    SAMPLE_FAULT_NO_DIRECT = 7, /* or at the first transfer */
    SAMPLE_FAULT_REMOVE =
        8, /* just before this call something else removes the file `removes` from the draft */
} sample_fault;

typedef struct sample_disk {
    hotbed_io_calls calls; /* to pass to the library */
    pthread_mutex_t lock;  /* guards the fields below: transfers come from several threads */
    sample_fault fault;
    uint64_t at; /* number of the call that fails, from 1 */
    uint64_t count;
    const char *removes; /* REMOVE: the name of the file */
    bool removed;        /* whether the file existed */
    uint64_t open_files;
    uint64_t inodes[SAMPLE_FILES]; /* by handle */
    /* Inodes that were written or renamed and not synced since: a power cut may undo the change. */
    uint64_t dirty[SAMPLE_FILES];
    uint64_t num_dirty;
    uint64_t lost_at_rename; /* num_dirty at the last rename, without the parent directory */
    uint64_t bytes_read;
    uint64_t direct_bytes;     /* bytes moved past the kernel's cache, in both directions */
    bool direct[SAMPLE_FILES]; /* by handle */
} sample_disk;

/* Initialise system calls with a fault in call number `at`; *disk must not move. */
void sample_disk_init(sample_disk *disk, sample_fault fault, uint64_t at);

/* A new empty directory, and a path in it; each string is valid until the 64th call after its own. */
const char *sample_directory(void);
const char *sample_path(const char *name);

/* A new stream, and a new directory as above. */
hotbed_stream *sample_stream(hotbed_backend backend);

/* Read a whole file into memory; the caller frees it. */
unsigned char *sample_read_file(const char *path, size_t *bytes);
void sample_write_file(const char *path, const void *data, size_t bytes);

/* The number of names in a directory. */
uint64_t sample_count_names(const char *path);

/* Remove a directory and the files in it. */
void sample_remove(const char *path);
