/* dist/sharded.h - the inside of sharded collections and of their contexts.
 *
 * A collection has groups: tables of one rule, with one lookup.  A context has a *part* for each group of
 * each collection: what that group's exchange needs for one batch.  What depends on how messages are sized is
 * a *road* of the part: the plan's own, and the exact one, which a TWO_PHASE plan has at once and another
 * makes when a batch overflows for the first time.
 */
#ifndef HOTBED_DIST_SHARDED_H
#define HOTBED_DIST_SHARDED_H

#include "base/error.h"
#include "base/stream.h"
#include "dist/dist.h"
#include "dist/kjt.h"
#include "hotbed/sharded.h"
#include "storage/storage.h"

#include <pthread.h>

/* --- collections ----------------------------------------------------------------------------------- */

typedef struct hotbed_group {
    hotbed_route_kind kind;
    uint32_t num_tables, num_features,
        first_feature; /* first_feature: of the collection's `order` */
    uint32_t *tables;  /* [num_tables] of the collection */
    hotbed_storage *lookup;
    bool dedup;
    bool counted; /* dedup: a table counts occurrences, so they travel with the keys */
    /* What messages have rows for: each sample of each feature; after dedup, each table. */
    uint32_t message_features, message_batch;
    uint64_t columns;             /* pooled */
    uint64_t *counts;             /* [world] pooled: floats of each rank's sums */
    uint64_t capacity;            /* keys of a message; 0: exact */
    hotbed_memory described;      /* device: the arrays below */
    hotbed_feature_route *routes; /* [message_features] */
    uint32_t *table_rows;         /* [num_tables + 1] dedup: first row of each table */
    uint32_t *columns32;          /* [num_features + 1] pooled */
    uint32_t *output_columns;     /* [num_features] pooled */
} hotbed_group;

struct hotbed_sharded {
    hotbed_comm *comm;
    uint32_t rank, world;
    hotbed_backend backend;
    int device;
    hotbed_sharded_options options; /* storage, routes and features are not to be used */
    hotbed_pooling pooling;
    hotbed_dtype output_dtype;
    hotbed_optimizer optimizer;
    hotbed_optimizer_view optimizer_view; /* its max_gradient is applied here, not by the lookups */
    uint32_t num_tables, num_features, num_groups;
    hotbed_table_options *tables; /* [num_tables] as given; names point into `texts` */
    uint32_t *feature_tables;     /* [num_features] */
    const char **features;        /* [num_features] names, or NULL: known by number */
    char *texts;
    hotbed_sharded_table *table_info; /* [num_tables] */
    uint32_t *order;                  /* [num_features] features by group */
    uint64_t *feature_columns;        /* [num_features + 1] */
    hotbed_group *groups;             /* [num_groups] */
    uint32_t dim;                     /* pooling NONE */
    bool training;
    bool grows;                  /* a table has a max_capacity: the next three are there */
    pthread_mutex_t growth_lock; /* from where a stream waits for `searched` to where it marks it */
    hotbed_event *searched;      /* the last growth or eval */
    uint32_t unpolled;           /* prefetches since the last poll of growth */
    hotbed_sharded_forward_function forward;
    void *forward_self;
};

/* Growth, in sharded_growth.c.  What orders it with evals; and free that. */
hotbed_status hotbed_sharded_growth_create(hotbed_sharded *sharded, hotbed_stream *stream);
void hotbed_sharded_growth_destroy(hotbed_sharded *sharded);

/* Poll when it is time to: a prefetch is enqueued next.  Errors: of hotbed_sharded_poll_growth(). */
hotbed_status hotbed_sharded_growth_due(hotbed_sharded *sharded, hotbed_stream *stream);

/* Evals are enqueued between the two: after growths before them, and before those after. */
hotbed_status hotbed_sharded_search_begin(hotbed_sharded *sharded, hotbed_stream *stream);
hotbed_status hotbed_sharded_search_end(
    hotbed_sharded *sharded, hotbed_status status, hotbed_stream *stream);

/* --- contexts --------------------------------------------------------------------------------------- */

/* Rows or messages for, or from, each rank: at[p] + offset. */
typedef struct hotbed_ends {
    uint8_t **at; /* [world] device */
    uint64_t offset;
} hotbed_ends;

typedef struct hotbed_road {
    uint64_t capacity; /* keys of a message; 0: exact */
    uint64_t bound;    /* keys that are received at most */
    uint64_t num_keys; /* of this batch: `bound` unless the host knows better */
    hotbed_memory memory, pooled_memory;
    hotbed_ticket *ticket;
    hotbed_ends to, from;             /* messages */
    hotbed_ends owner_out, owner_in;  /* rows: an owner's that go out, gradients that come in */
    hotbed_ends asker_in, asker_out;  /* a requester's that come in, gradients that go out */
    uint8_t *send, *receive;          /* exact: messages */
    uint8_t *owner_rows, *asker_rows; /* not one-sided: rows that travel */
    uint8_t *local;                   /* [bound] rows of row_bytes by feature and rank */
    hotbed_gather_view gather;
    /* exact: sizes for the communicator, in the order of the four parts of `sizes` */
    uint64_t *sizes; /* [4 * world] host: bytes of messages out, in; of rows asked for, owned */
} hotbed_road;

typedef enum hotbed_stage {
    HOTBED_STAGE_EMPTY = 0,
    HOTBED_STAGE_STARTED,    /* input_dist */
    HOTBED_STAGE_SENT,       /* wait_splits */
    HOTBED_STAGE_READY,      /* wait_input */
    HOTBED_STAGE_PREFETCHED, /* from here on: of each collection for itself */
    HOTBED_STAGE_COMPUTED,
    HOTBED_STAGE_DELIVERING,
    HOTBED_STAGE_DELIVERED,
    HOTBED_STAGE_RETURNING,
    HOTBED_STAGE_DONE,
} hotbed_stage;

typedef struct hotbed_part {
    hotbed_sharded *sharded;
    hotbed_group *group;
    uint32_t member; /* number of its collection in the context */
    hotbed_memory memory;
    hotbed_pick_view pick;
    uint32_t *mapped;        /* [num_features] host: what pick.features has */
    hotbed_step_view unique; /* dedup; also of the sums of gradients */
    void *scratch;
    size_t scratch_bytes;
    uint32_t *num_keys; /* device: of the batch, and of what is sent */
    const uint32_t *num_sent;
    float *sums;       /* dedup: [max_keys, dim] f32 */
    float *pooled;     /* [max_batch_size, columns] */
    float *all_pooled; /* [world * max_batch_size, columns] */
    hotbed_bucketize_view bucketize;
    uint64_t row_bytes;                  /* of rows that travel; 0: pooled */
    uint64_t message_at;                 /* bytes from the start of what goes to one rank */
    uint64_t window_asker, window_owner; /* one-sided: where rows are in the window */
    hotbed_road roads[2];                /* the plan's, the exact one */
    hotbed_road *road;                   /* of this batch */
} hotbed_part;

/* One collection of a context. */
typedef struct hotbed_member {
    hotbed_sharded *sharded;
    uint32_t first_part;
    hotbed_memory memory;
    uint32_t *starts, *bad, *bases; /* device: of the kjt */
    uint64_t rows_most;
    hotbed_kjt kjt;
    bool training; /* the mode when the batch was started */
    hotbed_stage stage;
} hotbed_member;

enum { HOTBED_MEMBERS_MOST = 64 };

struct hotbed_sharded_context {
    hotbed_comm *comm;
    uint32_t rank, world, num_members, num_parts;
    hotbed_plan plan;
    hotbed_overflow policy;
    hotbed_backend backend;
    int device;
    hotbed_member *members;
    hotbed_part *parts;
    hotbed_stage stage;    /* up to READY */
    hotbed_event *event;   /* the context's last work */
    hotbed_event *arrived; /* what the host reads has been written */
    hotbed_memory memory;  /* device: counts, matrix, overflow words, fixed messages */
    hotbed_memory pinned;
    uint32_t *counts;      /* [parts][world] keys for each rank */
    uint32_t *matrix;      /* [world][parts][world] of all ranks */
    uint32_t *overflow;    /* one word: of this rank's batch */
    uint32_t *overflows;   /* [parts] of all ranks': all are the same */
    uint32_t *host_matrix; /* pinned */
    uint32_t *host_overflow;
    uint8_t *send, *receive; /* FIXED: [world] messages of all parts */
    uint64_t message_bytes;  /* of all parts, for one rank */
    hotbed_window *window;
    bool may_overflow; /* with the plan's capacities */
    bool watched;      /* host_overflow is on its way for this batch */
    bool settled;      /* and was looked at */
    bool replayed;
};

/* A call begins: checks, and `stream` goes on after the context's work so far.  `call` names it in messages. */
hotbed_status hotbed_context_enter(
    hotbed_sharded_context *context, hotbed_stream *stream, const char *call);
/* It ends: the context's work is now up to here. */
hotbed_status hotbed_context_leave(hotbed_sharded_context *context, hotbed_stream *stream);
/* STATE: the batch is not where the call needs it. */
hotbed_status hotbed_context_fail_stage(const char *call, hotbed_stage stage);
/* Look whether the batch overflowed, and send it again if so, where that is the policy. */
hotbed_status hotbed_context_settle(hotbed_sharded_context *context, hotbed_stream *stream);

/* Where a batch is: for shortcuts, which bring the context back there after the batch is over, as often as they
 * like.  All that the stages wrote is still in its arrays, since each stage has its own. */
typedef struct hotbed_sharded_mark {
    hotbed_stage stage, members[HOTBED_MEMBERS_MOST];
    bool watched, settled, replayed;
} hotbed_sharded_mark;

/* Note where the batch is, and keep the rows that it holds until it is forgotten, or another batch is started.
 * Async.
 * Errors: STATE (no batch is under way), those of hotbed_ticket_keep(). */
hotbed_status hotbed_sharded_keep(
    hotbed_sharded_context *context, hotbed_sharded_mark *mark, hotbed_stream *stream);
hotbed_status hotbed_sharded_rewind(
    hotbed_sharded_context *context, const hotbed_sharded_mark *mark, hotbed_stream *stream);
hotbed_status hotbed_sharded_forget(hotbed_sharded_context *context, hotbed_stream *stream);

/* Bytes of a row that travels; a multiple of 16. */
uint64_t hotbed_part_row_bytes(const hotbed_sharded *sharded);

/* Memory and views of all parts.  Errors: MEMORY, DEVICE. */
hotbed_status hotbed_parts_create(hotbed_sharded_context *context, hotbed_stream *stream);
void hotbed_parts_destroy(hotbed_sharded_context *context);

/* Before the keys of a batch are sent, or sent again: nothing has overflowed. */
hotbed_status hotbed_parts_clear(hotbed_sharded_context *context, hotbed_stream *stream);

/* The exact road of every part, which a batch that overflowed takes.  Synchronous when it is made. */
hotbed_status hotbed_parts_make_exact(hotbed_sharded_context *context, hotbed_stream *stream);

/* Exchange of keys, in halves; `exact`: by sizes that the host learns in between. */
hotbed_status hotbed_exchange_start(
    hotbed_sharded_context *context, bool exact, hotbed_stream *stream);
hotbed_status hotbed_exchange_sizes(hotbed_sharded_context *context, hotbed_stream *stream);
hotbed_status hotbed_exchange_gather(hotbed_sharded_context *context, hotbed_stream *stream);

/* Rows of one part, or their gradients, to the other side. */
hotbed_status hotbed_exchange_rows(
    hotbed_sharded_context *context, hotbed_part *part, bool gradients, hotbed_stream *stream);

/* What a part's rows look like to kernels, by these ends. */
hotbed_deliver_view hotbed_part_deliver(
    const hotbed_sharded_context *context, const hotbed_part *part, hotbed_ends ends);

#endif
