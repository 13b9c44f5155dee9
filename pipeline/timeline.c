/* pipeline/timeline.c - write the logs of pipelines as a trace and as a picture. */
#include "hotbed/profile.h"

#include "base/check.h"
#include "base/text.h"
#include "pipeline/engine.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

/* --- files ------------------------------------------------------------------------------------ */

typedef struct writer {
    FILE *file;
    const char *path;
    int error; /* errno of the first failure */
} writer;

__attribute__((format(printf, 2, 3))) static void put(writer *w, const char *format, ...) {
    char text[1024];
    va_list values;
    va_start(values, format);
    int length = hotbed_vformat(text, sizeof text, format, values);
    va_end(values);
    size_t bytes = length < 0 ? 0 : (size_t)length;
    bytes = bytes < sizeof text ? bytes : sizeof text - 1; /* longest line */
    errno = 0;
    if (w->error == 0 && fwrite(text, 1, bytes, w->file) != bytes)
        w->error = errno == 0 ? EIO : errno;
}

static hotbed_status open_file(const char *path, writer *w) {
    *w = (writer){.file = fopen(path, "wbe"), .path = path};
    if (w->file == NULL)
        return hotbed_error_path(
            hotbed_fail_os(HOTBED_ERR_IO, errno, "%s: cannot be written", path), path);
    return HOTBED_OK;
}

static hotbed_status close_file(writer *w) {
    if (fclose(w->file) != 0 && w->error == 0)
        w->error = errno;
    if (w->error != 0)
        return hotbed_error_path(
            hotbed_fail_os(HOTBED_ERR_IO, w->error, "%s: writing failed", w->path), w->path);
    return HOTBED_OK;
}

/* --- logs ------------------------------------------------------------------------------------- */

/* A pipeline's log, in seconds since the first pipeline was created. */
typedef struct lines {
    const hotbed_pipeline *pipeline;
    hotbed_log_entry *entries;
    uint64_t n, latest; /* the latest iteration */
    double offset;
} lines;

static void free_lines(lines *all, uint32_t n) {
    for (uint32_t i = 0; all != NULL && i < n; i++)
        hotbed_delete(all[i].entries);
    hotbed_delete(all);
}

static hotbed_status read_one(hotbed_pipeline *pipeline, lines *to) {
    uint64_t capacity = pipeline->options.log_entries;
    to->pipeline = pipeline;
    to->entries = hotbed_new((capacity + 1) * sizeof *to->entries);
    HOTBED_TRY_MEMORY(to->entries, "a log of %llu entries", (unsigned long long)capacity);
    HOTBED_TRY(hotbed_pipeline_log(pipeline, capacity, to->entries, &to->n));
    for (uint64_t i = 0; i < to->n; i++)
        to->latest = to->entries[i].iteration > to->latest ? to->entries[i].iteration : to->latest;
    return HOTBED_OK;
}

static hotbed_status read_lines(uint32_t n, hotbed_pipeline *const *pipelines, lines **out) {
    hotbed_status status = HOTBED_OK;
    double first = 0.0;
    *out = NULL;
    if (n == 0 || pipelines == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "no pipelines");
    for (uint32_t i = 0; i < n; i++) {
        if (pipelines[i] == NULL)
            return hotbed_fail_value(HOTBED_ERR_ARGUMENT, NULL, i, "pipeline %u is NULL", i);
        if (i == 0 || pipelines[i]->started < first)
            first = pipelines[i]->started;
    }
    lines *all = hotbed_new(n * sizeof *all);
    HOTBED_TRY_MEMORY(all, "%u logs", n);
    for (uint32_t i = 0; i < n && status == HOTBED_OK; i++) {
        status = read_one(pipelines[i], &all[i]);
        all[i].offset = pipelines[i]->started - first;
    }
    if (status == HOTBED_OK)
        *out = all;
    else
        free_lines(all, n);
    return status;
}

static bool on_device(const hotbed_log_entry *entry) {
    return entry->device_end > 0.0;
}

/* --- trace ------------------------------------------------------------------------------------ */

enum { STREAM_THREADS = 1000 }; /* track numbers of streams begin here, of groups at 1 */

static const char *mode_name(hotbed_task_mode mode) {
    static const char *const names[] = {"run", "capture", "replay", "graft"};
    return HOTBED_NAME(names, mode, "unknown");
}

static void put_name(writer *w, int rank, uint32_t thread, const char *kind, const char *name) {
    put(w,
        ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%u,\"name\":\"thread_name\",\"args\":{\"name\":\"%s "
        "%s\"}}",
        rank, thread, kind, name);
}

static void put_slice(
    writer *w, const lines *l, const hotbed_log_entry *entry, uint32_t thread, double begin,
    double end) {
    put(w,
        ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%u,\"ts\":%.3f,\"dur\":%.3f,\"name\":\"%s\",\"cat\":"
        "\"%s\","
        "\"args\":{\"iteration\":%llu,\"turn\":%llu,\"mode\":\"%s\"}}",
        l->pipeline->options.rank, thread, 1e6 * (l->offset + begin), 1e6 * (end - begin),
        l->pipeline->program->steps[entry->task].name, thread >= STREAM_THREADS ? "device" : "host",
        (unsigned long long)entry->iteration, (unsigned long long)entry->turn,
        mode_name(entry->mode));
}

static void put_pipeline(writer *w, const lines *l, bool first) {
    const hotbed_program *program = l->pipeline->program;
    int rank = l->pipeline->options.rank;
    put(w,
        "%s\n{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":\"rank %d "
        "%s\"}}",
        first ? "" : ",", rank, rank, program->name);
    put_name(w, rank, 0, "host", "serial");
    for (uint32_t g = 0; g < program->num_groups; g++)
        put_name(w, rank, g + 1, "host", program->groups[g]);
    for (uint32_t s = 0; s < program->num_streams; s++)
        put_name(w, rank, STREAM_THREADS + s, "stream", program->stream_names[s]);
    for (uint64_t i = 0; i < l->n; i++) {
        const hotbed_log_entry *entry = &l->entries[i];
        /* group + 1 is 0 for tasks that ran on the caller's thread */
        put_slice(w, l, entry, entry->group + 1, entry->begin, entry->end);
        if (on_device(entry))
            put_slice(
                w, l, entry, STREAM_THREADS + program->steps[entry->task].stream,
                entry->device_begin, entry->device_end);
    }
}

hotbed_status hotbed_timeline_write_trace(
    uint32_t n, hotbed_pipeline *const *pipelines, const char *path) {
    lines *all = NULL;
    writer w;
    HOTBED_TRY(hotbed_check_pointer("path", path));
    HOTBED_TRY(read_lines(n, pipelines, &all));
    hotbed_status status = open_file(path, &w);
    if (status == HOTBED_OK) {
        put(&w, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
        for (uint32_t i = 0; i < n; i++)
            put_pipeline(&w, &all[i], i == 0);
        put(&w, "\n]}\n");
        status = close_file(&w);
    }
    free_lines(all, n);
    return status;
}

/* --- picture ---------------------------------------------------------------------------------- */

enum { LEFT = 150, WIDTH = 1200, LINE = 26, RECTANGLE = 22, TOP = 34, COLOURS = 6, LETTER = 6 };

/* Light enough for dark text; consecutive colours differ clearly in hue. */
static const char *const colours[COLOURS] = {"#8ecae6", "#ffb703", "#a7c957",
                                             "#f4978e", "#cdb4db", "#d4a373"};

typedef struct span {
    double begin, end;
    uint32_t line;
} span;

/* Number of lines of a pipeline: one per stream if it was timed, else one per thread. */
static uint32_t num_lines(const lines *l) {
    return l->pipeline->options.timed ? l->pipeline->program->num_streams
                                      : l->pipeline->program->num_groups + 1;
}

static span span_of(const lines *l, const hotbed_log_entry *entry) {
    if (l->pipeline->options.timed)
        return (span){
            l->offset + entry->device_begin, l->offset + entry->device_end,
            l->pipeline->program->steps[entry->task].stream};
    return (span){l->offset + entry->begin, l->offset + entry->end, entry->group + 1};
}

/* Whether the entry is drawn: its iteration is one of the latest, and its times are known. */
static bool shown(const lines *l, const hotbed_log_entry *entry, uint64_t iterations) {
    if (l->pipeline->options.timed && !on_device(entry))
        return false;
    return iterations == 0 || entry->iteration + iterations > l->latest;
}

/* Draw a task at `x`, with its name if that fits. */
static void put_rectangle(
    writer *w, const lines *l, const hotbed_log_entry *entry, double seconds, double x,
    double width, uint32_t line) {
    const char *name = l->pipeline->program->steps[entry->task].name;
    unsigned long long iteration = entry->iteration;
    double letters = width / LETTER;
    uint32_t y = TOP + line * LINE;
    put(w,
        "<rect x=\"%.2f\" y=\"%u\" width=\"%.2f\" height=\"%d\" fill=\"%s\" stroke=\"#555\" "
        "stroke-width=\"0.4\"><title>%s %llu: %.1f us</title></rect>\n",
        x, y, width < 0.5 ? 0.5 : width, RECTANGLE, colours[entry->iteration % COLOURS], name,
        iteration, 1e6 * seconds);
    if (letters >= 3.0)
        put(w, "<text x=\"%.2f\" y=\"%u\">%.*s %llu</text>\n", x + 2.0, y + 15,
            letters > 44.0 ? 42 : (int)letters - 2, name, iteration);
}

static void put_lines(writer *w, const lines *l, uint32_t at) {
    const hotbed_program *program = l->pipeline->program;
    for (uint32_t i = 0; i < num_lines(l); i++) {
        const char *name = l->pipeline->options.timed ? program->stream_names[i]
                           : i == 0                   ? "serial"
                                                      : program->groups[i - 1];
        uint32_t y = TOP + (at + i) * LINE;
        put(w,
            "<text x=\"4\" y=\"%u\">rank %d %s</text><line x1=\"%d\" x2=\"%d\" y1=\"%u\" y2=\"%u\" "
            "stroke=\"#ddd\"/>\n",
            y + 15, l->pipeline->options.rank, name, LEFT, LEFT + WIDTH, y + RECTANGLE + 2,
            y + RECTANGLE + 2);
    }
}

/* First and last second of the picture. */
static void find_range(
    const lines *all, uint32_t n, uint64_t iterations, double *from, double *to) {
    bool any = false;
    *from = *to = 0.0;
    for (uint32_t p = 0; p < n; p++)
        for (uint64_t i = 0; i < all[p].n; i++) {
            if (!shown(&all[p], &all[p].entries[i], iterations))
                continue;
            const span s = span_of(&all[p], &all[p].entries[i]);
            *from = !any || s.begin < *from ? s.begin : *from;
            *to = !any || s.end > *to ? s.end : *to;
            any = true;
        }
}

static void put_picture(writer *w, const lines *all, uint32_t n, uint64_t iterations) {
    double from, to;
    uint32_t total = 0, at = 0;
    find_range(all, n, iterations, &from, &to);
    double scale = to > from ? WIDTH / (to - from) : 0.0;
    for (uint32_t p = 0; p < n; p++)
        total += num_lines(&all[p]);
    put(w,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%u\" "
        "font-family=\"sans-serif\" font-size=\"11\">\n"
        "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
        "<text x=\"4\" y=\"18\">%s: %.3f ms; a colour is an iteration, its number stands behind "
        "the "
        "task</text>\n",
        LEFT + WIDTH + 10, TOP + total * LINE + 10, all[0].pipeline->program->name,
        1e3 * (to - from));
    for (uint32_t p = 0; p < n; p++) {
        put_lines(w, &all[p], at);
        for (uint64_t i = 0; i < all[p].n; i++) {
            const hotbed_log_entry *entry = &all[p].entries[i];
            if (!shown(&all[p], entry, iterations))
                continue;
            const span s = span_of(&all[p], entry);
            put_rectangle(
                w, &all[p], entry, s.end - s.begin, LEFT + scale * (s.begin - from),
                scale * (s.end - s.begin), at + s.line);
        }
        at += num_lines(&all[p]);
    }
    put(w, "</svg>\n");
}

hotbed_status hotbed_timeline_write_picture(
    uint32_t n, hotbed_pipeline *const *pipelines, uint64_t iterations, const char *path) {
    lines *all = NULL;
    writer w;
    HOTBED_TRY(hotbed_check_pointer("path", path));
    HOTBED_TRY(read_lines(n, pipelines, &all));
    hotbed_status status = open_file(path, &w);
    if (status == HOTBED_OK) {
        put_picture(&w, all, n, iterations);
        status = close_file(&w);
    }
    free_lines(all, n);
    return status;
}
