/* checkpoint/tool/tool_show.c - hotbed-ckpt list, inspect, verify. */
#include "checkpoint/tool/tool.h"
#include "checkpoint/verify.h"

#include "base/error.h"
#include "base/stream.h"
#include "hotbed/read.h"
#include "hotbed/route.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const kinds[] = {"hash", "static"};

static void time_text(uint64_t ns, char text[32]) {
    time_t seconds = (time_t)(ns / 1000000000U);
    struct tm parts;
    text[0] = '\0';
    if (gmtime_r(&seconds, &parts) == NULL || strftime(text, 32, "%Y-%m-%dT%H:%M:%SZ", &parts) == 0)
        snprintf(text, 32, "%" PRIu64, ns);
}

/* --- list ------------------------------------------------------------------------------------------------ */

static void list_json(const tool_entry *e) {
    printf("{\"name\": ");
    tool_json_text(e->name);
    printf(", \"state\": \"%s\"", tool_state_name(e->state));
    if (e->state == TOOL_LINK) {
        printf(", \"target\": ");
        tool_json_text(e->text);
    } else if (e->described) {
        printf(", \"kind\": \"%s\"", e->increment ? "delta" : "full");
        printf(
            ", \"id\": \"%s\", \"parent\": \"%s\"", hotbed_digest_text(e->id).text,
            e->increment ? hotbed_digest_text(e->parent).text : "");
        printf(
            ", \"step\": %" PRIu64 ", \"created_unix_ns\": %" PRIu64 ", \"ranks\": %" PRIu32
            ", \"tables\": %" PRIu32 ", \"rows\": %" PRIu64 ", \"bytes\": %" PRIu64,
            e->step, e->created_ns, e->world, e->tables, e->rows, e->bytes);
    }
    if (e->state != TOOL_LINK && e->text[0] != '\0') {
        printf(", \"error\": ");
        tool_json_text(e->text);
    }
    printf("}");
}

static void list_line(const tool_entry *e) {
    char when[32];
    time_text(e->created_ns, when);
    printf("%-32s ", tool_show(e->name).text);
    if (e->state == TOOL_LINK)
        printf("-> %s\n", tool_show(e->text).text);
    else if (e->state == TOOL_WHOLE)
        printf(
            "%-5s step %-10" PRIu64 " %s %3" PRIu32 " %-5s %3" PRIu32 " %-6s %12" PRIu64
            " rows %14" PRIu64 " bytes\n",
            e->increment ? "delta" : "full", e->step, when, e->world,
            e->world == 1 ? "rank" : "ranks", e->tables, e->tables == 1 ? "table" : "tables",
            e->rows, e->bytes);
    else if (e->state == TOOL_OTHER)
        printf("not a checkpoint\n");
    else
        printf("%s%s%s\n", tool_state_name(e->state), e->text[0] == '\0' ? "" : ": ", e->text);
}

int tool_list(const tool_options *o) {
    tool_entry *entries = NULL;
    size_t n = 0;
    bool damaged = false;
    hotbed_status status = tool_read_checkpoints(o->paths[0], &entries, &n);
    if (status != HOTBED_OK)
        return tool_fail(status);
    tool_note_empty(o->paths[0], entries, n);
    if (o->json)
        printf("[");
    for (size_t i = 0; i < n; i++) {
        damaged = damaged || tool_is_broken(&entries[i]);
        if (o->json && i > 0)
            printf(",\n ");
        if (o->json)
            list_json(&entries[i]);
        else
            list_line(&entries[i]);
    }
    if (o->json)
        printf("]\n");
    hotbed_delete(entries);
    return damaged ? TOOL_DIFFERS : TOOL_SAME;
}

/* --- inspect --------------------------------------------------------------------------------------------- */

static void inspect_table(const hotbed_manifest *m, uint32_t number, bool json) {
    const hotbed_manifest_table *t = &m->tables[number];
    uint64_t counted = 0, erased = 0, bytes = 0;
    for (uint32_t s = 0; s < m->world; s++) {
        const hotbed_manifest_part *part = &m->parts[(uint64_t)number * m->world + s];
        counted += part->counted;
        erased += part->erased;
        for (uint32_t i = 0; i < HOTBED_COLUMNS; i++)
            bytes += part->columns[i].bytes;
    }
    const char *route =
        t->route == 0 ? "none" : hotbed_route_name((hotbed_route_kind)(t->route - 1));
    printf(
        json ? "{\"name\": \"%s\", \"kind\": \"%s\", \"dtype\": \"%s\", \"state_dtype\": \"%s\", "
               "\"dim\": %" PRIu32 ", \"rows\": %" PRIu64 ", \"counted\": %" PRIu64
               ", \"erased\": %" PRIu64 ", \"bytes\": %" PRIu64
               ", \"route\": \"%s\", \"storage\": \"%s\", \"content\": \"%s\"}"
             : "table %-24s %-6s %-4s states %-4s dim %-4" PRIu32 " rows %-12" PRIu64
               " counted %" PRIu64 " erased %" PRIu64 " bytes %" PRIu64
               " route %s storage %s content %s\n",
        t->name, kinds[t->kind], hotbed_dtype_name(t->dtype), hotbed_dtype_name(t->state_dtype),
        t->dim, t->rows, counted, erased, bytes, route, hotbed_manifest_origin(m, t)->name,
        hotbed_digest_text(t->content).text);
}

static const char *const poolings[] = {"none", "sum", "mean"};

static void inspect_storage(const hotbed_manifest_storage *s, bool json) {
    printf(
        json ? "{\"name\": \"%s\", \"pooling\": \"%s\", \"key_type\": \"%s\", \"seed\": %" PRIu64
               ", \"optimizer\": \"%s\", \"optimizer_steps\": %" PRIu64 ", \"learning_rate\": %.9g}"
             : "storage %s: pooling %s, keys %s, seed %" PRIu64 ", optimizer %s, %" PRIu64
               " steps, learning rate %g\n",
        s->name, poolings[s->pooling], s->key_type == HOTBED_KEY_I64 ? "i64" : "u64", s->seed,
        s->optimizer.kind == 0 ? "none" : hotbed_optimizer_name(s->optimizer.kind),
        s->state.optimizer_steps, (double)s->state.learning_rate);
}

static void inspect_json(const hotbed_manifest *m) {
    printf(
        "\"format\": %d, \"id\": \"%s\", \"kind\": \"%s\", \"parent\": \"%s\", "
        "\"step\": %" PRIu64 ", \"created_unix_ns\": %" PRIu64 ", \"writer\": \"%s\", "
        "\"ranks\": %" PRIu32 ", \"block_bytes\": %" PRIu32 ", \"storages\": [",
        HOTBED_FORMAT, hotbed_digest_text(m->id).text, m->increment ? "delta" : "full",
        m->increment ? hotbed_digest_text(m->parent).text : "", m->step, m->created_ns, m->writer,
        m->world, m->block_bytes);
    for (uint32_t i = 0; i < m->num_storages; i++) {
        printf(i == 0 ? "" : ",\n ");
        inspect_storage(&m->storages[i], true);
    }
    printf("], \"blobs\": {");
    for (uint32_t i = 0; i < m->num_blobs; i++)
        printf(
            "%s\"%s\": %" PRIu64, i == 0 ? "" : ", ", m->blobs[i].name, m->blobs[i].extent.bytes);
    printf("}, \"tables\": [");
    for (uint32_t t = 0; t < m->num_tables; t++) {
        printf(t == 0 ? "" : ",\n ");
        inspect_table(m, t, true);
    }
    printf("]}");
}

static void inspect_text(const hotbed_manifest *m) {
    char when[32];
    time_text(m->created_ns, when);
    printf(
        "format %d, %s, id %s\n", HOTBED_FORMAT, m->increment ? "delta" : "full",
        hotbed_digest_text(m->id).text);
    if (m->increment)
        printf("parent %s\n", hotbed_digest_text(m->parent).text);
    printf(
        "step %" PRIu64 ", created %s by %s\n%" PRIu32 " rank%s, blocks of %" PRIu32 " bytes\n",
        m->step, when, m->writer, m->world, m->world == 1 ? "" : "s", m->block_bytes);
    for (uint32_t i = 0; i < m->num_storages; i++)
        inspect_storage(&m->storages[i], false);
    for (uint32_t i = 0; i < m->num_blobs; i++)
        printf("blob %s bytes %" PRIu64 "\n", m->blobs[i].name, m->blobs[i].extent.bytes);
    for (uint32_t t = 0; t < m->num_tables; t++)
        inspect_table(m, t, false);
}

static hotbed_status read_manifest(const char *path, hotbed_manifest *m) {
    hotbed_io_file directory = HOTBED_IO_CLOSED;
    hotbed_status status =
        hotbed_io_open(&hotbed_io_system, NULL, path, HOTBED_IO_DIRECTORY, &directory);
    HOTBED_THEN(status, hotbed_manifest_read(&directory, m));
    hotbed_io_drop(&directory);
    return status;
}

static hotbed_status inspect(const tool_options *o, const char *path) {
    hotbed_manifest m = {.world = 0};
    HOTBED_TRY(tool_explain(path, read_manifest(path, &m)));
    if (o->json)
        printf("{");
    if (o->json)
        inspect_json(&m);
    else
        inspect_text(&m);
    hotbed_manifest_free(&m);
    return HOTBED_OK;
}

int tool_inspect(const tool_options *o) {
    const hotbed_status status = inspect(o, o->paths[0]);
    printf(status == HOTBED_OK && o->json ? "\n" : "");
    return status == HOTBED_OK ? TOOL_SAME : tool_fail(status);
}

/* --- verify ------------------------------------------------------------------------------------------------ */

static hotbed_status verify_one(const tool_options *o, const char *path) {
    return o->quick ? hotbed_checkpoint_verify_quick(tool_files(), path)
                    : hotbed_checkpoint_verify(tool_files(), path, &o->progress);
}

/* Names in a directory that are not of its checkpoint. */
typedef struct others {
    uint32_t world;
    bool json;
    uint64_t n; /* printed */
} others;

static void print_other(void *context, const char *name) {
    others *o = context;
    const unsigned long shard = strncmp(name, "shard-", 6) == 0 ? strtoul(name + 6, NULL, 10) : 0;
    if (strcmp(name, HOTBED_MANIFEST_NAME) == 0 || strcmp(name, HOTBED_INDEX_NAME) == 0 ||
        (shard < o->world && strcmp(name, hotbed_shard_name((uint32_t)shard, o->world).text) == 0))
        return;
    printf(o->n++ > 0 ? ", " : o->json ? "" : "; not of the checkpoint: ");
    if (o->json)
        tool_json_text(name);
    else
        printf("%s", tool_show(name).text);
}

static void print_others(const char *path, uint32_t world, bool json) {
    hotbed_io_file directory = HOTBED_IO_CLOSED;
    others o = {.world = world, .json = json};
    if (hotbed_io_open(&hotbed_io_system, NULL, path, HOTBED_IO_DIRECTORY, &directory) == HOTBED_OK)
        (void)hotbed_io_system.list(hotbed_io_system.self, directory.handle, print_other, &o);
    hotbed_io_drop(&directory);
}

/* Print what is to be known of a checkpoint without damage. */
static void print_good(const char *path, bool json) {
    hotbed_manifest m = {.world = 0};
    const bool increment = read_manifest(path, &m) == HOTBED_OK && m.increment;
    printf(increment && !json ? "; an increment, whose parents were not read" : "");
    print_others(path, m.world, json);
    hotbed_manifest_free(&m);
}

/* --- verify: a published directory ------------------------------------------------------------------------- */

/* Do what a reader does at its start, which reads every byte of the newest base and of the cuts after it. *out
 * is NULL if no cut can be used. Errors: as hotbed_reader_open() and hotbed_reader_health(). */
static hotbed_status verify_published(
    const tool_options *o, const char *path, hotbed_reader **out) {
    *out = NULL;
    if (o->quick)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "%s is a published directory: --quick is for checkpoints", path);
    HOTBED_TRY(hotbed_reader_open(path, NULL, out));
    return hotbed_reader_health(*out, 0.0);
}

/* Print which cut a reader answers from. */
static void print_cut(hotbed_reader *reader, bool json) {
    hotbed_reader_stats stats = {.size = sizeof stats};
    uint64_t keys = 0;
    const uint32_t tables = hotbed_reader_num_tables(reader);
    for (uint32_t t = 0; t < tables; t++) {
        hotbed_reader_table table = {.size = sizeof table};
        if (hotbed_reader_table_info(reader, t, &table) == HOTBED_OK)
            keys += table.keys;
    }
    if (hotbed_reader_get_stats(reader, &stats) == HOTBED_OK)
        printf(
            json ? ", \"cut\": %" PRIu64 ", \"base\": %" PRIu64 ", \"step\": %" PRIu64
                   ", \"tables\": %" PRIu32 ", \"keys\": %" PRIu64
                 : "; readers have cut %" PRIu64 ", base %" PRIu64 ", step %" PRIu64
                   ", tables %" PRIu32 ", keys %" PRIu64,
            stats.version, stats.base, stats.step, tables, keys);
}

/* --- verify: the results ------------------------------------------------------------------------------------ */

/* Print the result of a path, and return it as an exit status. `reader`: of a published directory, or NULL. *first
 * is set until one was printed. */
static int report(
    const tool_options *o, const char *path, hotbed_status status, hotbed_reader *reader,
    bool *first) {
    const bool good = status == HOTBED_OK;
    if (o->json) {
        printf(*first ? "{\"path\": " : ",\n {\"path\": ");
        tool_json_text(path);
        printf(", \"status\": \"%s\", \"error\": ", hotbed_status_name(status));
        tool_json_text(good ? "" : hotbed_last_error());
    } else {
        printf("%s: %s", tool_show(path).text, good ? "good" : hotbed_last_error());
    }
    if (reader != NULL)
        print_cut(reader, o->json);
    printf(o->json ? ", \"others\": [" : "");
    if (good && reader == NULL)
        print_good(path, o->json);
    printf(o->json ? "]}" : "\n");
    *first = false;
    return good ? TOOL_SAME : status == HOTBED_ERR_CORRUPT ? TOOL_DIFFERS : TOOL_TROUBLE;
}

/* Verify a path. Returns an exit status. */
static int verify_path(const tool_options *o, const char *path, bool *first) {
    hotbed_reader *reader = NULL;
    const bool published = tool_is_published(path);
    const hotbed_status status =
        published ? verify_published(o, path, &reader) : tool_explain(path, verify_one(o, path));
    const int result = report(o, path, status, reader, first);
    hotbed_reader_close(reader);
    /* STATE: a cut is missing, or no base is whole */
    return published && status == HOTBED_ERR_STATE ? TOOL_DIFFERS : result;
}

int tool_verify(const tool_options *o) {
    int result = TOOL_SAME;
    bool first = true;
    if (o->json)
        printf("[");
    for (uint32_t i = 0; i < o->num_paths; i++) {
        const int one = verify_path(o, o->paths[i], &first);
        result = one > result ? one : result;
    }
    if (o->json)
        printf("]\n");
    return result;
}
