/* serve/publisher.c - copies on the trainer's thread; files, and the agreement of ranks, on its own. */
#define _DEFAULT_SOURCE /* getentropy() */
#include "serve/publisher.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/options.h"
#include "base/stream.h"
#include "base/thread.h"
#include "serve/directory.h"
#include "serve/encode.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BASE_EVERY = 16 };

/* What a rank tells the others about its part of a cut, or of a create. The keys of its tables follow. */
typedef struct report {
    uint32_t status;
    uint32_t named;    /* rank 0: the cut's file may have its name */
    uint32_t whole;    /* the rank has to publish all rows */
    uint64_t step;     /* create: the digest of tables and options */
    uint64_t number;   /* create: rank 0's highest number */
    hotbed_digest run; /* create: rank 0's */
    hotbed_cut_part part;
    hotbed_error error;
} report;

typedef enum work {
    WORK_NONE = 0,
    WORK_CUT = 1, /* write the copy */
    WORK_END = 2,
} work;

struct hotbed_publisher {
    hotbed_storage **all; /* owned copy of the caller's array */
    hotbed_storages storages;
    hotbed_route *routes; /* owned, or NULL */
    hotbed_dtype *dtypes;
    hotbed_cut_table *tables;
    hotbed_cut_part *parts; /* [world] */
    hotbed_source *source;
    hotbed_directory directory;
    hotbed_publish_options options;
    uint32_t rank, world;
    hotbed_stream *stream; /* of the communicator */
    /* reports of all ranks, each of report_bytes; the first one is this rank's to send */
    size_t report_bytes;
    unsigned char *reports;

    /* of the publisher's thread while it works */
    hotbed_cut_head head; /* of the last cut, or of the one that is being written */
    uint64_t parent;      /* number of the last cut; 0: the next one is a base */
    hotbed_digest before;
    uint64_t since_base; /* cuts, the base included */
    bool base;           /* whether the copy has all rows */
    uint64_t *bases;     /* [num_bases] of which [0] is the oldest one that is kept */
    uint64_t num_bases, base_capacity;

    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    work work;
    hotbed_status failed; /* of the last cut, until a call returns it */
    hotbed_error error;
    hotbed_publish_stats stats;
};

/* --- ranks ------------------------------------------------------------------------------------ */

static report *report_of(const hotbed_publisher *p, uint32_t rank) {
    return (void *)(p->reports + (rank + 1) * p->report_bytes);
}

static report *report_own(const hotbed_publisher *p) {
    return (void *)p->reports;
}

static uint64_t *report_keys(report *r) {
    return (uint64_t *)(void *)(r + 1);
}

static void report_status(report *r, hotbed_status status) {
    r->status = (uint32_t)status;
    if (status != HOTBED_OK)
        hotbed_error_copy(&r->error);
}

/* Exchange the reports, and fail on all ranks if one failed, with its text. */
static hotbed_status agree(hotbed_publisher *p) {
    report *own = report_own(p);
    if (p->world == 1) {
        memcpy(report_of(p, 0), own, p->report_bytes);
        return (hotbed_status)own->status; /* the thread's last error is this rank's */
    }
    HOTBED_TRY(
        hotbed_comm_all_gather(p->options.comm, p->report_bytes, own, report_of(p, 0), p->stream));
    HOTBED_TRY(hotbed_stream_sync(p->stream));
    for (uint32_t r = 0; r < p->world; r++) {
        report *of = report_of(p, r);
        if (of->status != HOTBED_OK && r == p->rank)
            return (hotbed_status)of->status;
        if (of->status != HOTBED_OK)
            return hotbed_error_rank(
                hotbed_fail_again(
                    &of->error.fields, (hotbed_status)of->status, "rank %" PRIu32 ": %s", r,
                    of->error.text),
                r);
    }
    return HOTBED_OK;
}

/* --- a cut ------------------------------------------------------------------------------------ */

static hotbed_status show(hotbed_publisher *p, bool cut) {
    if (p->options.file == NULL)
        return HOTBED_OK;
    const hotbed_cut_file name =
        cut ? hotbed_cut_name(p->head.number) : hotbed_rows_name(p->head.number, p->rank);
    return hotbed_directory_show(&p->directory, name.text, p->options.file, p->options.context);
}

/* Write the rows of this rank, and tell the others. */
static hotbed_status write_part(hotbed_publisher *p, hotbed_publish_stats *stats) {
    report *own = report_own(p);
    memset(own, 0, p->report_bytes);
    hotbed_status status = hotbed_rows_write(
        &p->directory, &p->head, p->tables, p->rank, p->source, p->dtypes, &own->part,
        report_keys(own), &stats->last_rows, &stats->last_erased);
    HOTBED_THEN(status, show(p, false));
    report_status(own, status);
    own->step = p->head.step;
    stats->last_bytes = own->part.bytes;
    HOTBED_TRY(agree(p));
    for (uint32_t r = 0; r < p->world; r++)
        if (report_of(p, r)->step != p->head.step)
            return hotbed_fail_rank_limit(
                HOTBED_ERR_STATE, r, "step", (double)report_of(p, r)->step, p->head.step,
                "rank %" PRIu32 " publishes step %" PRIu64 ", rank %" PRIu32 " step %" PRIu64
                "; all ranks publish the same step",
                r, report_of(p, r)->step, p->rank, p->head.step);
    return HOTBED_OK;
}

/* Name the cut, on rank 0, and tell the others. *named says whether readers may see it. */
static hotbed_status write_cut(hotbed_publisher *p, bool *named) {
    report *own = report_own(p);
    hotbed_status status = HOTBED_OK;
    hotbed_digest digest = p->before;
    if (p->rank == 0) {
        for (uint32_t t = 0; t < p->head.tables; t++)
            p->tables[t].keys = 0;
        for (uint32_t r = 0; r < p->world; r++) {
            p->parts[r] = report_of(p, r)->part;
            for (uint32_t t = 0; t < p->head.tables; t++)
                p->tables[t].keys += report_keys(report_of(p, r))[t];
        }
        status = hotbed_cut_write(&p->directory, &p->head, p->tables, p->parts, &digest, named);
        HOTBED_THEN(status, show(p, true));
    }
    memset(own, 0, p->report_bytes);
    report_status(own, status);
    own->named = *named;
    status = agree(p);
    *named = report_of(p, 0)->named != 0;
    if (status == HOTBED_OK) /* otherwise the next increment follows the cut before */
        p->before = digest;
    return status;
}

static hotbed_status remember_base(hotbed_publisher *p) {
    HOTBED_TRY_MEMORY(
        hotbed_reserve(&p->bases, p->num_bases, 1, &p->base_capacity, sizeof *p->bases),
        "%" PRIu64 " bases", p->num_bases + 1);
    p->bases[p->num_bases++] = p->head.number;
    return HOTBED_OK;
}

/* Remove what comes before the oldest base that is kept. The cut is complete: a failure here is counted. */
static void trim(hotbed_publisher *p, hotbed_publish_stats *stats) {
    uint32_t keep = p->options.keep_bases;
    if (p->rank != 0 || remember_base(p) != HOTBED_OK || p->num_bases <= keep)
        return;
    uint64_t drop = p->num_bases - keep, failed = 0;
    if (hotbed_directory_trim(&p->directory, p->bases[drop], &failed) != HOTBED_OK)
        failed++;
    stats->not_removed += failed;
    p->num_bases = keep;
    memmove(p->bases, p->bases + drop, keep * sizeof *p->bases);
}

/* Write the copy as a cut. */
static hotbed_status write_copy(hotbed_publisher *p, hotbed_publish_stats *stats) {
    bool named = false;
    bool base = p->base;
    p->head.number++; /* also after a failure: a number is used for one cut only */
    p->head.parent = base ? 0 : p->parent;
    p->head.before = base ? (hotbed_digest){0} : p->before;
    p->head.base = base ? p->head.number : p->head.base;
    hotbed_status status = p->head.number <= HOTBED_CUT_NUMBER_MOST
                               ? write_part(p, stats)
                               : hotbed_fail(HOTBED_ERR_STATE, "all numbers of cuts are used");
    HOTBED_THEN(status, write_cut(p, &named));
    if (status != HOTBED_OK) {
        hotbed_error error;
        hotbed_error_copy(&error);
        if (named)
            p->parent = 0; /* readers may have it or not: only a base follows both */
        else
            hotbed_rows_remove(&p->directory, p->head.number, p->rank);
        if (base || p->options.file != NULL) /* `file` may have a part of the cut */
            p->parent = 0;
        return hotbed_error_return(&error, status);
    }
    hotbed_source_settle(p->source);
    p->parent = p->head.number;
    p->since_base = base ? 1 : p->since_base + 1;
    stats->cuts++;
    stats->bases += base;
    stats->number = p->head.number;
    stats->step = p->head.step;
    stats->rows += stats->last_rows;
    stats->erased += stats->last_erased;
    stats->bytes += stats->last_bytes;
    if (base)
        trim(p, stats);
    return HOTBED_OK;
}

static void *run(void *argument) {
    hotbed_publisher *p = argument;
    pthread_mutex_lock(&p->lock);
    while (p->work != WORK_END) {
        if (p->work == WORK_NONE) {
            pthread_cond_wait(&p->changed, &p->lock);
            continue;
        }
        hotbed_publish_stats stats = p->stats;
        pthread_mutex_unlock(&p->lock);
        double begin = hotbed_monotonic_seconds();
        hotbed_status status = write_copy(p, &stats);
        stats.last_write_seconds = hotbed_monotonic_seconds() - begin;
        stats.failed += status != HOTBED_OK;
        pthread_mutex_lock(&p->lock);
        p->stats = stats;
        p->failed = status;
        if (status != HOTBED_OK)
            hotbed_error_copy(&p->error);
        p->work = WORK_NONE;
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* --- calls ------------------------------------------------------------------------------------ */

/* Wait until no cut is being written. Returns the failure of the last one, once. */
static hotbed_status settle(hotbed_publisher *p) {
    HOTBED_TRY(hotbed_fork_check()); /* a forked process does not have the thread */
    double begin = hotbed_monotonic_seconds();
    pthread_mutex_lock(&p->lock);
    while (p->work == WORK_CUT)
        pthread_cond_wait(&p->changed, &p->lock);
    p->stats.wait_seconds += hotbed_monotonic_seconds() - begin;
    hotbed_status status = p->failed;
    p->failed = HOTBED_OK;
    pthread_mutex_unlock(&p->lock);
    return status == HOTBED_OK ? HOTBED_OK : hotbed_error_return(&p->error, status);
}

/* Decide whether the next cut is a base; with several ranks, whether one of them needs it. */
static hotbed_status choose_base(hotbed_publisher *p, hotbed_stream *stream) {
    p->base = p->parent == 0 || p->since_base >= p->options.base_every;
    hotbed_status status = hotbed_source_begin(p->source, &p->base, stream);
    if (p->world == 1)
        return status;
    report *own = report_own(p);
    memset(own, 0, p->report_bytes);
    report_status(own, status);
    own->whole = p->base;
    HOTBED_TRY(agree(p));
    for (uint32_t r = 0; r < p->world; r++)
        p->base = p->base || report_of(p, r)->whole != 0;
    return HOTBED_OK;
}

/* Copy the rows. If a rank cannot, all end the publish, so that they go on with the same exchanges. */
static hotbed_status take_copy(hotbed_publisher *p, hotbed_stream *stream) {
    const hotbed_status status = hotbed_source_take(p->source, p->base, stream);
    if (p->world == 1)
        return status;
    memset(report_own(p), 0, p->report_bytes);
    report_status(report_own(p), status);
    return agree(p);
}

hotbed_status hotbed_publisher_publish(hotbed_publisher *p, uint64_t step, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_check_pointer("publisher", p));
    HOTBED_TRY(hotbed_check_pointer("stream", stream));
    HOTBED_TRY(settle(p));
    double begin = hotbed_monotonic_seconds();
    p->head.step = step;
    p->head.created_ns = hotbed_realtime_now();
    HOTBED_TRY(choose_base(p, stream));
    HOTBED_TRY(take_copy(p, stream));
    pthread_mutex_lock(&p->lock);
    p->stats.last_copy_seconds = hotbed_monotonic_seconds() - begin;
    p->stats.copy_seconds += p->stats.last_copy_seconds;
    p->work = WORK_CUT;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return HOTBED_OK;
}

hotbed_status hotbed_publisher_wait(hotbed_publisher *p) {
    HOTBED_TRY(hotbed_check_pointer("publisher", p));
    return settle(p);
}

bool hotbed_publisher_busy(const hotbed_publisher *publisher) {
    hotbed_publisher *p = (hotbed_publisher *)publisher; /* its lock changes */
    if (p == NULL)
        return false;
    pthread_mutex_lock(&p->lock);
    bool busy = p->work == WORK_CUT;
    pthread_mutex_unlock(&p->lock);
    return busy;
}

hotbed_status hotbed_publisher_stats(const hotbed_publisher *publisher, hotbed_publish_stats *out) {
    hotbed_publisher *p = (hotbed_publisher *)publisher; /* its lock changes */
    HOTBED_TRY(hotbed_check_pointer("publisher", p));
    HOTBED_TRY(hotbed_output_check(out, "hotbed_publish_stats"));
    pthread_mutex_lock(&p->lock);
    hotbed_publish_stats stats = p->stats;
    pthread_mutex_unlock(&p->lock);
    hotbed_output_write(out, &stats, sizeof stats);
    return HOTBED_OK;
}

void hotbed_publisher_destroy(hotbed_publisher *p) {
    if (p == NULL || hotbed_forked()) /* the thread and its locks are not here: the memory stays */
        return;
    if (p->started) {
        pthread_mutex_lock(&p->lock);
        while (p->work == WORK_CUT)
            pthread_cond_wait(&p->changed, &p->lock);
        p->work = WORK_END;
        pthread_cond_broadcast(&p->changed);
        pthread_mutex_unlock(&p->lock);
        pthread_join(p->thread, NULL);
    }
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    hotbed_directory_close(&p->directory);
    hotbed_source_destroy(p->source);
    hotbed_storages_close(&p->storages);
    hotbed_stream_destroy(p->stream);
    hotbed_delete(p->all);
    hotbed_delete(p->routes);
    hotbed_delete(p->dtypes);
    hotbed_delete(p->tables);
    hotbed_delete(p->parts);
    hotbed_delete(p->reports);
    hotbed_delete(p->bases);
    hotbed_delete(p);
}

/* --- create ----------------------------------------------------------------------------------- */

static hotbed_status no_memory(void) {
    return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for a publisher");
}

/* Copy the caller's arrays and options. */
static hotbed_status copy_options(
    hotbed_publisher *p, hotbed_storage *const *storages, uint32_t n,
    const hotbed_publish_options *options) {
    HOTBED_TRY(
        hotbed_options_read(&p->options, sizeof p->options, 8, options, "hotbed_publish_options"));
    p->options.base_every = p->options.base_every == 0 ? BASE_EVERY : p->options.base_every;
    p->options.keep_bases = p->options.keep_bases == 0 ? HOTBED_KEEP_BASES : p->options.keep_bases;
    p->world = p->options.comm == NULL ? 1 : hotbed_comm_size(p->options.comm);
    p->rank = p->options.comm == NULL ? 0 : hotbed_comm_rank(p->options.comm);
    if (p->options.comm != NULL && hotbed_comm_transport(p->options.comm) == HOTBED_TRANSPORT_NCCL)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT,
            "publisher_create: comm is of GPUs; a publisher needs one of sockets, MPI or threads");
    if (p->world > HOTBED_CUT_RANKS_MOST)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "comm", p->world, HOTBED_CUT_RANKS_MOST,
            "publisher_create: %" PRIu32 " ranks; a cut has at most %d", p->world,
            HOTBED_CUT_RANKS_MOST);
    if (storages != NULL && n > 0) {
        p->all = hotbed_new(n * sizeof(hotbed_storage *));
        if (p->all == NULL)
            return no_memory();
        memcpy(p->all, storages, n * sizeof(hotbed_storage *));
    }
    return hotbed_storages_open("publisher_create", p->all, n, &p->storages);
}

static hotbed_status check_route(
    const hotbed_publisher *p, const hotbed_table_info *info, const hotbed_route *route) {
    hotbed_route again;
    bool numbered = info->kind == HOTBED_TABLE_STATIC;
    if (hotbed_route_init(&again, route->kind, p->world, route->rows) != HOTBED_OK ||
        route->world != p->world ||
        (numbered && (route->kind == HOTBED_ROUTE_HASH_ROUND_ROBIN || route->rows == 0)))
        return hotbed_fail_table(
            HOTBED_ERR_ARGUMENT, info->name,
            "publisher_create: the route of table '%s' is of %" PRIu32 " ranks and %" PRIu64
            " rows; the communicator has %" PRIu32 " ranks",
            info->name, route->world, route->rows, p->world);
    return HOTBED_OK;
}

static hotbed_status describe_table(hotbed_publisher *p, uint32_t t) {
    hotbed_table_info info;
    HOTBED_TRY(hotbed_storages_info(&p->storages, t, &info));
    hotbed_encoding encoding =
        p->options.encodings == NULL ? p->options.encoding : p->options.encodings[t];
    if (hotbed_encoding_name(encoding) == NULL)
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "encoding", encoding,
            "publisher_create: table '%s' has encoding %d, which does not exist", info.name,
            (int)encoding);
    if (p->options.filters != NULL)
        HOTBED_TRY(hotbed_change_filter_check(
            hotbed_storages_of(&p->storages, t), hotbed_storages_number(&p->storages, t),
            &p->options.filters[t]));
    p->dtypes[t] = info.dtype;
    const hotbed_storage *storage = hotbed_storages_of(&p->storages, t);
    p->tables[t] = (hotbed_cut_table){
        .dim = info.dim,
        .encoding = encoding == HOTBED_ENCODING_TABLE ? hotbed_encoding_of(info.dtype) : encoding,
        .key_type = hotbed_storage_key_type(storage),
        .optimizer = p->options.states ? hotbed_storage_optimizer(storage)->kind : 0,
        .route = HOTBED_CUT_NO_ROUTE,
        .missing = info.eval_value,
    };
    snprintf(p->tables[t].name, sizeof p->tables[t].name, "%s", info.name);
    if (p->routes == NULL)
        return HOTBED_OK;
    HOTBED_TRY(check_route(p, &info, &p->routes[t]));
    p->tables[t].route = p->routes[t].kind;
    p->tables[t].route_rows = p->routes[t].rows;
    return HOTBED_OK;
}

static hotbed_status describe(hotbed_publisher *p) {
    uint32_t n = p->storages.num_tables;
    if ((p->options.routes == NULL) != (p->world == 1))
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "routes", p->world,
            "publisher_create: %" PRIu32 " ranks %s routes; several ranks need them, one has none",
            p->world, p->options.routes == NULL ? "without" : "with");
    p->dtypes = hotbed_new(n * sizeof *p->dtypes);
    p->tables = hotbed_new(n * sizeof *p->tables);
    p->parts = hotbed_new(p->world * sizeof *p->parts);
    p->report_bytes = sizeof(report) + n * sizeof(uint64_t);
    p->reports = hotbed_new((p->world + (size_t)1) * p->report_bytes);
    p->routes = p->options.routes == NULL ? NULL : hotbed_new(n * sizeof *p->routes);
    if (p->dtypes == NULL || p->tables == NULL || p->parts == NULL || p->reports == NULL ||
        (p->options.routes != NULL && p->routes == NULL))
        return no_memory();
    if (p->routes != NULL)
        memcpy(p->routes, p->options.routes, n * sizeof *p->routes);
    for (uint32_t t = 0; t < n; t++)
        HOTBED_TRY(describe_table(p, t));
    memcpy(p->head.magic, HOTBED_CUT_MAGIC, sizeof p->head.magic);
    p->head.version = HOTBED_CUT_VERSION;
    p->head.tables = n;
    p->head.world = p->world;
    return hotbed_source_create(
        &p->storages, p->tables, p->routes, p->options.filters, p->rank, &p->source);
}

/* Open the directory; rank 0 chooses the first number and the run. */
static hotbed_status open_directory(
    hotbed_publisher *p, const hotbed_io_calls *calls, const char *path) {
    HOTBED_TRY(hotbed_directory_open(calls, path, p->rank, &p->directory));
    if (p->rank != 0)
        return HOTBED_OK;
    hotbed_directory_list list;
    HOTBED_TRY(hotbed_directory_read(&p->directory, p->tables, p->head.tables, &list));
    p->head.number = list.highest;
    p->bases = list.bases;
    p->num_bases = p->base_capacity = list.num_bases;
    return getentropy(&p->head.run, sizeof p->head.run) == 0
               ? HOTBED_OK
               : hotbed_fail_os(HOTBED_ERR_IO, errno, "no random numbers");
}

/* Join the ranks. `status` is this rank's so far. */
static hotbed_status join(hotbed_publisher *p, hotbed_status status) {
    if (p->world == 1 || p->reports == NULL)
        return status;
    report *own = report_own(p);
    report_status(own, status);
    own->number = p->head.number;
    own->run = p->head.run;
    hotbed_digest tables = hotbed_digest_of(p->tables, p->head.tables * sizeof *p->tables);
    own->step = tables.low ^ (p->options.base_every * (uint64_t)0x9e3779b97f4a7c15U);
    HOTBED_TRY(agree(p));
    for (uint32_t r = 1; r < p->world; r++)
        if (report_of(p, r)->step != report_of(p, 0)->step)
            return hotbed_fail_rank(
                HOTBED_ERR_STATE, r,
                "publisher_create: rank %" PRIu32
                " has other tables, encodings, states, routes or base_every than rank 0",
                r);
    p->head.number = report_of(p, 0)->number;
    p->head.run = report_of(p, 0)->run;
    return HOTBED_OK;
}

static hotbed_status create(
    hotbed_publisher *p, const hotbed_io_calls *calls, const char *path,
    hotbed_storage *const *storages, uint32_t n, const hotbed_publish_options *options) {
    HOTBED_TRY(copy_options(p, storages, n, options));
    if (p->world > 1)
        HOTBED_TRY(hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &p->stream));
    hotbed_status status = describe(p);
    /* Rank 0 creates the directory before the others open it. */
    if (status == HOTBED_OK && p->rank == 0)
        status = open_directory(p, calls, path);
    HOTBED_TRY(join(p, status));
    if (p->rank != 0)
        status = open_directory(p, calls, path);
    HOTBED_TRY(join(p, status));
    int error = hotbed_thread_start(&p->thread, run, p);
    if (error != 0)
        return hotbed_fail_os(HOTBED_ERR_MEMORY, error, "publisher_create: cannot create a thread");
    p->started = true;
    return HOTBED_OK;
}

hotbed_status hotbed_publisher_create_with(
    const hotbed_io_calls *calls, const char *directory, hotbed_storage *const *storages,
    uint32_t num_storages, const hotbed_publish_options *options, hotbed_stream *stream,
    hotbed_publisher **out) {
    HOTBED_TRY_OUT(out);
    HOTBED_TRY(hotbed_check_pointer("directory", directory));
    HOTBED_TRY(hotbed_check_pointer("options", options));
    HOTBED_TRY(hotbed_check_pointer("stream", stream));
    if (directory[0] == '\0')
        return hotbed_fail_parameter(HOTBED_ERR_ARGUMENT, "directory", "directory is empty");
    hotbed_publisher *p = hotbed_new(sizeof *p);
    if (p == NULL)
        return no_memory();
    p->directory = (hotbed_directory){.file = HOTBED_IO_CLOSED, .lock = -1};
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    hotbed_status status = create(p, calls, directory, storages, num_storages, options);
    if (status != HOTBED_OK) {
        hotbed_error error;
        hotbed_error_copy(&error);
        hotbed_directory_discard(calls, directory, &p->directory);
        hotbed_publisher_destroy(p);
        return hotbed_error_return(&error, status);
    }
    *out = p;
    return HOTBED_OK;
}

hotbed_status hotbed_publisher_create(
    const char *directory, hotbed_storage *const *storages, uint32_t num_storages,
    const hotbed_publish_options *options, hotbed_stream *stream, hotbed_publisher **out) {
    return hotbed_publisher_create_with(
        &hotbed_io_system, directory, storages, num_storages, options, stream, out);
}
