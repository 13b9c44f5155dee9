/* tests/support/bad_store.h - an external store that misbehaves on request: it fails, writes half a
 * batch, loses and damages rows, or makes its caller wait.
 *
 * A wrapper around the store in memory. It must not be copied: the test owns the struct, which must
 * outlive the hotbed_external. Calls are counted from 1, without open() and close(). */
#ifndef HOTBED_TESTS_BAD_STORE_H
#define HOTBED_TESTS_BAD_STORE_H

#include "hotbed/external.h"

#include <pthread.h>

typedef enum bad_way {
    BAD_NOT = 0,
    BAD_FAIL,        /* does nothing and returns `status` */
    BAD_DONE,        /* does all and returns `status` */
    BAD_TEAR,        /* insert: does the first half and returns `status` */
    BAD_LOSE,        /* insert: does the first half and returns OK */
    BAD_HALF_ROW,    /* insert: writes all rows, but only the first half of the last row */
    BAD_BYTE,        /* find, export: changes the last byte of the first row */
    BAD_SCORE,       /* find, export: changes the first score */
    BAD_OTHER_TABLE, /* find: returns what another table has under these keys */
    BAD_FLAG,        /* find, erase: flag 7 */
    BAD_COUNT,       /* export: reports one row more than fits */
} bad_way;

typedef struct bad_store {
    void *self; /* the wrapped store */
    bad_way way;
    uint64_t from, to;   /* calls number from .. to misbehave */
    uint64_t fail_after; /* calls after this number fail with `status`; 0: none */
    hotbed_status status;
    uint64_t calls;
    uint64_t last_deadline; /* of the last call */
    uint64_t row_bytes[16]; /* as passed to open() */

    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool held;   /* calls wait while this is true */
    bool inside; /* a call is waiting */
} bad_store;

extern const hotbed_external_calls bad_store_calls;

void bad_store_start(bad_store *b);
void bad_store_end(bad_store *b); /* call it after the hotbed_external is destroyed */

/* Make the next call, or calls next .. next + count - 1, misbehave. */
void bad_store_next(bad_store *b, bad_way way, uint64_t count);

void bad_store_hold(bad_store *b);  /* makes calls wait from now on */
void bad_store_await(bad_store *b); /* blocks until a call waits */
void bad_store_let_go(bad_store *b);

#endif
