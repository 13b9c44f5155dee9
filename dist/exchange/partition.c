/* dist/exchange/partition.c - sets of equal size and nearly equal sums, by differencing (Karmarkar-Karp).
 *
 * A *state* has one list of items for each set. Initially there are items_a_set states: the items
 * sorted by workload, cut into runs of `sets` neighbours, one item per list. Then the two states
 * whose lists differ most are joined, the heaviest list of one with the lightest of the other,
 * until one state is left. Numbers of items and states break ties, so the result depends on the
 * workloads alone. */
#include "dist/exchange/partition.h"

#include <stdbool.h>
#include <string.h>

/* A list of items, linked by work.next; another list is appended to `last`. */
typedef struct list {
    uint64_t sum;
    uint32_t first, last;
} list;

typedef struct work {
    uint32_t sets, num_states;
    const uint64_t *workloads;
    list *lists;     /* [states][sets] largest sum first */
    list *joined;    /* [sets] */
    uint32_t *heap;  /* [states] numbers, largest spread first */
    uint32_t *next;  /* [items] */
    uint32_t *order; /* [items] by workload */
    uint32_t *other; /* [items] for the sort */
    uint32_t heap_size;
} work;

static size_t round8(size_t bytes) {
    return (bytes + 7) / 8 * 8;
}

size_t hotbed_partition_scratch(uint32_t sets, uint32_t items_a_set) {
    size_t items = (size_t)sets * items_a_set;
    return (items + sets) * sizeof(list) + round8(items_a_set * sizeof(uint32_t)) +
           3 * round8(items * sizeof(uint32_t));
}

/* --- order --------------------------------------------------------------------------------------------- */

/* Sort items by (workload, number), ascending: a merge sort, which calls nothing and needs no more
 * memory. */
static void sort_items(work *w, uint32_t items) {
    uint32_t *from = w->order, *to = w->other;
    for (uint32_t i = 0; i < items; i++)
        from[i] = i;
    for (uint64_t width = 1; width < items; width *= 2) {
        for (uint64_t begin = 0; begin < items; begin += 2 * width) {
            uint64_t middle = begin + width < items ? begin + width : items;
            uint64_t end = begin + 2 * width < items ? begin + 2 * width : items;
            uint64_t a = begin, b = middle;
            for (uint64_t at = begin; at < end; at++) {
                bool left =
                    b == end || (a < middle && w->workloads[from[a]] <= w->workloads[from[b]]);
                to[at] = from[left ? a++ : b++];
            }
        }
        uint32_t *swap = from;
        from = to;
        to = swap;
    }
    w->order = from;
}

static bool heavier(const list *a, const list *b) {
    return a->sum != b->sum ? a->sum > b->sum : a->first < b->first;
}

/* Sort by descending sum. There are few sets, so insertion sort is fast enough. */
static void sort_lists(list *lists, uint32_t n) {
    for (uint32_t i = 1; i < n; i++) {
        list moved = lists[i];
        uint32_t at = i;
        for (; at > 0 && heavier(&moved, &lists[at - 1]); at--)
            lists[at] = lists[at - 1];
        lists[at] = moved;
    }
}

/* --- the heap of states ---------------------------------------------------------------------------------- */

static uint64_t spread(const work *w, uint32_t state) {
    const list *lists = w->lists + (size_t)state * w->sets;
    return lists[0].sum - lists[w->sets - 1].sum;
}

static bool before(const work *w, uint32_t a, uint32_t b) {
    uint64_t spread_a = spread(w, a), spread_b = spread(w, b);
    return spread_a != spread_b ? spread_a > spread_b : a < b;
}

static void sink(work *w, uint32_t at) {
    for (;;) {
        uint32_t best = at, child = 2 * at + 1;
        for (uint32_t c = child; c < child + 2 && c < w->heap_size; c++)
            if (before(w, w->heap[c], w->heap[best]))
                best = c;
        if (best == at)
            return;
        uint32_t swap = w->heap[at];
        w->heap[at] = w->heap[best];
        w->heap[best] = swap;
        at = best;
    }
}

/* --- partition --------------------------------------------------------------------------------------------- */

static void start_states(work *w) {
    for (uint32_t state = 0; state < w->num_states; state++) {
        list *lists = w->lists + (size_t)state * w->sets;
        for (uint32_t s = 0; s < w->sets; s++) {
            uint32_t item = w->order[(size_t)state * w->sets + s];
            lists[s] = (list){w->workloads[item], item, item};
        }
        sort_lists(lists, w->sets);
        w->heap[state] = state;
    }
    w->heap_size = w->num_states;
    for (uint32_t at = w->heap_size / 2; at-- > 0;)
        sink(w, at);
}

/* Join the first two states of the heap into one, in the place of the first. */
static void join_two(work *w) {
    uint32_t a = w->heap[0];
    w->heap[0] = w->heap[--w->heap_size];
    sink(w, 0);
    uint32_t b = w->heap[0];
    list *heavy = w->lists + (size_t)a * w->sets, *light = w->lists + (size_t)b * w->sets;
    for (uint32_t s = 0; s < w->sets; s++) {
        const list *first = &heavy[s], *second = &light[w->sets - 1 - s];
        w->next[first->last] = second->first;
        w->joined[s] = (list){first->sum + second->sum, first->first, second->last};
    }
    memcpy(light, w->joined, w->sets * sizeof *light);
    sort_lists(light, w->sets);
    sink(w, 0);
}

void hotbed_partition(
    uint32_t sets, uint32_t items_a_set, const uint64_t *workloads, uint32_t *items,
    void *scratch) {
    size_t n = (size_t)sets * items_a_set;
    uint8_t *at = scratch;
    work w = {.sets = sets, .num_states = items_a_set, .workloads = workloads};
    w.lists = (list *)(void *)at;
    w.joined = w.lists + n;
    at += (n + sets) * sizeof(list);
    w.heap = (uint32_t *)(void *)at;
    at += round8(items_a_set * sizeof(uint32_t));
    w.next = (uint32_t *)(void *)at;
    at += round8(n * sizeof(uint32_t));
    w.order = (uint32_t *)(void *)at;
    w.other = (uint32_t *)(void *)(at + round8(n * sizeof(uint32_t)));
    sort_items(&w, (uint32_t)n);
    start_states(&w);
    while (w.heap_size > 1)
        join_two(&w);
    /* Write the set of each item, then the items of each set in order; reuses arrays that are no
     * longer needed. */
    uint32_t *set_of = w.order, *filled = (uint32_t *)(void *)w.joined;
    const list *lists = w.lists + (size_t)w.heap[0] * sets;
    for (uint32_t s = 0; s < sets; s++) {
        uint32_t item = lists[s].first;
        for (uint32_t i = 0; i < items_a_set; i++) {
            set_of[item] = s;
            item = w.next[item];
        }
    }
    memset(filled, 0, sets * sizeof *filled);
    for (uint32_t item = 0; item < n; item++) {
        uint32_t s = set_of[item];
        items[(size_t)s * items_a_set + filled[s]++] = item;
    }
}
