/* bench/serving.c - hotbed-serving: lookups of a reader against a plain map of the same rows, and the lag of a cut.
 *
 * Publishes a table of random rows, and times lookups of random keys on some threads: rows of keys, and sums of bags
 * of 16.  The limit is a loop that reads the same rows from a mapped file by their numbers, with the rows of the next
 * keys requested ahead.  Then a reader gets increments that were written before, one by one, and calls are timed while
 * it applies one, and with all of them.  Then a trainer changes a share of the rows and publishes without a
 * pause, while one thread looks up: the lag is the time from the copy in the trainer to the first use of the
 * version.
 *
 * With --rocksdb and --redis, these hold the same rows, and answer the same calls.
 *
 * On a machine with a GPU, a storage there is filled from the reader, and its evals are timed beside those of a storage
 * whose rows were set.
 *
 * With --deltas: the time and the bytes of cuts and of checkpoints after some shares of the rows were written, against
 * those of a base and of a full checkpoint; as JSON. */
#define _DEFAULT_SOURCE /* getloadavg() */
#include "base/clock.h"
#include "base/error.h"
#include "base/port.h"
#include "base/stream.h"
#include "hotbed/checkpoint.h"
#include "hotbed/read.h"
#include "serving_peers.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    KEYS = 1024,
    BAG = 16,
    AHEAD = 24,
    THREADS_MOST = 64,
    LAGS_MOST = 4096,
    CALLS_MOST = 1 << 20,
    INCREMENTS = 16, /* cuts up to the next base */
};

static const char usage[] =
    "usage: hotbed-serving [--rows N] [--dim N] [--encoding 1|2|3|4] [--threads N] [--seconds S]\n"
    "                      [--share X] [--rocksdb DIRECTORY] [--redis SOCKET] [--deltas 1|2] "
    "DIRECTORY\n"
    "  --rows      rows of the table (1000000)\n"
    "  --dim       elements of a row (32)\n"
    "  --encoding  1 f32, 2 f16, 3 bf16, 4 int8 (1)\n"
    "  --threads   threads that look up (2)\n"
    "  --seconds   seconds of each measurement (2)\n"
    "  --share     share of the rows that each cut changes (0.01)\n"
    "  --rocksdb   a RocksDB database that is created there holds the same rows\n"
    "  --redis     the Redis server at this socket holds the same rows, under their keys of 8 "
    "bytes\n"
    "  --deltas    measure cuts and checkpoints of 0.01 % to 100 % of the rows; 1: what was "
    "touched is\n"
    "              recorded, 2: it is found by digests\n"
    "DIRECTORY is created, and must not exist.  The load average is printed: other work on the "
    "machine makes all\n"
    "numbers worse.\n";

typedef struct program {
    uint64_t rows, dim, encoding, threads, deltas;
    double seconds, share;
    const char *directory, *rocksdb, *redis;
    const serving_peer *peer; /* that the threads ask; NULL: none */
    void *store;              /* of the peer */
    hotbed_stream *stream;
    hotbed_storage *storage;
    hotbed_publisher *publisher;
    hotbed_reader *reader;
    uint64_t *keys;     /* [rows] */
    const float *limit; /* [rows, dim] mapped */
    double until;
    bool pooled, plain; /* what the threads do */
    uint64_t stop;      /* atomic: the trainer ends */
    uint64_t applying;  /* atomic: 1 while the reader applies an increment */
} program;

typedef struct worker {
    program *p;
    pthread_t thread;
    uint64_t keys, random;
    float *out;
    void *client; /* of the peer */
} worker;

static void check(hotbed_status status) {
    if (status == HOTBED_OK)
        return;
    fprintf(stderr, "hotbed-serving: %s: %s\n", hotbed_status_name(status), hotbed_last_error());
    exit(1);
}

static uint64_t next_random(uint64_t *state) { /* xorshift64* */
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1dU;
}

/* --- lookups ---------------------------------------------------------------------------------- */

/* Choose rows, and their keys. */
static void draw(worker *w, uint64_t *numbers, uint64_t *keys) {
    for (int i = 0; i < KEYS; i++) {
        numbers[i] = next_random(&w->random) % w->p->rows;
        keys[i] = w->p->keys[numbers[i]];
    }
}

static void look_up(worker *w, const uint64_t *keys) {
    int64_t offsets[KEYS / BAG + 1];
    for (int i = 0; i <= KEYS / BAG; i++)
        offsets[i] = (int64_t)i * BAG;
    hotbed_lookup lookup = {.num_keys = KEYS, .keys = keys, .output = w->out};
    lookup.pooling = w->p->pooled ? HOTBED_POOL_SUM : HOTBED_POOL_NONE;
    lookup.batch_size = KEYS / BAG;
    lookup.offsets = offsets;
    check(hotbed_reader_lookup(w->p->reader, &lookup, 1, NULL));
}

/* The same from the mapped file. */
static void read_plain(const worker *w, const uint64_t *numbers) {
    const uint64_t dim = w->p->dim;
    for (uint64_t i = 0; i < KEYS; i++) {
        if (i + AHEAD < KEYS)
            hotbed_prefetch_item(w->p->limit + numbers[i + AHEAD] * dim, dim * sizeof(float));
        const float *row = w->p->limit + numbers[i] * dim;
        float *out = w->out + (w->p->pooled ? i / BAG : i) * dim;
        if (!w->p->pooled || i % BAG == 0)
            memcpy(out, row, dim * sizeof(float));
        else
            for (uint64_t e = 0; e < dim; e++)
                out[e] += row[e];
    }
}

static void *work(void *argument) {
    worker *w = argument;
    uint64_t numbers[KEYS], keys[KEYS];
    while (hotbed_monotonic_seconds() < w->p->until) {
        draw(w, numbers, keys);
        if (w->p->peer != NULL)
            w->p->peer->get(w->client, KEYS, keys, w->out);
        else if (w->p->plain)
            read_plain(w, numbers);
        else
            look_up(w, keys);
        w->keys += KEYS;
    }
    return NULL;
}

/* Return keys per second on all threads. */
static double measure(program *p, bool pooled, bool plain) {
    worker workers[THREADS_MOST];
    uint64_t keys = 0;
    p->pooled = pooled;
    p->plain = plain;
    p->until = hotbed_monotonic_seconds() + p->seconds;
    for (uint64_t i = 0; i < p->threads; i++) {
        workers[i] = (worker){.p = p, .random = 88172645463325252U + i};
        workers[i].out = malloc(KEYS * p->dim * sizeof(float));
        if (p->peer != NULL)
            workers[i].client = p->peer->connect(p->store);
        if (workers[i].out == NULL ||
            pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0)
            exit(1);
    }
    for (uint64_t i = 0; i < p->threads; i++) {
        pthread_join(workers[i].thread, NULL);
        keys += workers[i].keys;
        if (p->peer != NULL)
            p->peer->disconnect(workers[i].client);
        free(workers[i].out);
    }
    return (double)keys / p->seconds;
}

/* --- latency and lag -------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double quantile(double *values, uint64_t n, double q) {
    qsort(values, n, sizeof *values, by_value);
    return n == 0 ? 0.0 : values[(uint64_t)(q * (double)(n - 1))];
}

/* Change rows and publish, without a pause. */
static void *train(void *argument) {
    program *p = argument;
    uint64_t n = (uint64_t)(p->share * (double)p->rows), random = 7;
    n = n < 1 ? 1 : n;
    float *rows = malloc(n * p->dim * sizeof *rows);
    if (rows == NULL)
        exit(1);
    for (uint64_t step = 2; hotbed_load_relaxed_u64(&p->stop) == 0; step++) {
        for (uint64_t i = 0; i < n * p->dim; i++)
            rows[i] = 0x1p-24F * (float)(next_random(&random) >> 40);
        hotbed_rows set = {.weights = rows};
        uint64_t first = next_random(&random) % (p->rows - n + 1);
        check(hotbed_storage_set_rows(p->storage, 0, n, p->keys + first, &set, p->stream));
        check(hotbed_publisher_publish(p->publisher, step, p->stream));
    }
    check(hotbed_publisher_wait(p->publisher));
    free(rows);
    return NULL;
}

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Time calls of one thread, of KEYS keys each; note the lag of each new version. `applying`: only calls that
 * begin while the reader applies an increment. On a machine that others use, the thread's CPU time says what the
 * reader itself does to the calls. */
static void time_calls(program *p, bool plain, bool applying, const char *what) {
    static double times[CALLS_MOST], cpu[CALLS_MOST], lags[LAGS_MOST];
    uint64_t calls = 0, num_lags = 0, numbers[KEYS], keys[KEYS];
    hotbed_reader_stats stats = {.size = sizeof stats};
    worker w = {.p = p, .random = 99, .out = malloc(KEYS * p->dim * sizeof(float))};
    if (w.out == NULL)
        exit(1);
    check(hotbed_reader_get_stats(p->reader, &stats));
    uint64_t version = stats.version;
    p->pooled = false;
    double until = hotbed_monotonic_seconds() + 4 * p->seconds;
    while (hotbed_monotonic_seconds() < until && calls < CALLS_MOST) {
        draw(&w, numbers, keys);
        const bool counts = !applying || hotbed_load_relaxed_u64(&p->applying) != 0;
        const double begin = hotbed_monotonic_seconds(), cpu_begin = cpu_seconds();
        if (plain)
            read_plain(&w, numbers);
        else
            look_up(&w, keys);
        cpu[calls] = cpu_seconds() - cpu_begin;
        times[calls] = hotbed_monotonic_seconds() - begin;
        calls += counts;
        check(hotbed_reader_get_stats(p->reader, &stats));
        if (stats.version != version && num_lags < LAGS_MOST) {
            version = stats.version;
            lags[num_lags++] = stats.lag;
        }
    }
    free(w.out);
    printf(
        "%-22s p50 %8.1f us  p99 %8.1f us  CPU p50 %8.1f us  p99 %8.1f us", what,
        1e6 * quantile(times, calls, 0.5), 1e6 * quantile(times, calls, 0.99),
        1e6 * quantile(cpu, calls, 0.5), 1e6 * quantile(cpu, calls, 0.99));
    if (num_lags > 0 && !applying) /* their cuts waited for the measurement */
        printf(
            "  lag median %.3f s  p99 %.3f s  (%" PRIu64 " versions)",
            quantile(lags, num_lags, 0.5), quantile(lags, num_lags, 0.99), num_lags);
    printf("\n");
}

/* --- setup ------------------------------------------------------------------------------------ */

static void fill(program *p) {
    enum { PART = 65536 };
    hotbed_table_options table = {.size = sizeof table};
    hotbed_storage_options options;
    char path[1024];
    uint64_t random = 1;
    table.name = "t", table.dim = (uint32_t)p->dim, table.capacity = p->rows;
    table.track_changes = p->deltas != 2;
    hotbed_storage_options_init(&options);
    options.num_tables = 1, options.tables = &table;
    check(hotbed_storage_create(&options, p->stream, &p->storage));
    p->keys = malloc(p->rows * sizeof *p->keys);
    float *rows = malloc((size_t)PART * p->dim * sizeof *rows);
    float *map = NULL;
    if (p->keys == NULL || rows == NULL)
        exit(1);
    if (p->deltas == 0) {
        snprintf(path, sizeof path, "%s/rows", p->directory);
        int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        size_t bytes = p->rows * p->dim * sizeof *rows;
        if (file < 0 || ftruncate(file, (off_t)bytes) != 0)
            exit(1);
        map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (map == MAP_FAILED)
            exit(1);
        close(file);
    }
    for (uint64_t first = 0; first < p->rows; first += PART) {
        uint64_t n = p->rows - first < PART ? p->rows - first : PART;
        for (uint64_t i = 0; i < n; i++)
            p->keys[first + i] = next_random(&random);
        for (uint64_t i = 0; i < n * p->dim; i++)
            rows[i] = 0x1p-24F * (float)(next_random(&random) >> 40);
        if (map != NULL)
            memcpy(map + first * p->dim, rows, n * p->dim * sizeof *rows);
        hotbed_rows set = {.weights = rows};
        check(hotbed_storage_set_rows(p->storage, 0, n, p->keys + first, &set, p->stream));
        check(hotbed_stream_sync(p->stream));
    }
    free(rows);
    p->limit = map;
}

static void follow(program *p) {
    hotbed_reader_options options = {.size = sizeof options, .follow_ms = 20};
    check(hotbed_reader_open(p->directory, &options, &p->reader));
}

static void publish(program *p) {
    hotbed_publish_options options = {
        .size = sizeof options, .encoding = (hotbed_encoding)p->encoding};
    check(
        hotbed_publisher_create(p->directory, &p->storage, 1, &options, p->stream, &p->publisher));
    double begin = hotbed_monotonic_seconds();
    check(hotbed_publisher_publish(p->publisher, 1, p->stream));
    double copied = hotbed_monotonic_seconds();
    check(hotbed_publisher_wait(p->publisher));
    double written = hotbed_monotonic_seconds();
    follow(p);
    printf(
        "base: copied in %.3f s, written in %.3f s, opened in %.3f s\n", copied - begin,
        written - copied, hotbed_monotonic_seconds() - written);
}

/* --- on a GPU ---------------------------------------------------------------------------------- */

enum { GPU_KEYS = 1 << 17, GPU_BATCHES = 16, GPU_ROUNDS = 20 };

/* Return keys a second of evals of random keys. */
static double time_evals(program *p, hotbed_storage *storage, hotbed_stream *stream) {
    hotbed_memory keys = {0}, out = {0};
    const size_t bytes = sizeof(uint64_t) * GPU_KEYS * GPU_BATCHES;
    uint64_t *drawn = malloc(bytes), random = 5;
    if (drawn == NULL)
        exit(1);
    for (uint64_t i = 0; i < GPU_KEYS * GPU_BATCHES; i++)
        drawn[i] = p->keys[next_random(&random) % p->rows];
    check(hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, bytes, NULL, &keys));
    check(hotbed_memory_alloc(
        stream, HOTBED_MEMORY_DEVICE, GPU_KEYS * p->dim * sizeof(float), NULL, &out));
    check(hotbed_copy(keys.data, drawn, bytes, stream));
    double begin = 0;
    for (int call = -GPU_BATCHES; call < GPU_BATCHES * GPU_ROUNDS; call++) { /* first to warm up */
        if (call == 0) {
            check(hotbed_stream_sync(stream));
            begin = hotbed_monotonic_seconds();
        }
        hotbed_batch batch = {.size = sizeof batch};
        batch.batch_size = GPU_KEYS, batch.num_keys = GPU_KEYS;
        batch.keys =
            (uint64_t *)keys.data + (uint64_t)(call + GPU_BATCHES) % GPU_BATCHES * GPU_KEYS;
        check(hotbed_storage_eval(storage, &batch, out.data, p->dim, stream));
    }
    check(hotbed_stream_sync(stream));
    double seconds = hotbed_monotonic_seconds() - begin;
    hotbed_memory_free(&keys);
    hotbed_memory_free(&out);
    free(drawn);
    return (double)GPU_KEYS * GPU_BATCHES * GPU_ROUNDS / seconds;
}

static void compare_gpu(program *p) {
    hotbed_table_options table = {.size = sizeof table};
    hotbed_storage_options options;
    hotbed_stream *stream;
    hotbed_storage *filled, *set;
    uint64_t version = 0;
    if (hotbed_backend_probe(HOTBED_BACKEND_CUDA) != HOTBED_OK)
        return;
    table.name = "t", table.dim = (uint32_t)p->dim, table.capacity = p->rows + p->rows / 4;
    hotbed_storage_options_init(&options);
    options.num_tables = 1, options.tables = &table;
    check(hotbed_stream_create(HOTBED_BACKEND_CUDA, 0, &stream));
    check(hotbed_storage_create(&options, stream, &filled));
    check(hotbed_storage_create(&options, stream, &set));
    double begin = hotbed_monotonic_seconds();
    check(hotbed_reader_fill(p->reader, &filled, 1, stream, &version));
    check(hotbed_stream_sync(stream));
    double seconds = hotbed_monotonic_seconds() - begin;
    hotbed_memory part = {0};
    const uint64_t most = 65536;
    check(hotbed_memory_alloc(
        stream, HOTBED_MEMORY_PINNED, most * (sizeof(uint64_t) + p->dim * sizeof(float)), NULL,
        &part));
    for (uint64_t first = 0, n; first < p->rows; first += n) {
        n = p->rows - first < most ? p->rows - first : most;
        hotbed_rows rows = {.weights = (uint64_t *)part.data + most};
        memcpy(part.data, p->keys + first, n * sizeof(uint64_t));
        memcpy(rows.weights, p->limit + first * p->dim, n * p->dim * sizeof(float));
        check(hotbed_storage_set_rows(set, 0, n, part.data, &rows, stream));
        check(hotbed_stream_sync(stream));
    }
    hotbed_memory_free(&part);
    double ours = time_evals(p, filled, stream), theirs = time_evals(p, set, stream);
    printf(
        "GPU: filled in %.3f s; evals of %d keys: %.0f M keys/s, of a storage whose rows were set "
        "%.0f M keys/s\n",
        seconds, GPU_KEYS, 1e-6 * ours, 1e-6 * theirs);
    hotbed_storage_destroy(filled);
    hotbed_storage_destroy(set);
    hotbed_stream_destroy(stream);
}

/* --- increments ------------------------------------------------------------------------------- */

static uint64_t version_of(const program *p) {
    hotbed_reader_stats stats = {.size = sizeof stats};
    check(hotbed_reader_get_stats(p->reader, &stats));
    return stats.version;
}

/* Let the reader's directory have a file of a cut. */
static void link_file(const program *p, const char *kind, uint64_t number, const char *end) {
    char from[1024], to[1024];
    snprintf(from, sizeof from, "%s/%s-%012" PRIu64 "%s", p->directory, kind, number, end);
    snprintf(to, sizeof to, "%s/applied/%s-%012" PRIu64 "%s", p->directory, kind, number, end);
    if (link(from, to) != 0) {
        perror(to);
        exit(1);
    }
}

static void reveal(const program *p, uint64_t number) {
    link_file(p, "rows", number, "-00000");
    link_file(p, "cut", number, "");
}

/* Let the reader have one increment after the other. */
static void *reveal_all(void *argument) {
    program *p = argument;
    const struct timespec pause = {.tv_nsec = 50000000}, wait = {.tv_nsec = 100000};
    for (uint64_t number = 2; number <= INCREMENTS; number++) {
        nanosleep(&pause, NULL);
        __atomic_store_n(&p->applying, 1, __ATOMIC_RELAXED);
        reveal(p, number);
        while (version_of(p) < number)
            nanosleep(&wait, NULL);
        __atomic_store_n(&p->applying, 0, __ATOMIC_RELAXED);
    }
    return NULL;
}

/* Time calls while increments are applied that were written before: nobody trains or publishes. */
static void time_increments(program *p) {
    char path[1024];
    pthread_t thread;
    hotbed_reader_options follow;
    const uint64_t n = 1 + (uint64_t)(p->share * (double)p->rows);
    float *rows = calloc(n * p->dim, sizeof *rows);
    uint64_t random = 5;
    if (rows == NULL)
        exit(1);
    for (uint64_t step = 2; step <= INCREMENTS; step++) {
        const uint64_t first = next_random(&random) % (p->rows - n + 1);
        const hotbed_rows set = {.weights = rows};
        for (uint64_t i = 0; i < n * p->dim; i++)
            rows[i] = 0x1p-24F * (float)(next_random(&random) >> 40);
        check(hotbed_storage_set_rows(p->storage, 0, n, p->keys + first, &set, p->stream));
        check(hotbed_publisher_publish(p->publisher, step, p->stream));
        check(hotbed_publisher_wait(p->publisher));
    }
    free(rows);
    snprintf(path, sizeof path, "%s/applied", p->directory);
    if (mkdir(path, 0777) != 0)
        exit(1);
    reveal(p, 1);
    hotbed_reader_close(p->reader);
    follow = (hotbed_reader_options){.size = sizeof follow, .follow_ms = 1};
    check(hotbed_reader_open(path, &follow, &p->reader));
    time_calls(p, false, false, "1024 keys, a base");
    if (pthread_create(&thread, NULL, reveal_all, p) != 0)
        exit(1);
    time_calls(p, false, true, "1024 keys, applied");
    pthread_join(thread, NULL);
    time_calls(p, false, false, "1024 keys, quiet"); /* with the same increments */
}

/* --- deltas ----------------------------------------------------------------------------------- */

/* The cost of one cut or checkpoint. */
typedef struct cost {
    double seconds, waits; /* waits: of the trainer, a part of `seconds` */
    uint64_t rows, bytes;
} cost;

/* Write every n-th row, so that a share of all is written. */
static uint64_t touch(program *p, double share, uint64_t turn) {
    enum { PART = 65536 };
    const uint64_t every = (uint64_t)(1.0 / share + 0.5);
    uint64_t *keys = malloc(PART * sizeof *keys), n = 0, all = 0, random = 1 + turn;
    float *rows = malloc((size_t)PART * p->dim * sizeof *rows);
    if (keys == NULL || rows == NULL)
        exit(1);
    for (uint64_t i = turn % every; i < p->rows; i += every) {
        for (uint64_t e = 0; e < p->dim; e++)
            rows[n * p->dim + e] = 0x1p-24F * (float)(next_random(&random) >> 40);
        keys[n++] = p->keys[i];
        if (n < PART && i + every < p->rows)
            continue;
        hotbed_rows set = {.weights = rows};
        check(hotbed_storage_set_rows(p->storage, 0, n, keys, &set, p->stream));
        check(hotbed_stream_sync(p->stream));
        all += n;
        n = 0;
    }
    free(keys);
    free(rows);
    return all;
}

static cost cut(program *p, uint64_t step) {
    hotbed_publish_stats stats = {.size = sizeof stats};
    double begin = hotbed_monotonic_seconds();
    check(hotbed_publisher_publish(p->publisher, step, p->stream));
    double copied = hotbed_monotonic_seconds();
    check(hotbed_publisher_wait(p->publisher));
    check(hotbed_publisher_stats(p->publisher, &stats));
    return (cost){
        hotbed_monotonic_seconds() - begin, copied - begin, stats.last_rows, stats.last_bytes};
}

static uint64_t directory_bytes(const char *path) {
    uint64_t bytes = 0;
    DIR *list = opendir(path);
    struct stat found;
    for (struct dirent *item; list != NULL && (item = readdir(list)) != NULL;)
        if (fstatat(dirfd(list), item->d_name, &found, 0) == 0 && S_ISREG(found.st_mode))
            bytes += (uint64_t)found.st_blocks * 512;
    if (list != NULL)
        (void)closedir(list);
    return bytes;
}

static cost save(program *p, hotbed_checkpoint_options *options, const char *path) {
    double begin = hotbed_monotonic_seconds();
    check(hotbed_checkpoint_save(path, &p->storage, 1, options, p->stream));
    double seconds = hotbed_monotonic_seconds() - begin;
    return (cost){seconds, seconds, 0, directory_bytes(path)};
}

static void print_cost(const char *what, double share, uint64_t rows, cost of, cost whole) {
    printf(
        "{\"what\": \"%s\", \"share\": %g, \"rows\": %" PRIu64 ", \"seconds\": %.4f, "
        "\"trainer_waits\": %.4f, \"bytes\": %" PRIu64 ", \"of_seconds\": %.5f, "
        "\"of_bytes\": %.5f}%s\n",
        what, share, rows, of.seconds, of.waits, of.bytes, of.seconds / whole.seconds,
        (double)of.bytes / (double)whole.bytes, share < 1 || strcmp(what, "cut") == 0 ? "," : "");
    fflush(stdout);
}

static void measure_deltas(program *p) {
    static const double shares[] = {0.0001, 0.001, 0.01, 0.1, 1};
    enum { SHARES = sizeof shares / sizeof shares[0] };
    hotbed_publish_options options = {.size = sizeof options};
    hotbed_checkpoint_options saves;
    char paths[SHARES + 1][1100];
    options.encoding = (hotbed_encoding)p->encoding;
    check(
        hotbed_publisher_create(p->directory, &p->storage, 1, &options, p->stream, &p->publisher));
    printf(
        "{\"rows\": %" PRIu64 ", \"dim\": %" PRIu64 ", \"changes\": \"%s\", \"costs\": [\n",
        p->rows, p->dim, p->deltas == 1 ? "recorded" : "digests");
    cost base = cut(p, 1);
    print_cost("base", 0, p->rows, base, base);
    for (uint64_t i = 0; i < SHARES; i++) {
        uint64_t rows = touch(p, shares[i], i + 1);
        print_cost("cut", shares[i], rows, cut(p, i + 2), base);
    }
    hotbed_publisher_destroy(p->publisher);
    saves = (hotbed_checkpoint_options){.size = sizeof saves, .touched = p->deltas == 1 ? 1 : 0};
    check(hotbed_checkpoint_mark_create(&saves.mark));
    for (uint64_t i = 0; i <= SHARES; i++)
        snprintf(paths[i], sizeof paths[i], "%s-%" PRIu64, p->directory, i);
    cost full = save(p, &saves, paths[0]);
    print_cost("checkpoint", 0, p->rows, full, full);
    for (uint64_t i = 0; i < SHARES; i++) {
        uint64_t rows = touch(p, shares[i], i + 11);
        saves.parent = paths[i];
        print_cost("increment", shares[i], rows, save(p, &saves, paths[i + 1]), full);
    }
    printf("]}\n");
    hotbed_checkpoint_mark_destroy(saves.mark);
}

/* --- main ------------------------------------------------------------------------------------- */

static void print_load(const char *when) {
    double load[3] = {0, 0, 0};
    if (getloadavg(load, 3) > 0)
        printf("load average %s: %.2f\n", when, load[0]);
}

static void compare(program *p, bool pooled, const char *what) {
    double plain = measure(p, pooled, true), ours = measure(p, pooled, false);
    printf(
        "%-22s reader %7.2f M keys/s  plain map %7.2f M keys/s  (%.2f of it)\n", what, 1e-6 * ours,
        1e-6 * plain, ours / plain);
}

/* Give a peer the rows, and time the calls that a reader gets in compare(). */
static void compare_peer(program *p, const serving_peer *peer, const char *place) {
    const uint64_t part = 65536;
    float *row = malloc(p->dim * sizeof *row);
    if (row == NULL)
        exit(1);
    p->store = peer->open(place, p->dim * sizeof(float));
    for (uint64_t first = 0; first < p->rows; first += part)
        peer->set(
            p->store, p->rows - first < part ? p->rows - first : part, p->keys + first,
            p->limit + first * p->dim);
    peer->settle(p->store);
    void *client = peer->connect(p->store);
    for (uint64_t i = 0; i < p->rows; i += 1 + p->rows / 1000) {
        peer->get(client, 1, p->keys + i, row);
        if (memcmp(row, p->limit + i * p->dim, p->dim * sizeof *row) != 0) {
            fprintf(stderr, "hotbed-serving: %s: a row differs\n", peer->name);
            exit(1);
        }
    }
    peer->disconnect(client);
    p->peer = peer;
    double theirs = measure(p, false, false);
    p->peer = NULL;
    printf("%-22s %s %7.2f M keys/s\n", "rows", peer->name, 1e-6 * theirs);
    peer->close(p->store);
    free(row);
}

/* The place that option `name` gives to a peer; NULL for other options. */
static const char **peer_place(program *p, const char *name) {
    return strcmp(name, "--rocksdb") == 0 ? &p->rocksdb
           : strcmp(name, "--redis") == 0 ? &p->redis
                                          : NULL;
}

static bool read_option(program *p, const char *name, const char *text) {
    struct {
        const char *name;
        uint64_t *value;
        uint64_t least, most;
    } numbers[] = {
        {"--rows", &p->rows, 100, (uint64_t)1 << 31},
        {"--dim", &p->dim, 1, 4096},
        {"--encoding", &p->encoding, 1, 4},
        {"--threads", &p->threads, 1, THREADS_MOST},
        {"--deltas", &p->deltas, 1, 2}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (strcmp(name, numbers[i].name) == 0) {
            *numbers[i].value = strtoull(text, NULL, 10);
            return *numbers[i].value >= numbers[i].least && *numbers[i].value <= numbers[i].most;
        }
    if (peer_place(p, name) != NULL) {
        *peer_place(p, name) = text;
        return true;
    }
    if (strcmp(name, "--seconds") == 0)
        return (p->seconds = strtod(text, NULL)) > 0;
    if (strcmp(name, "--share") == 0)
        return (p->share = strtod(text, NULL)) > 0 && p->share <= 1;
    return false;
}

int main(int argc, char **argv) {
    program p = {
        .rows = 1000000, .dim = 32, .encoding = 1, .threads = 2, .seconds = 2, .share = 0.01};
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] != '-' && p.directory == NULL) {
            p.directory = argv[i];
        } else if (i + 1 == argc || !read_option(&p, argv[i], argv[i + 1])) {
            fputs(usage, stderr);
            return 2;
        } else {
            i++;
        }
    }
    if ((p.rocksdb != NULL && serving_rocksdb.open == NULL) ||
        (p.redis != NULL && serving_redis.open == NULL)) {
        fputs("hotbed-serving: this build is without HOTBED_ROCKSDB or HOTBED_REDIS\n", stderr);
        return 2;
    }
    if (p.directory == NULL || mkdir(p.directory, 0777) != 0) {
        fputs(usage, stderr);
        return 2;
    }
    if (p.deltas == 0)
        print_load("before");
    check(hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &p.stream));
    fill(&p);
    if (p.deltas != 0) {
        measure_deltas(&p);
        hotbed_storage_destroy(p.storage);
        hotbed_stream_destroy(p.stream);
        free(p.keys);
        return 0;
    }
    publish(&p);
    compare(&p, false, "rows");
    compare(&p, true, "bags of 16");
    if (p.rocksdb != NULL)
        compare_peer(&p, &serving_rocksdb, p.rocksdb);
    if (p.redis != NULL)
        compare_peer(&p, &serving_redis, p.redis);
    compare_gpu(&p);
    time_calls(&p, true, false, "1024 rows, plain map");
    time_increments(&p);
    pthread_t trainer;
    if (pthread_create(&trainer, NULL, train, &p) != 0)
        return 1;
    hotbed_reader_close(p.reader);
    follow(&p);
    time_calls(&p, false, false, "1024 keys, published");
    __atomic_store_n(&p.stop, 1, __ATOMIC_RELAXED);
    pthread_join(trainer, NULL);
    print_load("after");
    hotbed_reader_close(p.reader);
    hotbed_publisher_destroy(p.publisher);
    hotbed_storage_destroy(p.storage);
    hotbed_stream_destroy(p.stream);
    munmap((void *)p.limit, p.rows * p.dim * sizeof(float));
    free(p.keys);
    return 0;
}
