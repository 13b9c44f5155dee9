/* checkpoint/tool_make.c - hotbed-ckpt reshard, compact, convert --to, gc; and what is in a directory. */
#define _DEFAULT_SOURCE /* DT_DIR */
#include "checkpoint/import.h"
#include "checkpoint/tool.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- what is in a directory ------------------------------------------------------------------------------- */

static bool join(char to[TOOL_PATH_BYTES], const char *directory, const char *name) {
    int n = snprintf(to, TOOL_PATH_BYTES, "%s/%s", directory, name);
    return n > 0 && n < TOOL_PATH_BYTES;
}

static void read_entry(const char *path, tool_entry *e) {
    hotbed_io_file directory = HOTBED_IO_CLOSED;
    hotbed_manifest m = {.world = 0};
    hotbed_status status =
        hotbed_io_open(&hotbed_io_system, NULL, path, HOTBED_IO_DIRECTORY, &directory);
    if (status == HOTBED_OK)
        status = hotbed_manifest_read(&directory, &m);
    hotbed_io_drop(&directory);
    if (status != HOTBED_OK) {
        snprintf(e->error, sizeof e->error, "%s", hotbed_last_error());
        return;
    }
    e->whole = true;
    e->id = m.id;
    e->parent = m.parent;
    e->increment = m.increment;
    e->step = m.step;
    e->created_ns = m.created_ns;
    e->world = m.world;
    e->tables = m.num_tables;
    for (uint32_t t = 0; t < m.num_tables; t++)
        e->rows += m.tables[t].rows;
    for (uint32_t s = 0; s < m.world; s++)
        e->bytes += m.shards[s].bytes;
    hotbed_manifest_free(&m);
}

static int by_step(const void *a, const void *b) {
    const tool_entry *x = a, *y = b;
    if (x->whole != y->whole)
        return x->whole ? -1 : 1;
    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    if (x->created_ns != y->created_ns)
        return x->created_ns < y->created_ns ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Whether a name of `path` is a directory that has a MANIFEST, or what a save left. */
static bool is_entry(const char *path, const char *name, bool *unfinished) {
    char file[TOOL_PATH_BYTES], inside[TOOL_PATH_BYTES];
    *unfinished = strncmp(name, ".tmp-", 5) == 0;
    if ((name[0] == '.' && !*unfinished) || !join(file, path, name))
        return false;
    return *unfinished || (join(inside, file, HOTBED_MANIFEST_NAME) && access(inside, F_OK) == 0);
}

bool tool_read_directory(const char *path, tool_entry **out, size_t *n) {
    DIR *list = opendir(path);
    size_t room = 0;
    *out = NULL;
    *n = 0;
    if (list == NULL) {
        fprintf(stderr, "hotbed-ckpt: %s: %s\n", path, strerror(errno));
        return false;
    }
    for (struct dirent *item; (item = readdir(list)) != NULL;) {
        char file[TOOL_PATH_BYTES];
        bool unfinished = false;
        if (!is_entry(path, item->d_name, &unfinished) || !join(file, path, item->d_name))
            continue;
        if (*n == room) {
            room = 2 * room + 16;
            tool_entry *grown = realloc(*out, room * sizeof **out);
            if (grown == NULL) {
                closedir(list);
                free(*out);
                *out = NULL;
                fprintf(stderr, "hotbed-ckpt: no memory for %zu names\n", room);
                return false;
            }
            *out = grown;
        }
        tool_entry *e = &(*out)[(*n)++];
        *e = (tool_entry){.unfinished = unfinished};
        snprintf(e->name, sizeof e->name, "%s", item->d_name);
        if (!unfinished)
            read_entry(file, e);
    }
    closedir(list);
    if (*n > 0)
        qsort(*out, *n, sizeof **out, by_step);
    return true;
}

/* --- chains ------------------------------------------------------------------------------------------------- */

/* Directory part of a path, "." for a bare name. */
static void parent_of(const char *path, char out[TOOL_PATH_BYTES]) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    while (n > 0 && path[n - 1] != '/')
        n--;
    while (n > 1 && path[n - 1] == '/')
        n--;
    snprintf(out, TOOL_PATH_BYTES, "%.*s", (int)n, n == 0 ? "" : path);
    if (n == 0)
        snprintf(out, TOOL_PATH_BYTES, ".");
}

/* Put what `path` follows before it.  paths[0] is the last one. */
static bool collect(const char *path, char (*paths)[TOOL_PATH_BYTES], uint32_t most, uint32_t *n) {
    char directory[TOOL_PATH_BYTES];
    tool_entry *entries = NULL, first = {.whole = false};
    size_t num_entries = 0;
    parent_of(path, directory);
    snprintf(paths[0], TOOL_PATH_BYTES, "%s", path);
    *n = 1;
    read_entry(path, &first);
    if (!first.whole || !first.increment)
        return true; /* opening it says what is wrong */
    if (!tool_read_directory(directory, &entries, &num_entries))
        return false;
    hotbed_digest wanted = first.parent;
    bool more = true, found = true;
    while (more && found && *n < most) {
        found = false;
        for (size_t i = 0; i < num_entries && !found; i++) {
            if (!entries[i].whole || !hotbed_digest_equal(entries[i].id, wanted))
                continue;
            found = join(paths[*n], directory, entries[i].name);
            wanted = entries[i].parent;
            more = entries[i].increment;
            ++*n;
        }
    }
    free(entries);
    if (!found || more)
        fprintf(
            stderr, "hotbed-ckpt: %s: what it follows is not in %s, or over %" PRIu32 " long\n",
            path, directory, most);
    return found && !more;
}

hotbed_status tool_open_chain(const char *path, hotbed_chain *out) {
    static char paths[TOOL_PATHS][TOOL_PATH_BYTES];
    const char *order[TOOL_PATHS];
    uint32_t n = 0;
    *out = (hotbed_chain){.n = 0};
    if (!collect(path, paths, TOOL_PATHS, &n))
        return HOTBED_ERR_STATE;
    for (uint32_t i = 0; i < n; i++)
        order[i] = paths[n - 1 - i];
    return hotbed_chain_open(&hotbed_io_system, order, n, out);
}

/* --- reshard, compact ----------------------------------------------------------------------------------------- */

static int rewrite(const tool_options *o, const hotbed_rewrite_options *rewrite_options) {
    hotbed_chain chain;
    hotbed_status status = tool_open_chain(o->paths[0], &chain);
    if (status == HOTBED_OK)
        status = hotbed_checkpoint_rewrite(&hotbed_io_system, &chain, o->paths[1], rewrite_options);
    hotbed_chain_close(&chain);
    if (status != HOTBED_OK)
        return tool_fail(status);
    if (o->json) {
        printf("{\"path\": ");
        tool_json_text(o->paths[1]);
        printf(", \"ranks\": %" PRIu32 "}\n", rewrite_options->world);
    }
    return TOOL_SAME;
}

int tool_reshard(const tool_options *o) {
    if (o->ranks == 0)
        return tool_usage("reshard needs --ranks", "");
    hotbed_rewrite_options options = {
        .world = o->ranks, .route = o->route, .progress = &o->progress};
    return rewrite(o, &options);
}

int tool_compact(const tool_options *o) {
    hotbed_rewrite_options options = {
        .world = o->ranks == 0 ? 1 : o->ranks, .route = o->route, .progress = &o->progress};
    return rewrite(o, &options);
}

/* --- convert ---------------------------------------------------------------------------------------------------- */

int tool_convert(const tool_options *o) {
    if ((o->from == NULL) == (o->to == NULL))
        return tool_usage("convert needs --from or --to", "");
    if (o->from != NULL)
        return tool_import(o);
    hotbed_chain chain;
    hotbed_status status = tool_open_chain(o->paths[0], &chain);
    if (status == HOTBED_OK && strcmp(o->to, "npy") == 0)
        status = hotbed_checkpoint_export_npy(&hotbed_io_system, &chain, o->paths[1], &o->progress);
    else if (status == HOTBED_OK)
        status = hotbed_checkpoint_export_h5(&hotbed_io_system, &chain, o->paths[1], &o->progress);
    hotbed_chain_close(&chain);
    if (status != HOTBED_OK)
        return tool_fail(status);
    if (o->json) {
        printf("{\"path\": ");
        tool_json_text(o->paths[1]);
        printf("}\n");
    }
    return TOOL_SAME;
}

/* --- gc ----------------------------------------------------------------------------------------------------------- */

/* Keep the newest full ones, and what follows a kept one. */
static void choose(tool_entry *entries, size_t n, uint64_t keep) {
    for (size_t i = n; i-- > 0 && keep > 0;)
        if (entries[i].whole && !entries[i].increment) {
            entries[i].kept = true;
            keep--;
        }
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = 0; i < n; i++)
            for (size_t k = 0; k < n && entries[i].increment && !entries[i].kept; k++)
                if (entries[k].kept && hotbed_digest_equal(entries[k].id, entries[i].parent)) {
                    entries[i].kept = true;
                    changed = true;
                }
    }
}

/* Take the name away first: what is left of a removal that was cut short is no checkpoint. */
static bool remove_entry(const char *directory, const char *name) {
    char from[TOOL_PATH_BYTES], to[TOOL_PATH_BYTES], gone[300];
    bool unfinished = strncmp(name, ".tmp-", 5) == 0;
    snprintf(gone, sizeof gone, "%s%s", unfinished ? "" : ".tmp-gone-", name);
    if (!join(from, directory, name) || !join(to, directory, gone))
        return false;
    if (!unfinished && rename(from, to) != 0)
        return false;
    DIR *list = opendir(to);
    if (list == NULL)
        return false;
    bool good = true;
    for (struct dirent *item; (item = readdir(list)) != NULL;)
        if (strcmp(item->d_name, ".") != 0 && strcmp(item->d_name, "..") != 0)
            good = unlinkat(dirfd(list), item->d_name, 0) == 0 && good;
    closedir(list);
    return rmdir(to) == 0 && good;
}

int tool_gc(const tool_options *o) {
    tool_entry *entries = NULL;
    size_t n = 0, removed = 0;
    int result = TOOL_SAME;
    if (o->keep == 0)
        return tool_usage("gc needs --keep", "");
    if (!tool_read_directory(o->paths[0], &entries, &n))
        return TOOL_TROUBLE;
    choose(entries, n, o->keep);
    if (o->json)
        printf("[");
    for (size_t i = 0; i < n; i++) {
        const tool_entry *e = &entries[i];
        /* What is damaged is left: a person may want to look at it. */
        if (e->kept || (e->unfinished ? !o->unfinished : !e->whole))
            continue;
        if (!o->dry_run && !remove_entry(o->paths[0], e->name)) {
            fprintf(stderr, "hotbed-ckpt: cannot remove %s: %s\n", e->name, strerror(errno));
            result = TOOL_TROUBLE;
            continue;
        }
        if (o->json) {
            printf("%s", removed == 0 ? "" : ", ");
            tool_json_text(e->name);
        } else {
            printf("%s%s\n", o->dry_run ? "would remove " : "removed ", e->name);
        }
        removed++;
    }
    if (o->json)
        printf("]\n");
    free(entries);
    return result;
}
