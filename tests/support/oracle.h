/* tests/support/oracle.h - a plain model of a storage, to which tests compare the library.
 *
 * The model is written from the headers in include/hotbed/ and shares no code with the library.  Rows are arrays of
 * floats in a chained hash map, one key is processed at a time, and all calls are synchronous and on host memory.
 *
 * Where the headers leave a choice to the library, the model follows it.  Its tables have no capacity: a test passes
 * the ticket's slots to oracle_prefetch(), which tell it the refused and the randomly admitted keys, and reports
 * evicted keys to oracle_evict().  A time of the model is the number of a prefetch; it orders keys as the library's
 * times do.
 */
#pragma once

#include "hotbed/storage.h"

/* Write the initial values of n rows to weights [n, dim], which have the table's dtype. */
typedef void (*oracle_initial)(
    void *self, uint32_t table, uint64_t n, const uint64_t *keys, void *weights);

typedef struct oracle_row {
    uint64_t key;
    uint64_t score; /* 0 in TIMESTAMP tables */
    /* TIMESTAMP, TIMESTAMP_LFU: number of the last prefetch of the key, or a time that the test has set */
    uint64_t time;
    float *weights;   /* [dim], each a value of the table's dtype */
    uint8_t *stored;  /* types with scales: the row that has these values; else NULL */
    float *states[2]; /* [state_dim], each a value of the table's state_dtype */
    uint32_t pins;
    bool set_time; /* `time` is a time of the library, set by key */
    uint32_t next; /* next row of the hash chain, or of the list of free rows */
    bool live;
} oracle_row;

typedef struct oracle_counted {
    uint64_t key, count;
} oracle_counted;

typedef struct oracle_table {
    hotbed_table_options options;
    hotbed_optimizer optimizer; /* the table's own, or the storage's */
    uint32_t state_dim[2];
    hotbed_dtype state_dtype[2];
    uint64_t state_bytes[2]; /* 0: the optimizer does not have the state */
    uint32_t name_hash;
    oracle_row *rows; /* [num_rows] live or free */
    uint32_t num_rows;
    uint32_t max_rows; /* that fit into `rows` */
    uint32_t free_rows;
    uint32_t *heads; /* [num_heads] */
    uint32_t num_heads;
    uint64_t size; /* live rows */
    uint64_t custom_score;
    oracle_counted *counted; /* [num_counted] keys that admission counts */
    uint32_t num_counted;
    hotbed_table_stats stats;
} oracle_table;

typedef struct oracle {
    hotbed_storage_options options;
    uint32_t num_tables;
    uint32_t num_features;
    oracle_table *tables;
    uint32_t *feature_tables;
    uint64_t *columns; /* [num_features + 1] */
    uint32_t max_dim;
    hotbed_storage_state state;
    uint64_t time; /* of the last prefetch */
    /* The library orders distinct keys by row and counts keys without a row as one: all its tables are static and have
     * no index.  Set by the caller. */
    bool by_row;
    oracle_initial initial;
    void *self;
} oracle;

/* A batch in the model, which owns copies of all arrays. */
typedef struct oracle_ticket {
    oracle *model;
    hotbed_batch batch;
    int64_t *offsets;         /* never NULL, unlike the batch's */
    uint64_t num_keys;        /* the last offset */
    uint32_t *bags;           /* [num_keys] bag of each key */
    uint32_t *unique_offsets; /* [num_tables + 1] */
    uint64_t *unique_keys;
    uint64_t *counts;      /* [uniques] occurrences, weighted by batch.counts */
    uint32_t *occurrences; /* [uniques] positions of the batch with the key */
    uint32_t *inverse;     /* [num_keys] */
    uint32_t *rows;        /* [uniques] row in its table; UINT32_MAX if refused or rejected */
    float **initials;      /* [uniques] initial values of a key without a row, else NULL */
    bool held;
} oracle_ticket;

oracle *oracle_create(const hotbed_storage_options *options, oracle_initial initial, void *self);
void oracle_destroy(oracle *model);

/* The row of a key, or NULL. */
oracle_row *oracle_find(oracle *model, uint32_t table, uint64_t key);
/* The row of a key.  A new row has initial values and score 0. */
oracle_row *oracle_put(oracle *model, uint32_t table, uint64_t key);
bool oracle_erase(oracle *model, uint32_t table, uint64_t key); /* false: absent or pinned */
/* the same, counted as an eviction */
bool oracle_evict(oracle *model, uint32_t table, uint64_t key);
void oracle_clear(oracle *model, uint32_t table);
/* The occurrences of a key without a row, as counted by admission.  NULL if it has counted none. */
uint64_t *oracle_count(oracle *model, uint32_t table, uint64_t key);
void oracle_set_count(oracle *model, uint32_t table, uint64_t key, uint64_t count);
void oracle_forget_count(oracle *model, uint32_t table, uint64_t key);
uint64_t oracle_pinned(const oracle *model, uint32_t table);

oracle_ticket *oracle_ticket_create(oracle *model);
void oracle_ticket_destroy(oracle_ticket *ticket);

/* The batch's arrays are host memory and are copied.  `slots` [uniques] are the slots that the library gave to the
 * distinct keys: the model refuses keys with HOTBED_SLOT_NONE, too.  NULL: the library accepted every key. */
void oracle_prefetch(
    oracle *model, const hotbed_batch *batch, oracle_ticket *ticket, const uint64_t *slots);
void oracle_forward(const oracle_ticket *ticket, void *output, uint64_t stride);
/* sums: [uniques, largest dim]; set, or added to if `add` */
void oracle_reduce(
    const oracle_ticket *ticket, const void *gradient, uint64_t stride, bool add, float *sums);
void oracle_apply(oracle_ticket *ticket, const float *sums);
void oracle_backward(oracle_ticket *ticket, const void *gradient, uint64_t stride);
void oracle_cancel(oracle_ticket *ticket);
void oracle_eval(oracle *model, const hotbed_batch *batch, void *output, uint64_t stride);

uint64_t oracle_least_stride(const oracle *model);

/* The first value of a state of a new row, in f32. */
float oracle_first_state(const hotbed_optimizer *optimizer, uint32_t state);

/* Copy the row as it is stored to, or from, place `index` of an array of such rows. */
void oracle_row_get(const oracle_table *table, const oracle_row *row, void *array, uint64_t index);
void oracle_row_set(const oracle_table *table, oracle_row *row, const void *array, uint64_t index);
/* The same for a state. */
void oracle_state_get(
    const oracle_table *table, const oracle_row *row, uint32_t state, void *array, uint64_t index);
void oracle_state_set(
    const oracle_table *table, oracle_row *row, uint32_t state, const void *array, uint64_t index);
/* Write a row to place `index` of an array, rounded to nearest. */
void oracle_row_round(
    hotbed_dtype dtype, uint32_t dim, const float *weights, void *array, uint64_t index);

/* Read or write element `index` of an array of outputs or gradients.  A stored value is rounded to nearest, ties to
 * even. */
float oracle_load(hotbed_dtype dtype, const void *array, uint64_t index);
void oracle_store(hotbed_dtype dtype, void *array, uint64_t index, float value);
