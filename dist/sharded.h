/* dist/sharded.h - the inside of sharded collections and of their contexts.
 *
 * A collection has groups, each with one lookup: the tables of one routing rule, of which rows travel
 * or, if they are pooled, of which rows of one type or sums travel. A context has a *part*
 * for each group of each collection: the views and buffers for one exchange of that group. Buffers
 * whose sizes depend on messages are in a *path* of the part. There are two: the path of the plan,
 * and the exact one, which a TWO_PHASE plan has from the start and other plans create when a batch
 * overflows for the first time. If there is one rank, nothing is sent: the part hands the caller's
 * batch to the lookup (sharded_alone.c), and its only path has the ticket and the rows. */
#pragma once

#include "base/carve.h"
#include "base/error.h"
#include "base/stream.h"
#include "dist/comm/comm_window.h"
#include "dist/exchange/dist.h"
#include "dist/exchange/kjt.h"
#include "hotbed/sharded.h"
#include "storage/dedup.h"
#include "storage/step/scatter.h"

#include <pthread.h>

/* --- collections ----------------------------------------------------------------------------------- */

typedef struct hotbed_group {
    hotbed_route_kind kind;
    uint32_t num_tables, num_features,
        first_feature; /* first_feature: position in the collection's `order` */
    uint32_t *tables;  /* [num_tables] of the collection */
    hotbed_storage *lookup;
    uint32_t number; /* of the collection's groups */
    bool sums;       /* pooled: the sums of bags travel, otherwise rows */
    bool dedup;
    bool counted; /* dedup: a table counts occurrences, so they travel with the keys */
    /* Several ranks: the elements of rows or sums that travel, and of gradients; and the bytes from
     * one to the next: hotbed_travel_bytes(). */
    hotbed_dtype row_dtype, gradient_dtype;
    uint64_t row_bytes, gradient_bytes;
    /* elements from one row of hotbed_path.wide to the next; 0: there are none */
    uint64_t wide_stride;
    uint32_t max_dim;
    /* of all its tables; applied where the batch is, not by the lookup, unless one rank has it */
    float max_gradient;
    bool aligned; /* pooled: all features begin at columns that are multiples of 4 */
    /* Rows of a message: one per feature and sample; after dedup, one per table. */
    uint32_t message_features, message_batch;
    /* One rank, pooled: the lookup's outputs and gradients have the caller's form, so they need not
     * pass through `pooled` in f32. */
    bool plain;
    uint64_t columns;             /* pooled */
    uint64_t capacity;            /* capacity of a message in keys; 0: exact, or one rank */
    hotbed_memory described;      /* device: the arrays below */
    hotbed_feature_route *routes; /* [message_features] */
    uint32_t *table_features;     /* [num_tables + 1] dedup: first feature of each table */
    uint32_t *columns32;          /* [num_features + 1] pooled */
    uint32_t *output_columns;     /* [num_features] pooled */
    uint64_t *columns64;          /* [num_features] the same */
    uint32_t *dims;               /* [num_features] */
    uint32_t *feature_tables;     /* [num_features] of the lookup */
    uint32_t *numbers;            /* [num_features + 1] 0, 1, 2, ... */
} hotbed_group;

struct hotbed_sharded {
    hotbed_comm *comm;
    uint32_t rank, world;
    uint32_t number; /* of the communicator's collections, by creation: the same on all ranks */
    hotbed_backend backend;
    int device;
    hotbed_sharded_options options; /* storage, routes and features are invalid after creation */
    hotbed_pooling pooling;
    hotbed_dtype output_dtype;
    uint64_t seed; /* of the storage's options */
    hotbed_optimizer optimizer;
    hotbed_optimizer_view optimizer_view; /* max_gradient: the largest of all tables */
    uint32_t num_tables, num_features, num_groups;
    hotbed_table_options *tables; /* [num_tables] as given; names point into `texts` */
    hotbed_optimizer *own;        /* [num_tables] where the tables' own optimizers point */
    uint32_t *feature_tables;     /* [num_features] */
    bool *by_rows;                /* [num_tables] several ranks, pooled: rows travel */
    const char **features;        /* [num_features] names, or NULL: known by number */
    char *texts;
    hotbed_sharded_table *table_info; /* [num_tables] */
    uint32_t *order;                  /* [num_features] features by group */
    uint64_t *feature_columns;        /* [num_features + 1] */
    hotbed_group *groups;             /* [num_groups] */
    uint32_t dim;                     /* pooling NONE */
    bool training;
    bool external; /* an external store has the rows */
    bool grows;    /* a table has a max_capacity; otherwise the next three fields are unused */
    /* held from a stream's wait for `searched` until the stream records it */
    pthread_mutex_t growth_lock;
    hotbed_memory wire;     /* hotbed_wire_counts */
    uint32_t num_contexts;  /* that exist */
    hotbed_event *searched; /* recorded after the last growth or eval */
    uint32_t unpolled;      /* prefetches since the last poll of growth */
};

/* At creation (sharded_agree.c): report the failure of any rank, or a difference of the ranks'
 * options, on all ranks. `status` is the result of this rank's creation of `c`, which is NULL if it
 * failed. With one rank, returns `status`. */
hotbed_status hotbed_sharded_agree(
    hotbed_comm *comm, const hotbed_sharded *c, const hotbed_storage_options *storage,
    hotbed_status status, hotbed_stream *stream);

/* The same for a context. `status` is the result of this rank's checks; the first collection is
 * valid. */
hotbed_status hotbed_sharded_agree_context(
    uint32_t n, hotbed_sharded *const *collections, hotbed_status status, hotbed_stream *stream);

/* The name of a plan, for texts: "fixed". */
const char *hotbed_plan_name(hotbed_plan plan);

/* Growth (sharded_growth.c): create and destroy the lock and the event that order it with evals. */
hotbed_status hotbed_sharded_growth_create(hotbed_sharded *sharded, hotbed_stream *stream);
void hotbed_sharded_growth_destroy(hotbed_sharded *sharded);

/* Poll for growth if enough prefetches have passed since the last poll. Called before a prefetch is
 * enqueued. Errors: as hotbed_sharded_poll_growth(). */
hotbed_status hotbed_sharded_growth_due(hotbed_sharded *sharded, hotbed_stream *stream);

/* Evals are enqueued between these two calls: after earlier growths, and before later ones. */
hotbed_status hotbed_sharded_search_begin(hotbed_sharded *sharded, hotbed_stream *stream);
hotbed_status hotbed_sharded_search_end(
    hotbed_sharded *sharded, hotbed_status status, hotbed_stream *stream);

/* --- contexts --------------------------------------------------------------------------------------- */

/* Rows or messages for, or from, each rank: at[p] + offset. */
typedef struct hotbed_ends {
    uint8_t **at; /* [world] device */
    uint64_t offset;
} hotbed_ends;

typedef struct hotbed_path {
    uint64_t capacity; /* capacity of a message in keys; 0: exact */
    uint64_t bound;    /* upper bound of the keys received */
    uint64_t num_keys; /* keys of this batch: `bound` unless the host knows the number */
    hotbed_memory memory;
    hotbed_ticket *ticket;
    hotbed_ends to, from; /* messages */
    /* Rows or sums that the owner sends and the requester receives, gradients the other way. */
    hotbed_ends owner_out, owner_in, requester_in, requester_out;
    uint64_t items;          /* rows or sums for which there is space per rank; 0: exact */
    uint8_t *send, *receive; /* exact: messages */
    uint32_t *arrived;       /* [world] device: keys received from each rank */
    /* rows travel: device, where the rows are that the rank requests of itself */
    uint8_t **own_rows;
    /* Rows that travel, and then their gradients, rank by rank; they include rows that the rank
     * requests from itself. One-sided: `owner_rows` is in the window, for gradients only. One rank:
     * `owner_rows` is the lookup's output, in the order of the batch. */
    uint8_t *owner_rows, *requester_rows;
    /* f32: packed gradients by the number of the row or bag, and sums before they are packed */
    float *wide;
    hotbed_gather_view gather;
    /* exact, sums: the places of bags between this rank and others, as requester and as owner */
    uint32_t *requester_places, *owner_places;
    /* exact: [6 * world] host, bytes for the communicator: of messages out and in, of rows requested
     * and owned, of gradients requested and owned */
    uint64_t *sizes;
} hotbed_path;

/* The latest call of a batch. */
typedef enum hotbed_stage {
    HOTBED_STAGE_EMPTY = 0,
    HOTBED_STAGE_INPUT_DIST,
    HOTBED_STAGE_WAIT_SPLITS,
    HOTBED_STAGE_WAIT_INPUT,
    HOTBED_STAGE_PREFETCH, /* from here on per collection */
    HOTBED_STAGE_COMPUTE,
    HOTBED_STAGE_OUTPUT_DIST,
    HOTBED_STAGE_WAIT_OUTPUT,
    HOTBED_STAGE_BACKWARD_DIST,
    HOTBED_STAGE_UPDATE,
} hotbed_stage;

typedef struct hotbed_part hotbed_part;
typedef struct hotbed_member hotbed_member;

/* What a part does in the stages of a batch: with one rank, or with several as a sequence or
 * pooled. Chosen when the context is created. */
typedef struct hotbed_part_calls {
    /* Create the part's memory and the path of the plan. */
    hotbed_status (*create)(hotbed_part *part, hotbed_stream *stream);
    /* Called after prefetch: make the occurrences of the ticket's keys refer to the rows of
     * gradients that update() passes to the lookup. NULL: they need not. */
    hotbed_status (*place_gradients)(const hotbed_part *part, hotbed_stream *stream);
    hotbed_status (*compute)(const hotbed_part *part, hotbed_stream *stream);
    hotbed_status (*wait_output)(
        const hotbed_part *part, void *output, uint64_t stride, hotbed_stream *stream);
    hotbed_status (*backward_dist)(
        hotbed_part *part, const void *gradient, uint64_t stride, hotbed_stream *stream);
    hotbed_status (*update)(const hotbed_part *part, hotbed_stream *stream);
} hotbed_part_calls;

/* What a context does with one rank, which sends nothing, or with several. */
typedef struct hotbed_context_calls {
    /* Begin a batch of the member. */
    hotbed_status (*start)(
        hotbed_sharded_context *context, hotbed_member *m, hotbed_stream *stream);
    /* Send the messages, or, with `exact`, their sizes. */
    hotbed_status (*send)(hotbed_sharded_context *context, bool exact, hotbed_stream *stream);
    /* hotbed_sharded_read() and hotbed_sharded_backward(). */
    hotbed_status (*read)(
        hotbed_sharded_context *context, uint32_t number, void *output, uint64_t stride,
        hotbed_stream *stream);
    hotbed_status (*backward)(
        hotbed_sharded_context *context, uint32_t number, const void *gradient, uint64_t stride,
        hotbed_stream *stream);
} hotbed_context_calls;

/* A part of a collection of one rank. */
typedef struct hotbed_alone_part {
    uint64_t row_bytes;         /* of the rows in path->owner_rows; 0: pooled */
    const uint32_t *bag_starts; /* the first key of each bag of `batch`, if it was computed */
    float *sums;                /* pooling NONE: [max_keys, dim] f32 */
    float *pooled;              /* [max_batch_size, columns] */
} hotbed_alone_part;

struct hotbed_part {
    const hotbed_part_calls *calls;
    hotbed_sharded_context *context;
    hotbed_member *member; /* its collection in the context */
    hotbed_sharded *sharded;
    hotbed_group *group;
    hotbed_memory memory;
    hotbed_batch batch; /* of the lookup */
    hotbed_pick_view pick;
    /* Pooling NONE: where the keys of the part are in the caller's batch; NULL: in the same places. */
    const uint32_t *sources;
    uint32_t *mapped;      /* [num_features] numbers of the part's features in the batch */
    bool features_current; /* the work enqueued so far leaves `mapped` in pick.features */
    /* A recorded graph writes pick.features, and its launches are not seen here. */
    bool features_recorded;
    hotbed_step_view dedup; /* distinct keys, and the sums of their gradients */
    void *scratch;
    size_t scratch_bytes;
    void *dedup_scratch; /* dedup: of the keys and of the sums of gradients */
    uint32_t *num_keys;  /* device: number of keys of the batch, and of sent keys */
    const uint32_t *num_sent;
    /* dedup: [max_keys] where the row of each distinct key is, or the sum of its gradients goes;
     * sums: [bags of all ranks] where the owner's sum of a bag goes, or its gradient is */
    uint8_t **addresses;
    hotbed_dedup_rows rows; /* pooled, rows: the form of rows that travel */
    /* packed gradients: the number of optimizer steps before the batch's update */
    uint64_t *step;
    int64_t *offsets; /* one rank: of `batch`; pooled, rows: of the requester's bags */
    uint32_t *bags;   /* pooled, rows: [max_keys] for the dedup */
    hotbed_alone_part alone;
    hotbed_bucketize_view bucketize;
    /* hotbed_sharded_read(), during the call, if the batch trains: the part reads its own rows where the
     * tables have them */
    bool reads;
    /* hotbed_sharded_backward(), during the call: the caller's gradient */
    const void *gradient;
    uint64_t gradient_stride;
    uint64_t message_at;                     /* offset of the part in the bytes for one rank */
    uint64_t window_requester, window_owner; /* one-sided: offsets of rows in the window */
    hotbed_path paths[2];                    /* the plan's path, the exact path */
    hotbed_path *path;                       /* path of this batch */
};

/* One collection of a context. */
struct hotbed_member {
    hotbed_sharded *sharded;
    uint32_t first_part;
    hotbed_memory memory;
    uint32_t *starts, *bad, *bases; /* device: of the kjt */
    uint32_t features_most;
    uint64_t rows_most;
    hotbed_kjt kjt;
    bool training; /* the mode when the batch was started */
    hotbed_stage stage;
};

enum { HOTBED_MEMBERS_MOST = 64 };

struct hotbed_sharded_context {
    hotbed_comm *comm;
    uint32_t rank, world, num_members, num_parts;
    hotbed_plan plan;
    hotbed_overflow policy;
    const hotbed_context_calls *calls;
    hotbed_backend backend;
    int device;
    hotbed_member *members;
    hotbed_part *parts;
    hotbed_stage stage;  /* up to WAIT_INPUT */
    hotbed_event *event; /* recorded after the context's last work */
    uint64_t recording;  /* number of the recording that the last call was in; 0: none */
    /* Branches of a stream and of the one beside it that input_dist and compute leave open: they group
     * occurrences, which only backward reads. `grouped` is recorded at their ends. */
    hotbed_event *grouped[2];
    const hotbed_stream *behind; /* the stream, to be compared only; NULL: they are joined */
    hotbed_event *arrived;       /* recorded after the copies to `pinned`, which the host reads */
    hotbed_memory memory;        /* device: counts, matrix, overflow words, fixed messages */
    hotbed_memory pinned;
    /* [parts][2][world] keys for each rank; exact: bags that travel between it and this rank */
    uint32_t *counts;
    uint32_t *matrix;        /* [world][parts][2][world] the counts of all ranks */
    uint32_t *overflow;      /* one word: whether this rank's batch overflows */
    uint32_t *overflows;     /* [parts] whether any rank's batch overflows: the same on all ranks */
    uint32_t *host_matrix;   /* pinned */
    uint64_t *host_overflow; /* whether any rank's batch overflows */
    uint64_t *repeated, *host_repeated; /* device and pinned: batches in a row that overflowed */
    uint8_t *send, *receive;            /* FIXED: [world] messages of all parts */
    uint64_t message_bytes;             /* bytes of all parts' messages for one rank */
    hotbed_window *window;
    uint64_t window_bytes; /* of this rank */
    bool may_overflow;     /* possible with the plan's capacities */
    bool watched;          /* the device writes host_overflow for this batch */
    bool settled;          /* the host has read it */
    bool replayed;
    bool rewound; /* since the keys of the batch were sent, or since the last compute */
};

/* Begin a call: check the arguments, and make `stream` wait for the context's work so far. `call`
 * is the function's name, for messages. */
hotbed_status hotbed_sharded_context_enter(
    hotbed_sharded_context *context, hotbed_stream *stream, const char *call);
/* End a call: record the context's event after the work that the call enqueued. */
hotbed_status hotbed_sharded_context_leave(hotbed_sharded_context *context, hotbed_stream *stream);
/* Leave the branches of the stream open until hotbed_sharded_context_catch_up(), which calls make
 * before they use the groups of occurrences, or start another batch. */
hotbed_status hotbed_sharded_context_leave_open(
    hotbed_sharded_context *context, hotbed_stream *stream);
hotbed_status hotbed_sharded_context_catch_up(
    hotbed_sharded_context *context, hotbed_stream *stream);
/* Return STATE: the batch is not in the stage that the call needs. */
hotbed_status hotbed_sharded_context_fail_stage(const char *call, hotbed_stage stage);
/* Check whether the batch overflowed, and send it again if the policy says so. */
hotbed_status hotbed_sharded_context_settle(hotbed_sharded_context *context, hotbed_stream *stream);

/* The stage of a batch. Shortcuts set the context back to it any number of times, also after the
 * batch is over. The results of earlier stages are still in the context, except rows that travel:
 * gradients overwrite them. A point between compute and wait_output is valid until backward_dist. */
typedef struct hotbed_sharded_point {
    hotbed_stage stage, members[HOTBED_MEMBERS_MOST];
    bool watched, settled, replayed;
} hotbed_sharded_point;

/* Save the batch's stage, and keep its rows pinned until hotbed_sharded_forget(), or until another
 * batch is started. Asynchronous. Errors: STATE (no batch is in flight), and as
 * hotbed_ticket_keep(). */
hotbed_status hotbed_sharded_keep(
    hotbed_sharded_context *context, hotbed_sharded_point *point, hotbed_stream *stream);
hotbed_status hotbed_sharded_rewind(
    hotbed_sharded_context *context, const hotbed_sharded_point *point, hotbed_stream *stream);
hotbed_status hotbed_sharded_forget(hotbed_sharded_context *context, hotbed_stream *stream);

/* Create memory and views of all parts.
 * Errors: MEMORY, DEVICE. */
hotbed_status hotbed_parts_create(hotbed_sharded_context *context, hotbed_stream *stream);
void hotbed_parts_destroy(hotbed_sharded_context *context);

/* Create the exact path of every part, for a batch that overflowed. Synchronous the first time. */
hotbed_status hotbed_parts_make_exact(hotbed_sharded_context *context, hotbed_stream *stream);

/* Create the memory, views and path of a part that exchanges messages. */
hotbed_status hotbed_part_create(hotbed_part *part, hotbed_stream *stream);

/* Of several ranks: reset the overflow words before the keys of a batch are sent, or sent again; send
 * of hotbed_context_calls; and make one batch of the received messages. */
hotbed_status hotbed_exchange_clear(hotbed_sharded_context *context, hotbed_stream *stream);
hotbed_status hotbed_exchange_send(
    hotbed_sharded_context *context, bool exact, hotbed_stream *stream);
hotbed_status hotbed_exchange_gather(hotbed_sharded_context *context, hotbed_stream *stream);

/* After `send` with `exact`: wait for the sizes of all ranks, then send the messages. */
hotbed_status hotbed_exchange_sizes(hotbed_sharded_context *context, hotbed_stream *stream);

/* Whether rows and gradients of the path are in the ranks' windows: the kernels that make them
 * write them there, and a barrier follows in the same call. */
static inline bool hotbed_path_in_window(
    const hotbed_sharded_context *context, const hotbed_path *path) {
    return context->window != NULL && path->capacity != 0;
}

/* Send rows of one part, or their gradients, to the other side. */
hotbed_status hotbed_exchange_rows(hotbed_part *part, bool gradients, hotbed_stream *stream);

/* The part's rows, or gradients, as kernels see them, with these ends. */
hotbed_deliver_view hotbed_part_deliver(const hotbed_part *part, hotbed_ends ends, bool gradients);

/* The part's bags as kernels see them, with these ends: the requester's or, with `owner`, the
 * owner's. */
hotbed_bags_view hotbed_part_bags(
    const hotbed_part *part, hotbed_ends ends, bool gradients, bool owner);

/* Whether the caller's gradients travel as they are. */
bool hotbed_part_sends_plainly(const hotbed_sharded *sharded);

/* Keep the number of optimizer steps for the gradients of a batch, which are rounded by it: computes are
 * ordered with updates, and backward_dist need not be. */
hotbed_status hotbed_part_keep_step(const hotbed_part *part, hotbed_stream *stream);

/* The part's sums and bags as kernels see them, for bags that begin at `starts`. */
hotbed_pool_view hotbed_part_pool(
    const hotbed_part *part, const uint32_t *starts, uint32_t batch_size);

/* The number that a feature of the collection has in the batch; num_features if the batch lacks it.
 * Tries `guess` first. */
uint32_t hotbed_part_find_feature(
    const hotbed_sharded *c, const hotbed_kjt *kjt, uint32_t feature, uint32_t guess);

/* Find the part's features in the batch: sets `mapped`. */
void hotbed_part_map_features(hotbed_part *part, const hotbed_kjt *kjt);

/* Copy `mapped` to pick.features, unless pick.features has it already. Called before the features
 * are picked. A recorded graph always copies, because other graphs and batches may run between the
 * recording and its launches; once one is recorded, every batch copies. */
hotbed_status hotbed_part_put_features(hotbed_part *part, hotbed_stream *stream);

/* Whether the batch has the part's features and no others, in their order, so that its arrays are
 * the part's. The features must have been mapped. */
static inline bool hotbed_part_has_order_of(const hotbed_part *part, const hotbed_kjt *kjt) {
    uint32_t f = 0;
    if (kjt->strides != NULL || kjt->num_features != part->group->num_features)
        return false;
    while (f < kjt->num_features && part->mapped[f] == f)
        f++;
    return f == kjt->num_features;
}

/* --- statistics (sharded_wire.c) ------------------------------------------------------------- */

hotbed_status hotbed_wire_create(hotbed_sharded *sharded, hotbed_stream *stream);

/* The messages of the part's path, for the kernel that reads them. */
hotbed_wire_view hotbed_wire_keys(const hotbed_part *part);

/* What a phase of the batch moves: rows or sums, or gradients. */
hotbed_wire_view hotbed_wire_rows(const hotbed_part *part, hotbed_wire_phase phase);

/* --- stages (sharded_step.c; sharded_alone.c, sharded_ranks.c) ----------------------------------------- */

extern const hotbed_part_calls hotbed_alone_calls, hotbed_sequence_calls, hotbed_pooled_rows_calls,
    hotbed_pooled_sums_calls;
extern const hotbed_context_calls hotbed_ranks_calls, hotbed_alone_context_calls;

/* The parts of a collection, and of a context, do not depend on each other. Work of the first one is
 * enqueued on `stream`, of the others on *beside, between these two calls. Collectives are not, as
 * their order must be the same on all ranks. */
static inline hotbed_status hotbed_parts_fork(
    uint32_t parts, hotbed_stream *stream, hotbed_stream **beside) {
    *beside = stream;
    return parts > 1 ? hotbed_stream_beside(stream, beside) : HOTBED_OK;
}

static inline hotbed_status hotbed_parts_join(hotbed_status status, hotbed_stream *stream) {
    hotbed_status joined = hotbed_stream_join_beside(stream);
    return status != HOTBED_OK ? status : joined;
}

/* Begin and end a call on collection `number`. begin() checks the call and orders the stream after
 * the context's work; *out is the collection's member. */
hotbed_status hotbed_step_begin(
    hotbed_sharded_context *context, uint32_t number, hotbed_stream *stream, const char *call,
    hotbed_stage stage, hotbed_member **out);
hotbed_status hotbed_step_end(
    hotbed_sharded_context *context, hotbed_member *m, hotbed_stage stage, hotbed_stream *stream);

/* Begin a call that reads rows, which may or may not have been prefetched, or one that takes
 * gradients. A *stride of 0 becomes the least stride. */
hotbed_status hotbed_step_begin_read(
    hotbed_sharded_context *context, uint32_t number, hotbed_stream *stream, const char *call,
    hotbed_member **out);
hotbed_status hotbed_step_begin_backward(
    hotbed_sharded_context *context, uint32_t number, const void *gradient, uint64_t *stride,
    hotbed_stream *stream, const char *call, hotbed_member **out);

/* Prefetch the member's rows if the batch trains and they have not been. Then *open is true: what
 * backward needs is on branches, and the caller calls hotbed_sharded_context_leave_open(), also after
 * an error. */
hotbed_status hotbed_step_prepare(
    hotbed_sharded_context *context, hotbed_member *m, bool *open, hotbed_stream *stream);

/* hotbed_sharded_compute() in hotbed_sharded_read(), after hotbed_step_begin_read(). If the member can
 * be read in pieces, `output` is complete afterwards, and the stage is WAIT_OUTPUT, otherwise COMPUTE. */
hotbed_status hotbed_step_read(
    hotbed_sharded_context *context, hotbed_member *m, void *output, uint64_t stride,
    hotbed_stream *stream);

/* The stages compute and wait_output of a sequence's part with dedup, for its tables first .. end-1
 * (sharded_rows.c). A barrier of the window comes between the two. */
hotbed_status hotbed_rows_compute_tables(
    const hotbed_part *part, uint32_t first, uint32_t end, hotbed_stream *stream);
hotbed_status hotbed_rows_take_tables(
    const hotbed_part *part, uint32_t first, uint32_t end, void *output, uint64_t stride,
    hotbed_stream *stream);

/* The stride of the caller's rows without gaps. */
static inline uint64_t hotbed_step_least_stride(const hotbed_sharded *c) {
    return c->pooling == HOTBED_POOL_NONE ? c->dim : hotbed_sharded_columns(c);
}

/* Check the caller's output or gradient. */
hotbed_status hotbed_step_check_rows(
    const hotbed_member *m, const void *rows, const char *name, uint64_t *stride);

/* Write the lookup's output to `output`; hotbed_part_compute_to() writes it where `to` says. */
hotbed_status hotbed_step_compute(
    const hotbed_part *part, void *output, uint64_t stride, hotbed_stream *stream);
hotbed_status hotbed_part_compute_to(
    const hotbed_part *part, const hotbed_scatter_view *to, hotbed_stream *stream);

static inline hotbed_part *hotbed_step_part(
    const hotbed_sharded_context *context, const hotbed_member *m, uint32_t group) {
    return &context->parts[m->first_part + group];
}
