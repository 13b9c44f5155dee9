/* checkpoint/redistribute.c - votes, and redistribution of rows from the ranks that read them to
 * their owners. */
#include "checkpoint/redistribute.h"

#include "base/error.h"
#include "base/stream.h"
#include "base/text.h"
#include "checkpoint/format/bucket_core.h"
#include "checkpoint/share.h"
#include "storage/types.h"

#include <inttypes.h>
#include <string.h>

enum {
    BALLOT_BYTES = 2304, /* a multiple of ALIGNMENT; holds any error */
    ROUND_BYTES =
        32 << 20, /* the most that a rank receives in a round, whatever the other ranks send */
    ALIGNMENT = 256,
};

/* Abort the communicator after a failure. A rank that cannot take part in a collective call would
 * otherwise leave the others waiting until the deadline. Keeps the error. */
static hotbed_status take_part(hotbed_comm *comm, hotbed_status status) {
    hotbed_error error;
    if (status == HOTBED_OK)
        return HOTBED_OK;
    hotbed_error_copy(&error);
    hotbed_comm_abort(comm, error.text, &error.fields);
    return hotbed_error_return(&error, status);
}

/* --- votes ------------------------------------------------------------------------------------------------ */

typedef union ballot {
    struct {
        hotbed_error error; /* its status is OK if the rank has not failed */
        char data[HOTBED_VOTE_BYTES];
    };
    char bytes[BALLOT_BYTES];
} ballot;

_Static_assert(sizeof(ballot) == BALLOT_BYTES, "an error and the data fit into a ballot");

static hotbed_status gather_ballots(
    hotbed_comm *comm, const ballot *own, ballot *all, hotbed_stream *stream) {
    uint32_t size = hotbed_comm_size(comm);
    hotbed_memory memory;
    HOTBED_TRY(hotbed_memory_alloc(
        stream, HOTBED_MEMORY_DEVICE, (size_t)(size + 1) * BALLOT_BYTES, NULL, &memory));
    char *device = memory.data;
    hotbed_status status = hotbed_copy(device, own, BALLOT_BYTES, stream);
    HOTBED_THEN(
        status, hotbed_comm_all_gather(comm, BALLOT_BYTES, device, device + BALLOT_BYTES, stream));
    HOTBED_THEN(
        status, hotbed_copy(all, device + BALLOT_BYTES, (size_t)size * BALLOT_BYTES, stream));
    HOTBED_THEN(status, hotbed_stream_sync(stream));
    if (status != HOTBED_OK) /* enqueued work uses the memory */
        status = hotbed_stream_settle(stream, status);
    hotbed_memory_free(&memory);
    return status;
}

/* Gather the ballots of all ranks. A fault that the caller's earlier work has latched stays latched:
 * it is no failure of the vote. */
static hotbed_status gather(
    hotbed_comm *comm, const ballot *own, ballot *all, hotbed_stream *stream) {
    hotbed_held_fault held;
    HOTBED_TRY(hotbed_stream_hold_fault(stream, &held));
    const hotbed_status status = gather_ballots(comm, own, all, stream);
    hotbed_stream_return_fault(stream, &held);
    return status;
}

/* Report a status and data to all ranks. If all report OK, the caller frees *out, the ballots;
 * otherwise it is NULL. */
static hotbed_status vote(
    hotbed_comm *comm, hotbed_status status, const void *data, size_t bytes, ballot **out,
    hotbed_stream *stream) {
    uint32_t size = hotbed_comm_size(comm);
    *out = NULL;
    ballot own = {.bytes = {0}};
    hotbed_error error;
    hotbed_error_copy(&error);
    if (status != HOTBED_OK) {
        own.error = error;
        own.error.fields.status = status;
    }
    if (bytes > 0)
        memcpy(own.data, data, bytes);
    ballot *all = hotbed_new(size * sizeof *all);
    hotbed_status gathered =
        all == NULL ? hotbed_fail(HOTBED_ERR_MEMORY, "no memory for %" PRIu32 " votes", size)
                    : gather(comm, &own, all, stream);
    gathered = take_part(comm, gathered);
    uint32_t first = 0;
    while (gathered == HOTBED_OK && first < size && all[first].error.fields.status == HOTBED_OK)
        first++;
    if (status != HOTBED_OK)
        status = hotbed_error_return(&error, status);
    else if (gathered != HOTBED_OK)
        status = gathered;
    else if (first < size)
        status = hotbed_error_rank(
            hotbed_fail_again(
                &all[first].error.fields, all[first].error.fields.status, "rank %" PRIu32 ": %s",
                first, all[first].error.text),
            first);
    else
        *out = all;
    if (*out == NULL)
        hotbed_delete(all);
    return status;
}

hotbed_status hotbed_vote_with(
    hotbed_comm *comm, hotbed_status status, void *data, size_t bytes, hotbed_stream *stream) {
    ballot *all = NULL;
    status = vote(comm, status, data, bytes, &all, stream);
    if (status == HOTBED_OK && bytes > 0)
        memcpy(data, all[0].data, bytes);
    hotbed_delete(all);
    return status;
}

hotbed_status hotbed_vote_sum(
    hotbed_comm *comm, hotbed_status status, uint64_t *counts, uint32_t n, hotbed_stream *stream) {
    enum { MOST = HOTBED_VOTE_BYTES / sizeof(uint64_t) };
    for (uint32_t first = 0, some; first < n; first += some) {
        ballot *all = NULL;
        some = n - first < MOST ? n - first : MOST;
        status = vote(comm, status, counts + first, some * sizeof *counts, &all, stream);
        if (status == HOTBED_OK)
            memset(counts + first, 0, some * sizeof *counts);
        for (uint32_t r = 0; status == HOTBED_OK && r < hotbed_comm_size(comm); r++)
            for (uint32_t i = 0; i < some; i++) {
                uint64_t count;
                memcpy(&count, all[r].data + i * sizeof count, sizeof count);
                counts[first + i] += count;
            }
        hotbed_delete(all);
        HOTBED_TRY(status);
    }
    return HOTBED_OK;
}

hotbed_status hotbed_vote(hotbed_comm *comm, hotbed_status status, hotbed_stream *stream) {
    return hotbed_vote_with(comm, status, NULL, 0, stream);
}

/* --- rounds ----------------------------------------------------------------------------------------------- */

/* The first and the last row that a rank has read. A part's order is checked by the rank that reads
 * it; where several ranks read a part, the order of neighbouring ranks' rows follows from these. */
typedef struct edges {
    uint64_t any; /* 0: it has read no row */
    uint64_t first_shard, first_key;
    uint64_t last_shard, last_key;
} edges;

/* A rank sends it to every other rank before the rows. */
typedef struct notice {
    uint64_t rows;   /* rows that the receiver gets in this round */
    uint64_t more;   /* not 0: the sender needs another round */
    uint64_t status; /* of the sender */
    edges edges;     /* of the sender */
} notice;

typedef struct rounds {
    const hotbed_redistribution *job;
    uint32_t world;
    uint64_t rows;                         /* the most that a rank sends in a round */
    size_t read_bytes[HOTBED_ROW_COLUMNS]; /* of a row in the file */
    size_t row_bytes[HOTBED_ROW_COLUMNS];  /* of a row in the storage */
    /* of values and states: in the file, in the storage */
    hotbed_column_form from[HOTBED_ROW_COLUMNS], to[HOTBED_ROW_COLUMNS];
    hotbed_memory host, device;
    void *taken[HOTBED_ROW_COLUMNS];  /* host, [rows]: in the order of reading */
    void *packed[HOTBED_ROW_COLUMNS]; /* host, [rows]: grouped by rank */
    void *send[HOTBED_ROW_COLUMNS];   /* device, [rows] */
    void *recv[HOTBED_ROW_COLUMNS];   /* device, [world * rows] */
    notice *sent, *received;          /* host, [world] */
    notice *device_sent, *device_received;
    uint32_t *owners; /* [rows] */
    uint64_t *bytes;  /* [HOTBED_ROW_COLUMNS][2][world]: sizes of each exchange */
    uint64_t at, end; /* the rows that this rank reads, numbered over all parts */
    uint32_t shard;   /* the shard that is being read */
    uint64_t first;   /* the number of this shard's first row */
    bool open;
    hotbed_shard_reader file;
    hotbed_part_reader part;
    edges edges;
    hotbed_status status; /* of this rank's reading and storing */
    hotbed_error error;   /* the first failure of this rank */
} rounds;

static size_t align(size_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void *carve(char *base, size_t *at, size_t bytes) {
    void *here = base == NULL ? NULL : base + *at;
    *at += align(bytes);
    return here;
}

/* Set the arrays' addresses in both memories, or count their bytes if the memories are NULL. */
static void place(rounds *d, size_t *host_bytes, size_t *device_bytes) {
    char *host = d->host.data, *device = d->device.data;
    *host_bytes = 0;
    *device_bytes = 0;
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++) {
        size_t bytes = d->rows * d->row_bytes[i];
        d->taken[i] = carve(host, host_bytes, d->rows * d->read_bytes[i]);
        d->packed[i] = carve(host, host_bytes, bytes);
        d->send[i] = carve(device, device_bytes, bytes);
        d->recv[i] = carve(device, device_bytes, bytes * d->world);
    }
    d->sent = carve(host, host_bytes, d->world * sizeof *d->sent);
    d->received = carve(host, host_bytes, d->world * sizeof *d->received);
    d->device_sent = carve(device, device_bytes, d->world * sizeof *d->sent);
    d->device_received = carve(device, device_bytes, d->world * sizeof *d->received);
    d->owners = carve(host, host_bytes, d->rows * sizeof *d->owners);
    d->bytes =
        carve(host, host_bytes, (size_t)HOTBED_ROW_COLUMNS * 2 * d->world * sizeof *d->bytes);
}

static hotbed_status allocate(rounds *d) {
    const hotbed_redistribution *job = d->job;
    const hotbed_manifest_table *table = &job->manifest->tables[job->table];
    size_t row = 0, host_bytes = 0, device_bytes = 0;
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++) {
        d->read_bytes[i] = d->row_bytes[i] = hotbed_manifest_row_bytes(job->manifest, table, i);
        d->from[i] = hotbed_manifest_form(job->manifest, table, hotbed_manifest_types(table), i);
        d->to[i] = hotbed_manifest_form(job->manifest, table, job->types, i);
        if (d->to[i].dim != 0)
            d->row_bytes[i] = hotbed_dtype_row_bytes(d->to[i].dtype, d->to[i].dim);
        row += d->row_bytes[i];
    }
    d->rows = ROUND_BYTES / row / d->world;
    d->rows = d->rows < 1 ? 1 : d->rows;
    d->rows = d->rows > table->rows && table->rows > 0 ? table->rows : d->rows;
    place(d, &host_bytes, &device_bytes);
    HOTBED_TRY(hotbed_memory_alloc(job->stream, HOTBED_MEMORY_PINNED, host_bytes, NULL, &d->host));
    HOTBED_TRY(
        hotbed_memory_alloc(job->stream, HOTBED_MEMORY_DEVICE, device_bytes, NULL, &d->device));
    place(d, &host_bytes, &device_bytes);
    return HOTBED_OK;
}

/* --- reading ------------------------------------------------------------------------------------------------ */

static void close_part(rounds *d) {
    hotbed_part_reader_close(&d->part);
    hotbed_shard_reader_close(&d->file);
    d->open = false;
}

static uint64_t rows_of(const rounds *d, uint32_t shard) {
    const hotbed_manifest *m = d->job->manifest;
    return m->parts[(uint64_t)d->job->table * m->world + shard].rows;
}

/* Return the distance in rows between positions where blocks of all columns begin. */
static uint64_t rows_apart(const rounds *d) {
    const hotbed_manifest *m = d->job->manifest;
    uint64_t widths =
        m->block_bytes; /* its lowest set bit is the largest power of two that divides all widths */
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++)
        if (hotbed_manifest_has(m, &m->tables[d->job->table], i))
            widths |= d->read_bytes[i];
    return m->block_bytes / (widths & (~widths + 1));
}

/* Return the row closest to `target` at which a reader may begin without reading a block that
 * another rank reads too. */
static uint64_t cut(const rounds *d, uint64_t target) {
    uint64_t first = 0, apart = rows_apart(d);
    uint32_t shard = 0;
    while (target > first + rows_of(d, shard))
        first += rows_of(d, shard++);
    uint64_t below = (target - first) / apart * apart, above = below + apart;
    if (above > rows_of(d, shard))
        above = rows_of(d, shard);
    return first + (target - first - below <= above - (target - first) ? below : above);
}

/* Return the first row that rank `rank` reads. In a full checkpoint of a static table, a rank reads
 * its own block of rows. The keys of a hash table, of an increment, and rows that are dealt in turn
 * may be anywhere, so each rank reads an equal share. */
static uint64_t begin_of(const rounds *d, uint32_t rank) {
    const hotbed_redistribution *job = d->job;
    const hotbed_manifest_table *table = &job->manifest->tables[job->table];
    if (rank == d->world)
        return table->rows;
    uint64_t own = rank * job->share->routes[job->route].block;
    bool blocks = table->kind == HOTBED_TABLE_STATIC && !job->manifest->increment &&
                  !hotbed_manifest_deals(job->manifest, table) &&
                  !hotbed_share_deals(job->share, job->route);
    if (blocks)
        return cut(d, own < table->rows ? own : table->rows);
    return cut(d, table->rows / d->world * rank + table->rows % d->world * rank / d->world);
}

static hotbed_status open_part(rounds *d) {
    const hotbed_redistribution *job = d->job;
    uint64_t rows = rows_of(d, d->shard), from = d->at - d->first, left = d->end - d->first;
    d->open = true;
    HOTBED_TRY(hotbed_shard_reader_open(&d->file, job->directory, job->manifest, d->shard));
    HOTBED_TRY(hotbed_shard_reader_ahead(&d->file, job->directory, job->workers, true));
    /* The rank that reads a part's first rows compares rows and bucket counts. */
    HOTBED_TRY(hotbed_part_reader_open(&d->part, &d->file, job->table, from == 0));
    hotbed_part_reader_range(&d->part, from, left < rows ? left : rows);
    return HOTBED_OK;
}

static void note_edges(rounds *d, const uint64_t *keys, uint64_t n) {
    if (n > 0 && d->edges.any == 0)
        d->edges = (edges){.any = 1, .first_shard = d->shard, .first_key = keys[0]};
    if (n > 0) {
        d->edges.last_shard = d->shard;
        d->edges.last_key = keys[n - 1];
    }
}

/* Read up to d->rows of the rows that this rank reads. *n is 0 at the end. */
static hotbed_status take(rounds *d, uint64_t *n) {
    *n = 0;
    while (*n < d->rows && d->at < d->end) {
        if (d->at == d->first + rows_of(d, d->shard)) {
            close_part(d);
            d->first = d->at;
            d->shard++;
            continue;
        }
        if (!d->open)
            HOTBED_TRY(open_part(d));
        void *columns[HOTBED_ROW_COLUMNS];
        for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++)
            columns[i] = (char *)d->taken[i] + *n * d->read_bytes[i];
        uint64_t left = hotbed_part_reader_left(&d->part), space = d->rows - *n;
        uint64_t rows = left < space ? left : space;
        HOTBED_TRY(hotbed_part_reader_take(&d->part, rows, columns));
        note_edges(d, columns[HOTBED_COLUMN_KEYS], rows);
        *n += rows;
        d->at += rows;
    }
    return HOTBED_OK;
}

/* Choose the rows that this rank reads, and find the part of the first one. */
static void choose(rounds *d) {
    d->at = begin_of(d, d->job->share->rank);
    d->end = begin_of(d, d->job->share->rank + 1);
    while (d->at < d->end && d->at >= d->first + rows_of(d, d->shard))
        d->first += rows_of(d, d->shard++);
}

/* Group the rows by the ranks that store them, in the storage's types. Errors: ARGUMENT (a value that such
 * a type does not have). */
static hotbed_status pack(rounds *d, uint64_t n) {
    const hotbed_redistribution *job = d->job;
    const hotbed_route *route = &job->share->routes[job->route];
    const hotbed_manifest_table *table = &job->manifest->tables[job->table];
    bool is_static = table->kind == HOTBED_TABLE_STATIC;
    uint64_t *keys = d->taken[HOTBED_COLUMN_KEYS];
    uint64_t *next = d->bytes; /* free until the sizes are set */
    memset(next, 0, d->world * sizeof *next);
    for (uint64_t i = 0; i < n; i++) {
        const bool dropped = is_static && keys[i] >= job->rows;
        d->owners[i] = dropped ? d->world : hotbed_route_rank(route, keys[i]);
        if (dropped)
            continue;
        next[d->owners[i]]++;
    }
    for (uint64_t p = 0, first = 0; p < d->world; p++) {
        uint64_t rows = next[p];
        d->sent[p].rows = rows;
        next[p] = first;
        first += rows;
    }
    for (uint64_t i = 0; i < n; i++) {
        if (d->owners[i] == d->world)
            continue;
        const uint64_t to = next[d->owners[i]]++, key = keys[i];
        hotbed_unfit unfit;
        keys[i] = hotbed_share_local(job->share, job->route, is_static, key);
        for (uint32_t c = 0; c < HOTBED_ROW_COLUMNS; c++) {
            char *row = (char *)d->packed[c] + to * d->row_bytes[c];
            const char *taken = (const char *)d->taken[c] + i * d->read_bytes[c];
            if (d->from[c].dim != 0 && d->from[c].dtype != d->to[c].dtype &&
                !hotbed_weights_convert(
                    d->from[c].dtype, taken, d->to[c].dtype, row, d->from[c].dim, 1, &unfit))
                return hotbed_manifest_unfit_fail(
                    job->manifest, table, c, key, d->to[c].dtype, unfit.value);
            if (d->row_bytes[c] > 0 && (d->from[c].dim == 0 || d->from[c].dtype == d->to[c].dtype))
                memcpy(row, taken, d->row_bytes[c]);
        }
    }
    return HOTBED_OK;
}

/* --- sending ------------------------------------------------------------------------------------------------ */

static hotbed_status send_notices(rounds *d) {
    const hotbed_redistribution *job = d->job;
    size_t bytes = d->world * sizeof *d->sent;
    HOTBED_TRY(hotbed_copy(d->device_sent, d->sent, bytes, job->stream));
    HOTBED_TRY(hotbed_comm_all_to_all(
        job->comm, sizeof *d->sent, d->device_sent, d->device_received, job->stream));
    HOTBED_TRY(hotbed_copy(d->received, d->device_received, bytes, job->stream));
    return hotbed_stream_sync(job->stream);
}

/* Exchange notices with all ranks. *failed: a rank has failed, perhaps this one. */
static hotbed_status exchange_notices(rounds *d, uint64_t *rows, bool *more, bool *failed) {
    HOTBED_TRY(take_part(d->job->comm, send_notices(d)));
    *rows = 0;
    *more = *failed = false;
    for (uint32_t p = 0; p < d->world; p++) {
        *rows += d->received[p].rows;
        *more = *more || d->received[p].more != 0;
        *failed = *failed || d->received[p].status != HOTBED_OK;
    }
    return HOTBED_OK;
}

/* Exchange the rows of this round among all ranks. */
static hotbed_status exchange_rows(rounds *d, uint64_t n) {
    const hotbed_redistribution *job = d->job;
    hotbed_exchange exchanges[HOTBED_EXCHANGES_MAX];
    uint32_t used = 0;
    for (uint32_t c = 0; c < HOTBED_ROW_COLUMNS; c++) {
        if (d->row_bytes[c] == 0)
            continue;
        uint64_t *send = d->bytes + (size_t)c * 2 * d->world, *recv = send + d->world;
        for (uint32_t p = 0; p < d->world; p++) {
            send[p] = d->sent[p].rows * d->row_bytes[c];
            recv[p] = d->received[p].rows * d->row_bytes[c];
        }
        HOTBED_TRY(hotbed_copy(d->send[c], d->packed[c], n * d->row_bytes[c], job->stream));
        exchanges[used++] = (hotbed_exchange){
            .send = d->send[c],
            .send_bytes = send,
            .recv = d->recv[c],
            .recv_bytes = recv,
        };
    }
    return hotbed_comm_exchange(job->comm, used, exchanges, job->stream);
}

static hotbed_status store(rounds *d, uint64_t rows) {
    const hotbed_redistribution *job = d->job;
    hotbed_rows parts = {
        .weights = d->recv[HOTBED_COLUMN_VALUES],
        .scores = d->recv[HOTBED_COLUMN_SCORES],
    };
    uint32_t states = hotbed_optimizer_states(hotbed_storage_optimizer(job->storage)->kind);
    for (uint32_t s = 0; s < states; s++)
        parts.states[s] = d->recv[HOTBED_COLUMN_STATE + s];
    hotbed_table_info info = {.size = sizeof info};
    HOTBED_TRY(hotbed_storage_table(job->storage, job->number, &info));
    if (info.score == HOTBED_SCORE_TIMESTAMP_LFU && d->row_bytes[HOTBED_COLUMN_TIMES] > 0)
        parts.times = d->recv[HOTBED_COLUMN_TIMES];
    return hotbed_storage_offer_rows(
        job->storage, job->number, rows, d->recv[HOTBED_COLUMN_KEYS], &parts, job->stream);
}

/* Record the first failure of this rank. The next notices report it to the other ranks. */
static void note(rounds *d, hotbed_status status) {
    if (status == HOTBED_OK || d->status != HOTBED_OK)
        return;
    d->status = status;
    hotbed_error_copy(&d->error);
}

static hotbed_status send_and_store(rounds *d, uint64_t n, uint64_t rows) {
    HOTBED_TRY(take_part(d->job->comm, exchange_rows(d, n)));
    HOTBED_TRY(store(d, rows));
    return hotbed_stream_sync(d->job->stream); /* the next round reuses the buffers */
}

/* Check that the rows of a part ascend from the last row of a rank that has read all its rows to the
 * first one of the next rank. Else a key could occur twice, and the row of the later round would win.
 * All ranks find the same. */
static hotbed_status check_edges(const rounds *d) {
    const hotbed_manifest *m = d->job->manifest;
    const hotbed_manifest_table *table = &m->tables[d->job->table];
    const notice *before = NULL;
    for (uint32_t p = 0; p < d->world; p++) {
        const edges *at = &d->received[p].edges;
        if (at->any == 0)
            continue;
        if (before != NULL && before->more == 0 && before->edges.last_shard == at->first_shard &&
            !hotbed_canonical_before(before->edges.last_key, at->first_key, table->bucket_bits)) {
            const hotbed_key_type type = hotbed_manifest_origin(m, table)->key_type;
            return hotbed_error_path(
                hotbed_fail_table_key(
                    HOTBED_ERR_CORRUPT, table->name, at->first_key, type,
                    "%s/%s: %s: key %s is out of order", d->job->directory->name,
                    hotbed_shard_name((uint32_t)at->first_shard, m->world).text, table->name,
                    hotbed_key_text(at->first_key, type).text),
                d->job->directory->name);
        }
        before = &d->received[p];
    }
    return HOTBED_OK;
}

/* Run one round: read, exchange notices and rows, store. A rank that has failed still takes part in
 * the exchange of notices, after which all ranks end. */
static hotbed_status play(rounds *d, bool *more) {
    uint64_t n = 0, rows = 0;
    bool failed = false;
    if (d->status == HOTBED_OK)
        note(d, take(d, &n));
    n = d->status == HOTBED_OK ? n : 0;
    note(d, pack(d, n));
    for (uint32_t p = 0; p < d->world; p++) {
        d->sent[p].more = n == d->rows;
        d->sent[p].status = (uint64_t)d->status;
        d->sent[p].edges = d->edges;
    }
    HOTBED_TRY(exchange_notices(d, &rows, more, &failed));
    if (failed) {
        *more = false;
        return HOTBED_OK;
    }
    HOTBED_TRY(check_edges(d));
    note(d, send_and_store(d, n, rows));
    return HOTBED_OK;
}

hotbed_status hotbed_redistribute(const hotbed_redistribution *job) {
    rounds d = {
        .job = job,
        .world = job->share->world,
        .file = {.file = HOTBED_IO_CLOSED},
    };
    bool more = true;
    hotbed_status status = hotbed_vote(job->comm, allocate(&d), job->stream);
    choose(&d);
    while (status == HOTBED_OK && more)
        status = play(&d, &more);
    if (status == HOTBED_OK && d.status != HOTBED_OK)
        status = hotbed_error_return(&d.error, d.status);
    if (status != HOTBED_OK)
        status = hotbed_stream_settle(job->stream, status);
    close_part(&d);
    hotbed_memory_free(&d.device);
    hotbed_memory_free(&d.host);
    return status;
}
