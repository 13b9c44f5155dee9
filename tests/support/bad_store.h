/* tests/support/bad_store.h - an external store that misbehaves when it is told to: fails, tears batches,
 * loses and damages rows, or keeps its caller waiting.
 *
 * A plug-in around the one in memory.  Not to be copied; the test owns the struct, which must outlive the
 * hotbed_external.  Calls are counted from 1, open() and close() left out.
 */
#ifndef HOTBED_TESTS_BAD_STORE_H
#define HOTBED_TESTS_BAD_STORE_H

#include "hotbed/external.h"

#include <pthread.h>

typedef enum bad_way {
    BAD_NOT = 0,
    BAD_FAIL,        /* nothing is done, `status` is returned */
    BAD_DONE,        /* all is done, `status` is returned */
    BAD_TEAR,        /* insert: the first half is done, `status` is returned */
    BAD_LOSE,        /* insert: the first half is done, OK is returned */
    BAD_HALF_ROW,    /* insert: done, but of the last row only the first half is new */
    BAD_BYTE,        /* find, export: the last byte of the first row is another */
    BAD_SCORE,       /* find, export: the first score is another */
    BAD_OTHER_TABLE, /* find: what another table has under these keys */
    BAD_FLAG,        /* find, erase: flag 7 */
    BAD_COUNT,       /* export: says that it gave one row more than fit */
} bad_way;

typedef struct bad_store {
    void *self; /* the store in memory */
    bad_way way;
    uint64_t from, to;   /* calls number from .. to misbehave */
    uint64_t fail_after; /* calls after this one fail with `status`; 0: none */
    hotbed_status status;
    uint64_t calls;
    uint64_t last_deadline; /* of the last call */
    uint64_t row_bytes[16]; /* as of open() */

    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool held;   /* calls wait until this is false */
    bool inside; /* a call waits */
} bad_store;

extern const hotbed_external_calls bad_store_calls;

void bad_store_start(bad_store *b);
void bad_store_end(bad_store *b); /* after the hotbed_external */

/* The next call, or calls next .. next + count - 1, misbehave. */
void bad_store_next(bad_store *b, bad_way way, uint64_t count);

void bad_store_hold(bad_store *b);  /* calls wait from now on */
void bad_store_await(bad_store *b); /* until a call waits */
void bad_store_let_go(bad_store *b);

#endif
