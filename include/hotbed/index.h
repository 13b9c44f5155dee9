/* hotbed/index.h - a scored hash index: from keys to slots, several tables in one object.
 *
 * What a hotbed_storage has inside, on its own, for rows that live elsewhere (hotbed/flat_table.h, the
 * caller's arrays).  Every table has its own range of slots.  A *key* is any 64-bit word, int64 or uint64
 * alike; a *slot* is its place, which does not change while the key is in the table; its *score* (0 to
 * 2^52 - 1) is what eviction compares, and a slot that is *pinned* (up to 254 times at once) is neither
 * evicted nor erased.
 *
 * Arrays are device memory of the index's backend.  `tables` arrays give each key's table, so that one
 * call serves them all; NULL is table 0.  Calls are async, allocate nothing and never wait unless said
 * otherwise, and can be recorded into a hotbed_graph.
 *
 * Calls that insert or erase are ordered one after the other by the caller, and so are clear and export
 * with all of these; finds, pins and unpins may overlap inserts and erases on other streams.  A find
 * beside an insert gives a key's slot or none.
 *
 * Faults: a table number out of range gets no slot and latches RANGE.  A key that is refused is none: its
 * slot is HOTBED_SLOT_NONE and its outcome says why.
 */
#ifndef HOTBED_INDEX_H
#define HOTBED_INDEX_H

#include "hotbed/status.h"
#include "hotbed/stream.h"
#include "hotbed/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hotbed_index hotbed_index; /* opaque; owned by the caller */

/* What became of a key. */
typedef enum hotbed_index_outcome {
    HOTBED_INDEX_FOUND = 0,
    HOTBED_INDEX_INSERTED = 1,
    HOTBED_INDEX_EVICTED = 2,  /* inserted in the place of another key */
    HOTBED_INDEX_FULL = 3,     /* refused: no free slot, and the table does not evict */
    HOTBED_INDEX_PINNED = 4,   /* refused: every candidate is pinned */
    HOTBED_INDEX_NO_TABLE = 5, /* refused: the table number is out of range */
} hotbed_index_outcome;

/* How a call changes the score of a key that it finds.  A key that it inserts gets the given score. */
typedef enum hotbed_score_rule {
    HOTBED_SCORE_KEEP = 0,   /* as it is */
    HOTBED_SCORE_ASSIGN = 1, /* the given score (a clock: LRU) */
    HOTBED_SCORE_ADD = 2,    /* plus the given score (counts: LFU) */
} hotbed_score_rule;

/* An index.  Call hotbed_index_options_init(), then set fields; 0 is every other field's default.
 * Fields are only ever appended. */
typedef struct hotbed_index_options {
    uint32_t size;              /* set by init */
    uint32_t num_tables;        /* 1 .. 65535; required */
    const uint64_t *capacities; /* [num_tables] keys that are stored before one is refused or
                                 * evicted, each 1 .. 2^35; copied; required */
    const hotbed_evict *evict;  /* [num_tables]; copied; NULL: all NEVER */
} hotbed_index_options;

static inline void hotbed_index_options_init(hotbed_index_options *options) {
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
}

/* Create an empty index on the backend and device of `stream`.  Synchronous.
 * Errors: ARGUMENT (the field and its value), MEMORY, STATE (the stream records a graph). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_index_create(const hotbed_index_options *options, hotbed_stream *stream, hotbed_index **out);

/* Free the index.  All work that uses it must be done.  NULL is allowed. */
HOTBED_API void hotbed_index_destroy(hotbed_index *index);

/* Slots of n keys, without changing anything.  Async.
 *
 *   keys    in   [n] int64 or uint64, duplicates allowed
 *   tables  in   [n] table of each key; NULL: all of table 0
 *   slots   out  [n] slot or HOTBED_SLOT_NONE
 *
 * Errors: ARGUMENT.  Faults: RANGE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_index_find_keys(
    hotbed_index *index, uint64_t n, const void *keys, const uint32_t *tables, uint64_t *slots,
    hotbed_stream *stream);

/* What hotbed_index_find_or_insert() takes and gives.  Call hotbed_index_insert_init(), then set
 * fields. */
typedef struct hotbed_index_insert {
    uint32_t size;          /* set by init */
    hotbed_score_rule rule; /* of keys that are found */
    uint64_t n;
    const void *keys;       /* [n] distinct in their table; required */
    const uint32_t *tables; /* [n]; NULL: all of table 0 */
    const uint64_t *scores; /* [n]; NULL: all get `score`.  Those over 2^52 - 1 count as that */
    uint64_t score;
    bool pin;          /* add a pin to every slot that is given */
    uint64_t *slots;   /* out [n] slot or HOTBED_SLOT_NONE; required */
    uint8_t *outcomes; /* out [n] hotbed_index_outcome; may be NULL */
    /* Keys that were evicted, in no particular order.  A slot here is the new key's too: what it
     * addresses is moved away before the new key's row is written.  Each may be NULL; num_evicted is
     * required with any. */
    uint64_t *evicted_keys;   /* out [n] */
    uint64_t *evicted_scores; /* out [n] */
    uint64_t *evicted_slots;  /* out [n] */
    uint64_t *num_evicted;    /* out [1] */
} hotbed_index_insert;

static inline void hotbed_index_insert_init(hotbed_index_insert *insert) {
    memset(insert, 0, sizeof *insert);
    insert->size = sizeof *insert;
}

/* Find each key and score it, or insert it, where its table is full and evicts in the place of the lowest
 * score among its candidates.  Async.  A call does not evict its own keys.
 * Errors: ARGUMENT (NULL, an unknown rule).  Faults: RANGE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_index_find_or_insert(
    hotbed_index *index, const hotbed_index_insert *insert, hotbed_stream *stream);

/* Remove n keys; absent and pinned ones are left.  Async.
 *
 *   erased  out  [n] 1 or 0; may be NULL
 *
 * Errors: ARGUMENT.  Faults: RANGE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_index_erase_keys(
    hotbed_index *index, uint64_t n, const void *keys, const uint32_t *tables, uint8_t *erased,
    hotbed_stream *stream);

/* Add a pin to each of n slots, or take one off.  Async.  A slot named twice gets two; HOTBED_SLOT_NONE
 * and slots that hold no key are skipped, and so is unpinning where there is no pin.
 * Errors: ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_index_pin_slots(
    hotbed_index *index, uint64_t n, const uint64_t *slots, hotbed_stream *stream);
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_index_unpin_slots(
    hotbed_index *index, uint64_t n, const uint64_t *slots, hotbed_stream *stream);

/* Remove all keys of table `table`, pinned ones too.  Async.  Errors: ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_index_clear(hotbed_index *index, uint32_t table, hotbed_stream *stream);

/* All keys of a table with slots and scores, in no particular order.  Async.
 *
 *   capacity  in   length of the arrays; what is beyond it is counted, but not written
 *   keys      out  may be NULL, and so may slots and scores
 *   counts    out  [2] number of keys in the table, and of those that are pinned
 *
 * Errors: ARGUMENT (NULL counts, table number out of range). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_index_export(
    hotbed_index *index, uint32_t table, uint64_t capacity, uint64_t *keys, uint64_t *slots,
    uint64_t *scores, uint64_t counts[2], hotbed_stream *stream);

/* Number of keys in a table, and of those that are pinned; either may be NULL.  Synchronous.
 * Errors: ARGUMENT, MEMORY, STATE (the stream records a graph). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_index_size(
    hotbed_index *index, uint32_t table, uint64_t *keys, uint64_t *pinned, hotbed_stream *stream);

typedef struct hotbed_index_info {
    uint64_t capacity;       /* as asked for */
    uint64_t first_slot;     /* slots of this table are [first_slot, first_slot + slots) */
    uint64_t slots;          /* at most capacity / 0.97 + 32 */
    uint64_t bytes_per_slot; /* 16 */
    hotbed_evict evict;
} hotbed_index_info;

/* Errors: ARGUMENT (table number out of range). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_index_table(const hotbed_index *index, uint32_t table, hotbed_index_info *out);
HOTBED_API uint32_t hotbed_index_num_tables(const hotbed_index *index); /* as created */

#ifdef __cplusplus
}
#endif
#endif
