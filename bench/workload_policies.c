/* bench/workload_policies.c - the rows that caches with exact LRU, exact LFU and Belady's optimum fetch in the
 * steps of a run, for comparison.
 *
 * All keys of a batch are used at one time, and a batch does not evict its own keys.  The first use of a key
 * makes a row and is no fetch. */
#include "bench/workload.h"

#include "base/error.h"
#include "base/host_launch.h"

#include <stdlib.h>

typedef enum policy { LRU, LFU, OPTIMUM, POLICIES } policy;

/* A distinct key of a batch, and how often the batch has it. */
typedef struct use {
    uint32_t key, occurrences;
} use;

/* An entry of the heap.  It is stale if the key has been used or evicted since. */
typedef struct entry {
    uint64_t rank; /* the lowest is evicted first; among equal ranks the lowest `at` */
    uint32_t key;
    uint32_t at; /* number of the use, from 1 on */
} entry;

typedef struct cache {
    const workload_input *input;
    uint32_t table, warm, times; /* steps `warm` up to `times` are counted */
    uint64_t capacity, size;
    use *uses;       /* of all batches, in order of first occurrence */
    uint64_t *first; /* [batches + 1] position of the first use of each batch */
    uint32_t *next;  /* for each use of each time: the time of the key's next use */
    uint32_t *last;  /* [range] number of the key's last use; 0: not in the cache */
    uint32_t *count; /* [range] occurrences so far, in the cache or not */
    entry *heap;
    uint64_t entries;
    uint64_t fetched[POLICIES], created;
} cache;

static uint32_t batch_of(const cache *c, uint32_t time) {
    return time % c->input->shape.batches;
}

static uint64_t uses_at(const cache *c, uint32_t time) {
    uint32_t batch = batch_of(c, time);
    return c->first[batch + 1] - c->first[batch];
}

/* List the distinct keys of each batch. */
static void list_uses(cache *c) {
    const workload_shape *shape = &c->input->shape;
    uint32_t *where = c->last; /* 1 + position of the key's latest use */
    uint64_t n = 0;
    for (uint32_t b = 0; b < shape->batches; b++) {
        const int64_t *keys =
            c->input->keys + ((uint64_t)b * shape->tables + c->table) * shape->samples;
        c->first[b] = n;
        for (uint32_t i = 0; i < shape->samples; i++) {
            uint32_t key = (uint32_t)keys[i];
            if (where[key] > c->first[b]) {
                c->uses[where[key] - 1].occurrences++;
                continue;
            }
            c->uses[n++] = (use){key, 1};
            where[key] = (uint32_t)n;
        }
    }
    c->first[shape->batches] = n;
    memset(c->last, 0, shape->range * sizeof *c->last);
}

/* The optimum also knows the keys of steps that are not counted: one more cycle of the batches, or all batches. */
static uint32_t horizon_of(const cache *c) {
    const workload_shape *shape = &c->input->shape;
    if (shape->warm == shape->batches)
        return c->times + shape->batches;
    return c->times > shape->batches ? c->times : shape->batches;
}

/* Find the next use of each use, by a pass from the end. */
static void find_next(cache *c) {
    uint32_t *soonest = c->last; /* time of the key's first use behind `time`; 0: none */
    uint64_t at = 0;
    for (uint32_t time = 0; time < c->times; time++)
        at += uses_at(c, time);
    for (uint32_t time = horizon_of(c); time-- > 0;) {
        uint64_t n = uses_at(c, time);
        const use *uses = c->uses + c->first[batch_of(c, time)];
        at -= time < c->times ? n : 0;
        for (uint64_t i = 0; i < n; i++) {
            uint32_t then = soonest[uses[i].key];
            if (time < c->times)
                c->next[at + i] = then == 0 ? UINT32_MAX : then;
            soonest[uses[i].key] = time;
        }
    }
}

/* --- the heap ------------------------------------------------------------------------------- */

static bool before(const entry *a, const entry *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void push(cache *c, entry e) {
    uint64_t i = c->entries++;
    for (; i > 0 && before(&e, &c->heap[(i - 1) / 2]); i = (i - 1) / 2)
        c->heap[i] = c->heap[(i - 1) / 2];
    c->heap[i] = e;
}

static entry pop(cache *c) {
    entry top = c->heap[0];
    entry e = c->heap[--c->entries];
    uint64_t i = 0;
    for (uint64_t child; (child = 2 * i + 1) < c->entries; i = child) {
        child += child + 1 < c->entries && before(&c->heap[child + 1], &c->heap[child]);
        if (before(&e, &c->heap[child]))
            break;
        c->heap[i] = c->heap[child];
    }
    c->heap[i] = e;
    return top;
}

/* --- a policy ------------------------------------------------------------------------------- */

static uint64_t rank_of(const cache *c, policy p, uint32_t key, uint32_t next) {
    return p == LRU ? 0 : p == LFU ? c->count[key] : UINT32_MAX - next;
}

/* Use the keys of a batch, whose uses have the numbers from `at` on. */
static void use_batch(cache *c, policy p, uint32_t time, uint32_t at) {
    uint64_t n = uses_at(c, time);
    const use *uses = c->uses + c->first[batch_of(c, time)];
    for (uint64_t i = 0; i < n; i++) {
        uint32_t key = uses[i].key;
        bool missed = c->last[key] == 0;
        bool created = c->count[key] == 0;
        c->fetched[p] += missed && !created && time >= c->warm;
        c->created += created && p == LRU && time >= c->warm;
        c->size += missed;
        c->count[key] += uses[i].occurrences;
        c->last[key] = at + (uint32_t)i;
    }
    while (c->size > c->capacity && c->entries > 0) {
        entry e = pop(c);
        if (c->last[e.key] != e.at)
            continue;
        c->last[e.key] = 0;
        c->size--;
    }
    for (uint64_t i = 0; i < n; i++) {
        uint32_t number = at + (uint32_t)i;
        push(c, (entry){rank_of(c, p, uses[i].key, c->next[number - 1]), uses[i].key, number});
    }
}

static void run_policy(cache *c, policy p) {
    const workload_shape *shape = &c->input->shape;
    memset(c->last, 0, shape->range * sizeof *c->last);
    memset(c->count, 0, shape->range * sizeof *c->count);
    c->size = c->entries = 0;
    uint32_t at = 1;
    for (uint32_t time = 0; time < c->times; time++) {
        use_batch(c, p, time, at);
        at += (uint32_t)uses_at(c, time);
    }
}

static bool create(cache *c) {
    const workload_shape *shape = &c->input->shape;
    c->uses = malloc((uint64_t)shape->batches * shape->samples * sizeof *c->uses);
    c->first = calloc(shape->batches + 1, sizeof *c->first);
    c->last = calloc(shape->range, sizeof *c->last);
    c->count = calloc(shape->range, sizeof *c->count);
    /* Untouched pages of the next two take no memory. */
    c->next = malloc((uint64_t)c->times * shape->samples * sizeof *c->next);
    c->heap = malloc((uint64_t)c->times * shape->samples * sizeof *c->heap);
    return c->uses && c->first && c->last && c->count && c->next && c->heap;
}

static void destroy(cache *c) {
    free(c->uses);
    free(c->first);
    free(c->last);
    free(c->count);
    free(c->next);
    free(c->heap);
}

static void run_tables(const void *args, uint64_t begin, uint64_t end) {
    cache *caches = *(cache *const *)args;
    for (uint64_t t = begin; t < end; t++) {
        list_uses(&caches[t]);
        find_next(&caches[t]);
        for (policy p = LRU; p < POLICIES; p++)
            run_policy(&caches[t], p);
    }
}

static hotbed_status run(cache *caches, uint32_t tables) {
    hotbed_stream *stream = NULL;
    HOTBED_TRY(hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &stream));
    hotbed_status status =
        hotbed_host_launch(stream, tables, 1, run_tables, &caches, sizeof caches);
    if (status == HOTBED_OK)
        status = hotbed_stream_sync(stream);
    hotbed_stream_destroy(stream);
    return status;
}

hotbed_status workload_count_fetches(
    const workload_input *input, const uint64_t *capacities, uint32_t steps,
    workload_fetches *out) {
    const workload_shape *shape = &input->shape;
    cache *caches = calloc(shape->tables, sizeof *caches);
    bool made = caches != NULL;
    for (uint32_t t = 0; t < shape->tables && made; t++) {
        caches[t] = (cache){.input = input, .table = t, .capacity = capacities[t]};
        caches[t].warm = shape->warm;
        caches[t].times = shape->warm + steps;
        made = create(&caches[t]);
    }
    hotbed_status status =
        made ? run(caches, shape->tables)
             : hotbed_fail(HOTBED_ERR_MEMORY, "policies: no memory for their tables");
    *out = (workload_fetches){0};
    for (uint32_t t = 0; t < shape->tables && caches; t++) {
        out->lru += (double)caches[t].fetched[LRU] / steps;
        out->lfu += (double)caches[t].fetched[LFU] / steps;
        out->optimum += (double)caches[t].fetched[OPTIMUM] / steps;
        out->created += (double)caches[t].created / steps;
        destroy(&caches[t]);
    }
    free(caches);
    return status;
}
