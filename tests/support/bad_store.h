/* tests/support/bad_store.h - an external store that misbehaves on request.
 *
 * It wraps the store in memory, and can fail, write half a batch, lose or damage rows, and block its caller.  The test
 * owns the struct, which must stay in its place and outlive the hotbed_external.  Calls are counted from 1, without
 * open() and close().
 */
#pragma once

#include "hotbed/external.h"

#include <pthread.h>

typedef enum bad_way {
    BAD_NOT = 0,
    BAD_FAIL,        /* does nothing, returns `status` */
    BAD_DONE,        /* completes the call, but returns `status` */
    BAD_TEAR,        /* insert: writes the first half of the rows, returns `status` */
    BAD_LOSE,        /* insert: writes the first half of the rows, returns OK */
    BAD_HALF_ROW,    /* insert: writes all rows, but zeros for the second half of the last row */
    BAD_BYTE,        /* find, export: changes the last byte of the first row */
    BAD_SCORE,       /* find, export: changes the first score */
    BAD_OTHER_TABLE, /* find: returns the rows of another table */
    BAD_FLAG,        /* find, erase: returns 7 as the last flag */
    BAD_COUNT,       /* export: reports one row more than fits */
} bad_way;

typedef struct bad_store {
    void *self; /* the wrapped store */
    bad_way way;
    uint64_t from, to;   /* calls [from, to] misbehave */
    uint64_t fail_after; /* calls with a higher number fail with `status`; 0: none */
    hotbed_status status;
    uint64_t calls;
    uint64_t last_deadline; /* of the last call */
    uint64_t row_bytes[16]; /* as passed to open() */

    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool held;   /* calls block */
    bool inside; /* a call is blocked or about to run */
} bad_store;

extern const hotbed_external_calls bad_store_calls;

void bad_store_start(bad_store *b);
void bad_store_end(bad_store *b); /* after the hotbed_external is destroyed */

/* Make the next `count` calls misbehave. */
void bad_store_next(bad_store *b, bad_way way, uint64_t count);

void bad_store_hold(bad_store *b);   /* calls block from now on */
void bad_store_await(bad_store *b);  /* blocks until a call is blocked */
void bad_store_let_go(bad_store *b); /* ends the effect of bad_store_hold() */
