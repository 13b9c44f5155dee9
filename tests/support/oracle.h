/* tests/support/oracle.h - a plain model of a storage: what the headers promise, one key at a time.
 *
 * Written from include/hotbed/ alone, without the library's code.  Rows are floats in a chained hash map,
 * sums are loops, everything runs at once on host memory.  A table of the model has no bound: which key
 * a full table refuses or evicts is the library's choice, which the model takes from the ticket's slots and, by
 * oracle_evict(), from the table's keys; and so is which key admission by chance draws.  Times are the model's own: the
 * number of the prefetch, which orders keys as the library's times do.
 */
#ifndef HOTBED_TESTS_ORACLE_H
#define HOTBED_TESTS_ORACLE_H

#include "hotbed/storage.h"

/* Fill weights [n, dim] of the table's dtype with the first values of n rows. */
typedef void (*oracle_initial)(
    void *self, uint32_t table, uint64_t n, const uint64_t *keys, void *weights);

typedef struct oracle_row {
    uint64_t key;
    uint64_t score; /* 0 in TIMESTAMP tables */
    uint64_t
        time; /* TIMESTAMP, TIMESTAMP_LFU: number of the last prefetch that had the key, or as set */
    float *weights;   /* [dim], each a value of the table's dtype */
    float *states[2]; /* [state_dim] */
    uint32_t pins;
    bool set_time; /* by key: `time` is a time of the library */
    uint32_t next; /* row after this one in its chain, or in the list of free rows */
    bool live;
} oracle_row;

typedef struct oracle_counted {
    uint64_t key, count;
} oracle_counted;

typedef struct oracle_table {
    hotbed_table_options options;
    uint32_t state_dim;
    oracle_row *rows; /* [num_rows] used places, live or free */
    uint32_t num_rows;
    uint32_t room;
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
    oracle_initial initial;
    void *self;
} oracle;

/* A batch in the model.  Arrays are the ticket's. */
typedef struct oracle_ticket {
    oracle *model;
    hotbed_batch batch;       /* copies */
    int64_t *offsets;         /* always there */
    uint64_t num_keys;        /* offsets[last] */
    uint32_t *bags;           /* [num_keys] bag of each key */
    uint32_t *unique_offsets; /* [num_tables + 1] */
    uint64_t *unique_keys;
    uint64_t *counts;      /* [uniques] occurrences that each stands for, by batch.counts */
    uint32_t *occurrences; /* [uniques] in the batch */
    uint32_t *inverse;     /* [num_keys] */
    uint32_t *rows;        /* [uniques] row in its table, or UINT32_MAX: refused */
    float **initials;      /* [uniques] first values of a refused key, else NULL */
    bool held;
} oracle_ticket;

oracle *oracle_create(const hotbed_storage_options *options, oracle_initial initial, void *self);
void oracle_destroy(oracle *model);

/* The row of a key, or NULL. */
oracle_row *oracle_find(oracle *model, uint32_t table, uint64_t key);
/* The row of a key, made with initial values and score 0 when it is new. */
oracle_row *oracle_put(oracle *model, uint32_t table, uint64_t key);
bool oracle_erase(oracle *model, uint32_t table, uint64_t key); /* false: absent or pinned */
bool oracle_evict(oracle *model, uint32_t table, uint64_t key); /* the same, and counted */
void oracle_clear(oracle *model, uint32_t table);
/* What admission has counted of a key without a row, or NULL. */
uint64_t *oracle_count(oracle *model, uint32_t table, uint64_t key);
void oracle_set_count(oracle *model, uint32_t table, uint64_t key, uint64_t count);
void oracle_forget_count(oracle *model, uint32_t table, uint64_t key);
uint64_t oracle_pinned(const oracle *model, uint32_t table);

oracle_ticket *oracle_ticket_create(oracle *model);
void oracle_ticket_destroy(oracle_ticket *ticket);

/* The batch's arrays are host memory and are copied.  `slots` [uniques] is NULL, or the slots that the
 * library gave to the uniques: one with HOTBED_SLOT_NONE is refused here too. */
void oracle_prefetch(
    oracle *model, const hotbed_batch *batch, oracle_ticket *ticket, const uint64_t *slots);
void oracle_forward(const oracle_ticket *ticket, void *output, uint64_t stride);
/* sums: [uniques, largest dim] */
void oracle_reduce(
    const oracle_ticket *ticket, const void *gradient, uint64_t stride, bool add, float *sums);
void oracle_apply(oracle_ticket *ticket, const float *sums);
void oracle_backward(oracle_ticket *ticket, const void *gradient, uint64_t stride);
void oracle_cancel(oracle_ticket *ticket);
void oracle_eval(oracle *model, const hotbed_batch *batch, void *output, uint64_t stride);

uint64_t oracle_least_stride(const oracle *model);

/* Element `index` of an array of dtype, and back, rounded to nearest even. */
float oracle_load(hotbed_dtype dtype, const void *array, uint64_t index);
void oracle_store(hotbed_dtype dtype, void *array, uint64_t index, float value);

#endif
