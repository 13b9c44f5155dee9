/* hotbed/index.h - a scored hash index that maps keys to slots, for several tables in one object.
 *
 * Experimental: all calls.
 *
 * For programs that keep rows elsewhere: in a flat table (hotbed/flat_table.h) or in their own
 * arrays. Programs that use a hotbed_storage do not need it; a storage contains one.
 *
 * A *key* is any 64-bit word, int64 or uint64. A *slot* is the position of a key; it does not
 * change while the key is in the table. Every table has its own range of slots. The *score* of a
 * key (0 to 2^52 - 1) is the value that eviction compares. A slot can have up to 254 *pins* at
 * once, and more are not added; a pinned slot is neither evicted nor erased.
 *
 *       uint64_t capacity = 1000000;
 *       hotbed_evict evict = HOTBED_EVICT_LOWEST;
 *       hotbed_index_options options = {
 *           .size = sizeof options, .num_tables = 1, .capacities = &capacity, .evict = &evict};
 *       hotbed_index *index;
 *       hotbed_index_create(&options, stream, &index);
 *       hotbed_index_insert insert = {.size = sizeof insert};
 *       insert.n = n, insert.keys = keys; // device [n], distinct
 *       insert.rule = HOTBED_SCORE_ASSIGN, insert.score = step;
 *       insert.slots = slots; // device [n]
 *       hotbed_index_find_or_insert(index, &insert, stream);
 *
 * Arrays are device memory of the index's backend. `tables` arrays give the table of each key, so
 * that one call can process all tables; NULL is table 0. Calls are asynchronous, allocate nothing
 * and never wait unless a comment says otherwise, and can be recorded into a hotbed_graph.
 *
 * Order: the caller must order calls that insert or erase one after another, and clear and export
 * with all of them. Finds, pins and unpins may overlap inserts and erases on other streams. A find
 * that overlaps an insert returns the key's slot or none.
 *
 * Faults: a key whose table number is out of range gets no slot and latches RANGE. A refused key is
 * not a fault: its slot is HOTBED_SLOT_NONE, and its outcome gives the reason. */
#ifndef HOTBED_INDEX_H
#define HOTBED_INDEX_H

#include "hotbed/status.h"
#include "hotbed/stream.h"
#include "hotbed/types.h"

HOTBED_BEGIN_DECLS

typedef struct hotbed_index hotbed_index; /* opaque; owned by the caller */

/* The result of a find or insert for one key. */
typedef enum hotbed_index_outcome {
    HOTBED_INDEX_FOUND = 0,
    HOTBED_INDEX_INSERTED = 1,
    HOTBED_INDEX_EVICTED = 2,  /* inserted in place of an evicted key */
    HOTBED_INDEX_FULL = 3,     /* refused: no free slot, and the table does not evict */
    HOTBED_INDEX_PINNED = 4,   /* refused: every candidate slot is pinned */
    HOTBED_INDEX_NO_TABLE = 5, /* refused: the table number is out of range */
} hotbed_index_outcome;

/* How a call changes the score of a key that it finds. A key that it inserts gets the given score.
 * hotbed_score_strategy (hotbed/storage.h) is another enum, whose names also begin with
 * HOTBED_SCORE_. */
typedef enum hotbed_score_rule {
    HOTBED_SCORE_KEEP = 0,   /* keep the score */
    HOTBED_SCORE_ASSIGN = 1, /* set it to the given score (a clock: LRU) */
    HOTBED_SCORE_ADD = 2,    /* add the given score (counts: LFU) */
} hotbed_score_rule;

/* Options of an index. 0 is the default of every field but `size`. Fields are only ever appended. */
typedef struct hotbed_index_options {
    uint32_t size;       /* sizeof(hotbed_index_options) */
    uint32_t num_tables; /* 1 .. 65535; required */
    /* [num_tables] number of keys that are stored before one is refused or evicted, each 1 .. 2^35;
     * copied; required */
    const uint64_t *capacities;
    const hotbed_evict *evict; /* [num_tables]; copied; NULL: all NEVER */
} hotbed_index_options;

/* Create an empty index on the backend and device of `stream`. Synchronous.
 * Errors: ARGUMENT (the field and its value), MEMORY, STATE (the stream records a graph). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_index_create(const hotbed_index_options *options, hotbed_stream *stream, hotbed_index **out);

/* Free the index. All work that uses it must be done. NULL is allowed. */
HOTBED_API void hotbed_index_destroy(hotbed_index *index);

/* Find the slots of n keys without changing anything. Asynchronous.
 *
 *   keys    in   [n] int64 or uint64, duplicates allowed
 *   tables  in   [n] table of each key; NULL: all of table 0
 *   slots   out  [n] slot or HOTBED_SLOT_NONE
 *
 * Errors: ARGUMENT.
 * Faults: RANGE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_index_find_keys(
    hotbed_index *index, uint64_t n, const void *keys, const uint32_t *tables, uint64_t *slots,
    hotbed_stream *stream);

/* Inputs and outputs of hotbed_index_find_or_insert(). 0 is the default of every field but `size`. */
typedef struct hotbed_index_insert {
    uint32_t size;          /* sizeof(hotbed_index_insert) */
    hotbed_score_rule rule; /* for keys that are found */
    uint64_t n;
    const void *keys;       /* [n] distinct within each table; required */
    const uint32_t *tables; /* [n]; NULL: all of table 0 */
    const uint64_t *scores; /* [n]; NULL: all get `score`. Scores over 2^52 - 1 are reduced to it */
    uint64_t score;
    bool pin;          /* add a pin to every slot that is returned */
    uint64_t *slots;   /* out [n] slot or HOTBED_SLOT_NONE; required */
    uint8_t *outcomes; /* out [n] hotbed_index_outcome; may be NULL */
    /* Evicted keys, in no particular order. The slot of an evicted key is also the slot of the new
     * key: move its row away before you write the new row. Each array may be NULL; num_evicted is
     * required if any of them is not. */
    uint64_t *evicted_keys;   /* out [n] */
    uint64_t *evicted_scores; /* out [n] */
    uint64_t *evicted_slots;  /* out [n] */
    uint64_t *num_evicted;    /* out [1] */
} hotbed_index_insert;

/* Find each key and update its score, or insert the key. In a full table that evicts, a new key
 * replaces the key with the lowest score among its candidates. A call does not evict its own keys.
 * Asynchronous.
 * Errors: ARGUMENT (NULL, an unknown rule).
 * Faults: RANGE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_index_find_or_insert(
    hotbed_index *index, const hotbed_index_insert *insert, hotbed_stream *stream);

/* Remove n keys. Absent and pinned keys are skipped. Asynchronous.
 *
 *   erased  out  [n] 1 or 0; may be NULL
 *
 * Errors: ARGUMENT.
 * Faults: RANGE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_index_erase_keys(
    hotbed_index *index, uint64_t n, const void *keys, const uint32_t *tables, uint8_t *erased,
    hotbed_stream *stream);

/* Add a pin to each of n slots, or remove one. Asynchronous. A slot that is given twice gets two
 * pins. HOTBED_SLOT_NONE and slots that hold no key are skipped; so is unpinning of a slot without
 * pins.
 * Errors: ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_index_pin_slots(
    hotbed_index *index, uint64_t n, const uint64_t *slots, hotbed_stream *stream);
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_index_unpin_slots(
    hotbed_index *index, uint64_t n, const uint64_t *slots, hotbed_stream *stream);

/* Remove all keys of table number `table`, pinned keys too. Asynchronous.
 * Errors: ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_index_clear(hotbed_index *index, uint32_t table, hotbed_stream *stream);

/* Copy all keys of a table with their slots and scores, in no particular order. Asynchronous.
 *
 *   capacity  in   length of the arrays; keys beyond it are counted, but not written
 *   keys      out  may be NULL, and so may slots and scores
 *   counts    out  [2] number of keys in the table, and number of pinned keys
 *
 * Errors: ARGUMENT (NULL counts, table number out of range). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_index_export(
    hotbed_index *index, uint32_t table, uint64_t capacity, uint64_t *keys, uint64_t *slots,
    uint64_t *scores, uint64_t counts[2], hotbed_stream *stream);

/* Count the keys of a table, and its pinned keys; either pointer may be NULL. Synchronous.
 * Errors: ARGUMENT, MEMORY, STATE (the stream records a graph). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_index_size(
    hotbed_index *index, uint32_t table, uint64_t *keys, uint64_t *pinned, hotbed_stream *stream);

typedef struct hotbed_index_info {
    uint32_t size;           /* set by the caller: sizeof(hotbed_index_info) */
    uint64_t capacity;       /* as requested */
    uint64_t first_slot;     /* the slots of this table are [first_slot, first_slot + slots) */
    uint64_t slots;          /* at most capacity / 0.97 + 32 */
    uint64_t bytes_per_slot; /* 16 */
    hotbed_evict evict;
} hotbed_index_info;

/* Describe a table of the index.
 * Errors: ARGUMENT (table number out of range). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_index_table(const hotbed_index *index, uint32_t table, hotbed_index_info *out);

HOTBED_END_DECLS
#endif
