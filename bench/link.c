/* bench/link.c - hotbed-link: the speed of several ways to move rows over the link, and their cost
 * to a dense model that runs beside them.
 *
 * Rows are at random places of pinned host memory, sorted by address, and at random places of
 * device memory. Each way of moving them is checked once, timed alone, and timed beside the model:
 * reads, writes, and both at once. As in train plans, moves run on streams of high priority and the
 * model on a normal one, unless --same-priority is given. */
#include "bench/link.h"
#include "bench/model.h"
#include "bench/workload.h"

#include "base/error.h"
#include "base/host_launch.h"

#include <errno.h>
#include <stdlib.h>

enum { SKIPPED = 77, LIST_MOST = 8, REPETITIONS = 5 };

static const char usage[] =
    "usage: hotbed-link [--bytes N,...] [--rows N] [--gib X] [--warps N,...] [--sms N,...]\n"
    "                   [--layers N] [--same-priority] [--json FILE] [--commit TEXT]\n"
    "  --bytes  bytes of a row, multiples of 16 (512,1536)\n"
    "  --rows   rows moved in each direction (185000)\n"
    "  --gib    GiB of pinned host memory that hold the rows (12)\n"
    "  --warps  warps that move rows, spread over all SMs, in each direction: multiples of 4\n"
    "           (64,128,256,2112)\n"
    "  --sms    SMs that only move rows, with 8 warps each, in each direction (1,2,4,8)\n"
    "  --layers layers of the dense model (60)\n"
    "  --same-priority  moves and model on streams of equal priority; else moves have the higher\n"
    "           one, as in train plans\n"
    "Output: GB/s of reads, writes and both at once; then the time of the dense model beside "
    "them,\n"
    "divided by its time alone (1.25: a quarter slower), and the GB/s meanwhile.\n"
    "Exit status: 0; 1 a run failed; 2 invalid arguments; 77 the machine has no GPU.\n";

typedef enum kind { COPIES, SPREAD, OWN } kind; /* COPIES: by the copy engines */

static const char *const names[] = {"copies", "spread", "own"};
static const char *const units[] = {"", "warps", "sms"};

enum { READ, WRITE, WAYS }; /* to the device, from the device */

/* The combinations that are measured: reads, writes, both at once. */
enum { CASES = 3 };

static bool moves(int what, int way) {
    return what == 2 || what == way;
}

typedef struct result {
    kind kind;
    uint32_t units, bytes;
    double rate[CASES];         /* bytes per second, without the model */
    double beside[CASES];       /* bytes per second beside the model */
    double alone, model[CASES]; /* seconds of the model: alone; beside moves, relative */
} result;

typedef struct list {
    uint32_t n, items[LIST_MOST];
} list;

typedef struct program {
    list bytes, warps, sms;
    uint32_t n, layers;
    double gib;
    bool same_priority;
    const char *json;
    workload_machine machine;
    hotbed_stream *stream, *host,
        *ways[WAYS]; /* the model's; the host backend's; one for each direction */
    hotbed_event *marks[3], *starts[WAYS], *ends[WAYS][2];
    hotbed_memory pinned;
    hotbed_memory device[WAYS]; /* [n] rows, for each direction */
    hotbed_memory rows[WAYS];   /* bench_link_row[n] */
    hotbed_memory words;        /* uint32_t[WAYS + 1]: `taken` of each direction; wrong words */
    bench_model model;
    bench_link_row *chosen[WAYS]; /* rows, in host memory */
    double alone;                 /* seconds of the model, for the last measured row */
    result results[LIST_MOST * (2 * LIST_MOST + 1)];
    uint32_t num_results;
} program;

/* --- memory ----------------------------------------------------------------------------------- */

static hotbed_status open_streams(program *p) {
    const hotbed_priority priority =
        p->same_priority ? HOTBED_PRIORITY_NORMAL : HOTBED_PRIORITY_HIGH;
    HOTBED_TRY(hotbed_stream_create(HOTBED_BACKEND_CUDA, 0, &p->stream));
    HOTBED_TRY(hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &p->host));
    for (int m = 0; m < 3; m++)
        HOTBED_TRY(hotbed_event_create(p->stream, &p->marks[m]));
    for (int way = 0; way < WAYS; way++) {
        hotbed_stream_options options;
        hotbed_stream_options_init(&options);
        options.backend = HOTBED_BACKEND_CUDA;
        options.priority = priority;
        HOTBED_TRY(hotbed_stream_create_with(&options, &p->ways[way]));
        HOTBED_TRY(hotbed_event_create(p->stream, &p->starts[way]));
        for (int e = 0; e < 2; e++)
            HOTBED_TRY(hotbed_event_create(p->stream, &p->ends[way][e]));
    }
    return HOTBED_OK;
}

static hotbed_status open_rows(program *p) {
    uint32_t most = 0;
    for (uint32_t b = 0; b < p->bytes.n; b++)
        most = p->bytes.items[b] > most ? p->bytes.items[b] : most;
    const size_t pinned = (size_t)(p->gib * (double)(1 << 30)),
                 rows = p->n * sizeof(bench_link_row);
    if (pinned < (size_t)4 * p->n * most)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "link: %g GiB are not for %u rows of %u bytes", p->gib, p->n,
            most);
    HOTBED_TRY(hotbed_memory_alloc(p->stream, HOTBED_MEMORY_PINNED, pinned, NULL, &p->pinned));
    HOTBED_TRY(hotbed_memory_alloc(
        p->stream, HOTBED_MEMORY_DEVICE, (WAYS + 1) * sizeof(uint32_t), NULL, &p->words));
    for (int way = 0; way < WAYS; way++) {
        HOTBED_TRY(hotbed_memory_alloc(
            p->stream, HOTBED_MEMORY_DEVICE, (size_t)p->n * most, NULL, &p->device[way]));
        HOTBED_TRY(hotbed_memory_alloc(p->stream, HOTBED_MEMORY_DEVICE, rows, NULL, &p->rows[way]));
        p->chosen[way] = malloc(rows);
        if (p->chosen[way] == NULL)
            return hotbed_fail(HOTBED_ERR_MEMORY, "link: no memory for %zu bytes", rows);
    }
    return HOTBED_OK;
}

static void close_all(program *p) {
    for (int way = 0; way < WAYS; way++) {
        free(p->chosen[way]);
        hotbed_memory_free(&p->rows[way]);
        hotbed_memory_free(&p->device[way]);
        hotbed_event_destroy(p->starts[way]);
        for (int e = 0; e < 2; e++)
            hotbed_event_destroy(p->ends[way][e]);
        hotbed_stream_destroy(p->ways[way]);
    }
    hotbed_memory_free(&p->words);
    hotbed_memory_free(&p->pinned);
    bench_model_close(&p->model);
    for (int m = 0; m < 3; m++)
        hotbed_event_destroy(p->marks[m]);
    hotbed_stream_destroy(p->host);
    hotbed_stream_destroy(p->stream);
}

static int compare_numbers(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a;
    uint32_t y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Choose distinct random rows of the host, sorted: every other one is read, the others are written.
 * Choose a place in device memory for each. */
static hotbed_status choose(program *p, uint32_t bytes) {
    const uint32_t n = p->n, total = (uint32_t)(p->pinned.bytes / bytes);
    uint32_t *numbers = malloc(2 * (size_t)n * sizeof *numbers);
    if (numbers == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "link: no memory for %u rows", n);
    for (uint32_t i = 0; i < 2 * n; i++)
        numbers[i] = (uint32_t)(workload_mix(i + 1) % (total - 2 * n + 1));
    qsort(numbers, 2 * (size_t)n, sizeof *numbers, compare_numbers);
    for (uint32_t i = 0; i < 2 * n; i++) /* adding i makes them distinct */
        p->chosen[i % 2][i / 2] = (bench_link_row){numbers[i] + i, i / 2};
    free(numbers);
    for (int way = 0; way < WAYS; way++) {
        bench_link_row *rows = p->chosen[way];
        for (uint32_t i = n - 1; i > 0; i--) {
            const uint32_t j = (uint32_t)(workload_mix(i) % (i + 1)), device = rows[i].device;
            rows[i].device = rows[j].device;
            rows[j].device = device;
        }
        HOTBED_TRY(hotbed_copy(p->rows[way].data, rows, n * sizeof *rows, p->stream));
    }
    return hotbed_stream_sync(p->stream);
}

/* --- moves ------------------------------------------------------------------------------------ */

static bench_link link_of(const program *p, uint32_t bytes, int way) {
    return (bench_link){
        .n = p->n,
        .bytes = bytes,
        .writes = way == WRITE,
        .rows = p->rows[way].data,
        .host = p->pinned.data,
        .device = p->device[way].data,
        .taken = (uint32_t *)p->words.data + way,
    };
}

/* Move all rows once, in one direction. */
static hotbed_status move(const program *p, const result *r, int way) {
    const bench_link link = link_of(p, r->bytes, way);
    const size_t bytes = (size_t)p->n * r->bytes;
    if (r->kind == SPREAD)
        return bench_link_spread(&link, r->units, p->ways[way]);
    if (r->kind == OWN)
        return bench_link_own(&link, r->units, p->ways[way]);
    return way == READ ? hotbed_copy(link.device, link.host, bytes, p->ways[way])
                       : hotbed_copy(link.host + bytes, link.device, bytes, p->ways[way]);
}

/* --- check ------------------------------------------------------------------------------------ */

typedef enum touch { TOUCH_FILL, TOUCH_POISON, TOUCH_CHECK } touch;

typedef struct touch_args {
    touch what;
    uint8_t *host;
    const bench_link_row *rows;
    uint32_t bytes;
    uint32_t *wrong;
} touch_args;

static void touch_body(const void *args, uint64_t begin, uint64_t end) {
    const touch_args *a = args;
    const uint32_t words = a->bytes / sizeof(uint64_t);
    for (uint64_t i = begin; i < end; i++) {
        uint64_t *row = (uint64_t *)(void *)(a->host + (uint64_t)a->rows[i].host * a->bytes);
        for (uint32_t w = 0; w < words; w++) {
            const uint64_t word = bench_link_word(a->rows[i].host, w);
            if (a->what != TOUCH_CHECK)
                row[w] = a->what == TOUCH_FILL ? word : ~word;
            else if (row[w] != word)
                hotbed_add_relaxed_u32(a->wrong, 1);
        }
    }
}

/* Fill or check rows in host memory, on the host backend's threads. */
static hotbed_status touch_rows(
    const program *p, const result *r, touch what, int way, uint32_t *wrong) {
    const touch_args args = {what, p->pinned.data, p->chosen[way], r->bytes, wrong};
    HOTBED_TRY(hotbed_host_launch(p->host, p->n, 1024, touch_body, &args, sizeof args));
    return hotbed_stream_sync(p->host);
}

/* Move in both directions at once, from rows with known words to cleared rows, and compare. */
static hotbed_status check(const program *p, const result *r) {
    const bench_link in = link_of(p, r->bytes, READ), out = link_of(p, r->bytes, WRITE);
    uint32_t *words = p->words.data, wrong[WAYS] = {0, 0};
    HOTBED_TRY(touch_rows(p, r, TOUCH_FILL, READ, NULL));
    HOTBED_TRY(touch_rows(p, r, TOUCH_POISON, WRITE, NULL));
    HOTBED_TRY(hotbed_fill(p->device[READ].data, 0xee, p->device[READ].bytes, p->stream));
    HOTBED_TRY(bench_link_fill(&out, p->stream));
    HOTBED_TRY(hotbed_fill(words, 0, p->words.bytes, p->stream));
    HOTBED_TRY(hotbed_stream_sync(p->stream));
    for (int way = 0; way < WAYS; way++)
        HOTBED_TRY(move(p, r, way));
    for (int way = 0; way < WAYS; way++)
        HOTBED_TRY(hotbed_stream_sync(p->ways[way]));
    HOTBED_TRY(bench_link_check(&in, words + WAYS, p->stream));
    HOTBED_TRY(hotbed_copy(&wrong[READ], words + WAYS, sizeof *wrong, p->stream));
    HOTBED_TRY(hotbed_stream_sync(p->stream));
    HOTBED_TRY(touch_rows(p, r, TOUCH_CHECK, WRITE, &wrong[WRITE]));
    if (wrong[READ] != 0 || wrong[WRITE] != 0)
        return hotbed_fail(
            HOTBED_ERR_CORRUPT,
            "link: %s, %u %s, rows of %u bytes: %u words read and %u written are wrong",
            names[r->kind], r->units, units[r->kind], r->bytes, wrong[READ], wrong[WRITE]);
    return HOTBED_OK;
}

/* --- time ------------------------------------------------------------------------------------- */

static hotbed_status time_moves(program *p, result *r, int what) {
    double seconds[REPETITIONS];
    for (int i = 0; i < REPETITIONS + 1; i++) { /* the first warms up */
        HOTBED_TRY(hotbed_event_record(p->marks[0], p->ways[READ]));
        HOTBED_TRY(hotbed_stream_wait(p->ways[WRITE], p->marks[0]));
        for (int way = 0; way < WAYS; way++)
            if (moves(what, way))
                HOTBED_TRY(move(p, r, way));
        HOTBED_TRY(hotbed_event_record(p->marks[1], p->ways[WRITE]));
        HOTBED_TRY(hotbed_stream_wait(p->ways[READ], p->marks[1]));
        HOTBED_TRY(hotbed_event_record(p->marks[2], p->ways[READ]));
        HOTBED_TRY(hotbed_stream_sync(p->ways[READ]));
        HOTBED_TRY(hotbed_event_seconds(p->marks[0], p->marks[2], &seconds[i % REPETITIONS]));
    }
    const double bytes = (double)p->n * r->bytes * (what == 2 ? 2 : 1);
    r->rate[what] = bytes / workload_median(seconds, REPETITIONS);
    return HOTBED_OK;
}

/* Enqueue the model between marks 0 and 1. */
static hotbed_status run_model(program *p) {
    HOTBED_TRY(hotbed_event_record(p->marks[0], p->stream));
    HOTBED_TRY(bench_model_run(&p->model, p->layers, p->stream));
    return hotbed_event_record(p->marks[1], p->stream);
}

static hotbed_status time_model(program *p) {
    double seconds[REPETITIONS];
    for (int i = 0; i < REPETITIONS + 1; i++) {
        HOTBED_TRY(run_model(p));
        HOTBED_TRY(hotbed_stream_sync(p->stream));
        HOTBED_TRY(hotbed_event_seconds(p->marks[0], p->marks[1], &seconds[i % REPETITIONS]));
    }
    p->alone = workload_median(seconds, REPETITIONS);
    return HOTBED_OK;
}

/* Enqueue moves in one direction while the model runs, with two in flight. */
typedef struct mover {
    uint32_t begun, ended;
    double seconds; /* from the start to the end of the last completed move */
} mover;

static hotbed_status keep_moving(const program *p, const result *r, int way, mover *m) {
    hotbed_event *end = p->ends[way][m->begun % 2];
    bool passed = false;
    HOTBED_TRY(hotbed_event_query(end, &passed));
    if (!passed)
        return HOTBED_OK;
    if (m->begun >= 2) {
        m->ended = m->begun - 1;
        HOTBED_TRY(hotbed_event_seconds(p->starts[way], end, &m->seconds));
    }
    HOTBED_TRY(move(p, r, way));
    m->begun++;
    return hotbed_event_record(end, p->ways[way]);
}

/* Measure once: seconds of the model, and bytes per second moved meanwhile. If the first move does
 * not end before the model, it counts as a whole. */
static hotbed_status run_beside(
    program *p, const result *r, int what, double *seconds, double *rate) {
    mover movers[WAYS] = {{0}};
    bool done = false;
    *rate = 0;
    for (int way = 0; way < WAYS; way++) {
        if (!moves(what, way))
            continue;
        HOTBED_TRY(hotbed_event_record(p->starts[way], p->ways[way]));
        for (int i = 0; i < 2; i++)
            HOTBED_TRY(keep_moving(p, r, way, &movers[way]));
    }
    HOTBED_TRY(run_model(p));
    while (!done) {
        for (int way = 0; way < WAYS; way++)
            if (moves(what, way))
                HOTBED_TRY(keep_moving(p, r, way, &movers[way]));
        HOTBED_TRY(hotbed_event_query(p->marks[1], &done));
    }
    for (int way = 0; way < WAYS; way++) {
        mover *m = &movers[way];
        HOTBED_TRY(hotbed_stream_sync(p->ways[way]));
        if (!moves(what, way))
            continue;
        if (m->ended == 0) {
            m->ended = 1;
            HOTBED_TRY(hotbed_event_seconds(p->starts[way], p->ends[way][0], &m->seconds));
        }
        *rate += (double)m->ended * p->n * r->bytes / m->seconds;
    }
    HOTBED_TRY(hotbed_stream_sync(p->stream));
    return hotbed_event_seconds(p->marks[0], p->marks[1], seconds);
}

static hotbed_status time_beside(program *p, result *r, int what) {
    double seconds[REPETITIONS], rates[REPETITIONS];
    for (int i = 0; i < REPETITIONS; i++)
        HOTBED_TRY(run_beside(p, r, what, &seconds[i], &rates[i]));
    r->model[what] = workload_median(seconds, REPETITIONS) / p->alone;
    r->beside[what] = workload_median(rates, REPETITIONS);
    return HOTBED_OK;
}

/* --- results ---------------------------------------------------------------------------------- */

static void print(const result *r) {
    printf("%5u %-6s %5u %-5s", r->bytes, names[r->kind], r->units, units[r->kind]);
    for (int what = 0; what < CASES; what++)
        printf(" %7.1f", r->rate[what] * 1e-9);
    printf("  ");
    for (int what = 0; what < CASES; what++)
        printf(" %7.2f (%5.1f)", r->model[what], r->beside[what] * 1e-9);
    printf("\n");
    (void)fflush(stdout);
}

static void write_result(FILE *to, const program *p, uint32_t i) {
    static const char *const cases[CASES] = {"read", "write", "both"};
    const result *r = &p->results[i];
    (void)fprintf(
        to, "    {\"way\": \"%s\", \"%s\": %u, \"row_bytes\": %u, \"model_alone_ms\": %.6f",
        names[r->kind], r->kind == COPIES ? "engine" : units[r->kind], r->units, r->bytes,
        r->alone * 1e3);
    for (int what = 0; what < CASES; what++)
        (void)fprintf(
            to,
            ",\n     \"%s_gb_per_s\": %.3f, \"model_beside_%s\": %.4f, \"%s_beside_gb_per_s\": "
            "%.3f",
            cases[what], r->rate[what] * 1e-9, cases[what], r->model[what], cases[what],
            r->beside[what] * 1e-9);
    (void)fprintf(to, "}%s\n", i + 1 < p->num_results ? "," : "");
}

static hotbed_status write_json(const program *p) {
    const workload_machine *m = &p->machine;
    FILE *to = fopen(p->json, "we");
    if (to == NULL)
        return hotbed_fail(HOTBED_ERR_IO, "%s: %s", p->json, strerror(errno));
    (void)fprintf(
        to,
        "{\n  \"format\": \"hotbed-link 1\", \"commit\": \"%s\", \"date\": \"%s\",\n"
        "  \"device\": \"%s\", \"driver\": \"%s\", \"command\": \"%s\",\n"
        "  \"rows\": %u, \"gib\": %g, \"layers\": %u, \"priority\": \"%s\",\n  \"results\": [\n",
        m->commit, m->date, m->device, m->driver, m->command, p->n, p->gib, p->layers,
        p->same_priority ? "same" : "moves first");
    for (uint32_t i = 0; i < p->num_results; i++)
        write_result(to, p, i);
    (void)fprintf(to, "  ]\n}\n");
    bool written = !ferror(to);
    if (fclose(to) != 0 || !written)
        return hotbed_fail(HOTBED_ERR_IO, "%s: not written whole", p->json);
    return HOTBED_OK;
}

static hotbed_status measure(program *p, kind way, uint32_t count, uint32_t bytes) {
    result *r = &p->results[p->num_results];
    *r = (result){.kind = way, .units = count, .bytes = bytes, .alone = p->alone};
    if (way != COPIES)
        HOTBED_TRY(check(p, r));
    for (int what = 0; what < CASES; what++) {
        HOTBED_TRY(time_moves(p, r, what));
        HOTBED_TRY(time_beside(p, r, what));
    }
    p->num_results++;
    print(r);
    return HOTBED_OK;
}

static hotbed_status measure_all(program *p) {
    HOTBED_TRY(open_streams(p));
    HOTBED_TRY(workload_machine_read(p->stream, &p->machine));
    HOTBED_TRY(open_rows(p));
    HOTBED_TRY(bench_model_open(&p->model, p->stream));
    printf(
        "%s, commit %s: %u rows each way of %g GiB\n"
        "bytes way                    read   write    both GB/s   the model's time beside reads, "
        "writes, both (GB/s meanwhile)\n",
        p->machine.device, p->machine.commit, p->n, p->gib);
    for (uint32_t b = 0; b < p->bytes.n; b++) {
        const uint32_t bytes = p->bytes.items[b];
        HOTBED_TRY(choose(p, bytes));
        HOTBED_TRY(time_model(p));
        HOTBED_TRY(measure(p, COPIES, 1, bytes));
        for (uint32_t i = 0; i < p->warps.n; i++)
            HOTBED_TRY(measure(p, SPREAD, p->warps.items[i], bytes));
        for (uint32_t i = 0; i < p->sms.n; i++)
            HOTBED_TRY(measure(p, OWN, p->sms.items[i], bytes));
    }
    return p->json != NULL ? write_json(p) : HOTBED_OK;
}

/* --- arguments -------------------------------------------------------------------------------- */

/* Read multiples of `step` up to `most`, separated by commas. */
static bool read_list(const char *text, uint32_t step, uint32_t most, list *out) {
    out->n = 0;
    while (out->n < LIST_MOST) {
        char *end = NULL;
        const unsigned long item = strtoul(text, &end, 10);
        if (end == text || item == 0 || item > most || item % step != 0)
            return false;
        out->items[out->n++] = (uint32_t)item;
        if (*end == '\0')
            return true;
        if (*end != ',')
            return false;
        text = end + 1;
    }
    return false;
}

static bool read_number(const char *text, uint32_t most, uint32_t *out) {
    list one;
    const bool ok = read_list(text, 1, most, &one) && one.n == 1;
    *out = ok ? one.items[0] : 0;
    return ok;
}

static bool take(program *p, const char *name, const char *value) {
    char *end = NULL;
    if (strcmp(name, "--bytes") == 0)
        return read_list(value, 16, BENCH_LINK_BYTES_MOST, &p->bytes);
    if (strcmp(name, "--warps") == 0)
        return read_list(value, BENCH_LINK_WARPS, 1 << 16, &p->warps);
    if (strcmp(name, "--sms") == 0)
        return read_list(value, 1, 64, &p->sms);
    if (strcmp(name, "--rows") == 0)
        return read_number(value, 1 << 24, &p->n);
    if (strcmp(name, "--layers") == 0)
        return read_number(value, 10000, &p->layers);
    if (strcmp(name, "--gib") == 0) {
        p->gib = strtod(value, &end);
        return end != value && *end == '\0' && p->gib > 0 && p->gib < 64;
    }
    if (strcmp(name, "--json") == 0)
        p->json = value;
    else if (strcmp(name, "--commit") == 0)
        p->machine.commit = value;
    else
        return false;
    return true;
}

static bool parse(int argc, char **argv, program *p) {
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        const bool alone = strcmp(name, "--same-priority") == 0;
        if (alone)
            p->same_priority = true;
        else if (value == NULL || !take(p, name, value)) {
            (void)fprintf(stderr, "hotbed-link: %s\n%s", name, usage);
            return false;
        }
        i += !alone;
    }
    return true;
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--help") == 0)
        return fputs(usage, stdout) < 0 ? 2 : 0;
    static char command[512];
    static program p = {
        .bytes = {2, {512, 1536}},
        .warps = {4, {64, 128, 256, 2112}},
        .sms = {4, {1, 2, 4, 8}},
        .n = 185000,
        .layers = 60,
        .gib = 12};
    p.machine.commit = HOTBED_BENCH_COMMIT;
    p.machine.command = command;
    workload_command("hotbed-link", argc, argv, command, sizeof command);
    if (!parse(argc, argv, &p))
        return 2;
    hotbed_status status = hotbed_backend_probe(HOTBED_BACKEND_CUDA);
    if (status == HOTBED_ERR_UNSUPPORTED) {
        (void)fprintf(stderr, "hotbed-link: skipped: %s\n", hotbed_last_error());
        return SKIPPED;
    }
    if (status == HOTBED_OK)
        status = measure_all(&p);
    if (status != HOTBED_OK)
        (void)fprintf(
            stderr, "hotbed-link: %s: %s\n", hotbed_status_name(status), hotbed_last_error());
    close_all(&p);
    return status == HOTBED_OK ? 0 : 1;
}
