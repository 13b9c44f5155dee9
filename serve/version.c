/* serve/version.c - mapped files, the index of changes, and the search for a key. */
#include "serve/version.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/hash_core.h"
#include "base/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- files ------------------------------------------------------------------------------------ */

static hotbed_status map_open(
    int directory, const char *full, const char *name, uint64_t least, hotbed_map *out) {
    struct stat stat;
    int file = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0 && errno == ENOENT)
        return hotbed_fail_path_os(HOTBED_ERR_CORRUPT, full, errno, "%s is missing", full);
    if (file < 0 && errno == ELOOP)
        return hotbed_fail_path_os(
            HOTBED_ERR_CORRUPT, full, errno, "%s is a symbolic link, not a file", full);
    if (file < 0)
        return hotbed_fail_path_os(HOTBED_ERR_IO, full, errno, "cannot open %s", full);
    hotbed_status status = HOTBED_OK;
    if (fstat(file, &stat) != 0)
        status =
            hotbed_fail_path_os(HOTBED_ERR_IO, full, errno, "cannot read the size of %s", full);
    else if (!S_ISREG(stat.st_mode) || (uint64_t)stat.st_size < least)
        status = hotbed_fail_path_value(
            HOTBED_ERR_CORRUPT, full, NULL, least,
            "%s is not a plain file of %" PRIu64 " bytes or more", full, least);
    if (status == HOTBED_OK) {
        void *data = mmap(NULL, (size_t)stat.st_size, PROT_READ, MAP_SHARED, file, 0);
        if (data == MAP_FAILED)
            status = hotbed_fail_path_os(
                errno == ENOMEM ? HOTBED_ERR_MEMORY : HOTBED_ERR_IO, full, errno, "cannot map %s",
                full);
        else
            *out = (hotbed_map){.data = data, .bytes = (uint64_t)stat.st_size};
    }
    close(file);
    return status;
}

static void map_close(hotbed_map *map) {
    if (map->data != NULL)
        munmap(map->data, map->bytes);
    map->data = NULL;
}

void hotbed_files_release(hotbed_files *f) {
    if (f == NULL || --f->users > 0)
        return;
    for (uint32_t r = 0; f->maps != NULL && r < f->cut.head->world; r++)
        map_close(&f->maps[r]);
    map_close(&f->cut_map);
    hotbed_delete(f->maps);
    hotbed_delete(f->rows);
    hotbed_delete(f);
}

/* "path/name" for the errors of a check. */
typedef struct full_name {
    char text[900];
} full_name;

static full_name name_of(const char *path, const char *name) {
    full_name full;
    snprintf(full.text, sizeof full.text, "%.800s/%s", path, name);
    return full;
}

hotbed_status hotbed_files_head(
    int directory, const char *path, uint64_t number, hotbed_files **out) {
    const hotbed_cut_file name = hotbed_cut_name(number);
    *out = NULL;
    hotbed_files *f = hotbed_new(sizeof *f);
    HOTBED_TRY_MEMORY(f, "%s/%s", path, name.text);
    f->users = 1;
    full_name full = name_of(path, name.text);
    hotbed_status status = map_open(directory, full.text, name.text, 1, &f->cut_map);
    HOTBED_THEN(
        status, hotbed_cut_parse(full.text, number, f->cut_map.data, f->cut_map.bytes, &f->cut));
    if (status == HOTBED_OK)
        *out = f;
    else
        hotbed_files_release(f);
    return status;
}

static hotbed_status open_rows(hotbed_files *f, int directory, const char *path, uint32_t rank) {
    const hotbed_cut_file name = hotbed_rows_name(f->cut.head->number, rank);
    full_name full = name_of(path, name.text);
    hotbed_map *map = &f->maps[rank];
    HOTBED_TRY(map_open(directory, full.text, name.text, 1, map));
    HOTBED_TRY(hotbed_rows_parse(full.text, &f->cut, rank, map->data, map->bytes, &f->rows[rank]));
    return hotbed_rows_verify(full.text, &f->cut, rank, &f->rows[rank]);
}

hotbed_status hotbed_files_open(
    int directory, const char *path, uint64_t number, hotbed_files **out) {
    HOTBED_TRY(hotbed_files_head(directory, path, number, out));
    hotbed_files *f = *out;
    uint32_t world = f->cut.head->world;
    f->maps = hotbed_new(world * sizeof *f->maps);
    f->rows = hotbed_new(world * sizeof *f->rows);
    hotbed_status status =
        HOTBED_CHECK_MEMORY(f->maps != NULL && f->rows != NULL, "%" PRIu32 " files", world);
    for (uint32_t r = 0; r < world && status == HOTBED_OK; r++)
        status = open_rows(f, directory, path, r);
    if (status != HOTBED_OK) {
        hotbed_files_release(f);
        *out = NULL;
    }
    return status;
}

/* --- the search ------------------------------------------------------------------------------- */

/* The entry of a key, or the empty one where it would be. There is always an empty one. */
static hotbed_change *change_of(const hotbed_version_table *t, uint64_t key, uint64_t hash) {
    uint64_t at = hash & t->mask;
    while (t->changes[at].ref != 0 && t->changes[at].key != key)
        at = (at + 1) & t->mask;
    return &t->changes[at];
}

/* The columns of the base in which a key would be. */
typedef struct place {
    const hotbed_rows_table *table;
    const hotbed_rows_file *file;
    uint64_t bucket;
    uint32_t first, end;
} place;

static const unsigned char *row_of(const hotbed_rows_file *file, uint32_t table, uint32_t row) {
    return (const unsigned char *)hotbed_rows_column_of(file, table, HOTBED_ROWS_VALUES) +
           (uint64_t)row * file->tables[table].row_bytes;
}

static const hotbed_rows_file *base_of(
    const hotbed_version *v, const hotbed_version_table *t, uint64_t key) {
    return v->rows[v->world == 1 ? 0 : hotbed_route_rank(&t->route, key)];
}

/* Each loop starts loads that the next one needs, so the loads of all keys are in flight at once. */
void hotbed_version_find(
    const hotbed_version *v, uint32_t table, uint32_t n, const uint64_t *keys,
    const unsigned char **rows) {
    const hotbed_version_table *t = &v->tables[table];
    uint64_t hashes[HOTBED_FIND_MOST];
    place places[HOTBED_FIND_MOST];
    for (uint32_t i = 0; i < n; i++) {
        hashes[i] = hotbed_hash_u64(keys[i]);
        place *p = &places[i];
        p->file = base_of(v, t, keys[i]);
        p->table = &p->file->tables[table];
        p->bucket = p->table->bits == 0 ? 0 : hashes[i] >> (64 - p->table->bits);
        if (t->mask != 0)
            hotbed_prefetch(&t->changes[hashes[i] & t->mask]);
        if (p->table->rows > 0)
            hotbed_prefetch(
                (const uint32_t *)hotbed_rows_column_of(p->file, table, HOTBED_ROWS_STARTS) +
                p->bucket);
    }
    for (uint32_t i = 0; i < n; i++) {
        place *p = &places[i];
        p->first = p->end = 0;
        rows[i] = NULL;
        uint64_t ref = t->mask == 0 ? 0 : change_of(t, keys[i], hashes[i])->ref;
        if (ref == HOTBED_CHANGE_ERASED)
            continue;
        if (ref != 0) {
            rows[i] = row_of(v->rows[(ref >> 32) - 1], table, (uint32_t)ref);
            hotbed_prefetch_item(rows[i], t->value_bytes);
            continue;
        }
        if (p->table->rows == 0)
            continue;
        const uint32_t *starts = hotbed_rows_column_of(p->file, table, HOTBED_ROWS_STARTS);
        p->first = starts[p->bucket];
        p->end = starts[p->bucket + 1];
        hotbed_prefetch(
            (const uint64_t *)hotbed_rows_column_of(p->file, table, HOTBED_ROWS_KEYS) + p->first);
    }
    for (uint32_t i = 0; i < n; i++) {
        place *p = &places[i];
        const uint64_t *all = hotbed_rows_column_of(p->file, table, HOTBED_ROWS_KEYS);
        for (; p->first < p->end; p->first++)
            if (all[p->first] == keys[i]) {
                rows[i] = row_of(p->file, table, p->first);
                hotbed_prefetch_item(rows[i], t->value_bytes);
                break;
            }
    }
}

/* --- versions --------------------------------------------------------------------------------- */

double hotbed_cut_age(uint64_t created_ns, uint64_t used_ns) {
    const uint64_t now = hotbed_realtime_now(), used = hotbed_monotonic_now() - used_ns;
    const uint64_t copied = now > created_ns ? now - created_ns : 0;
    return 1e-9 * (double)(copied > used ? copied : used);
}

bool hotbed_cut_same_tables(const hotbed_cut *a, const hotbed_cut *b) {
    bool same = a->head->tables == b->head->tables;
    for (uint32_t t = 0; same && t < a->head->tables; t++)
        same = strncmp(a->tables[t].name, b->tables[t].name, sizeof a->tables[t].name) == 0 &&
               a->tables[t].dim == b->tables[t].dim &&
               a->tables[t].key_type == b->tables[t].key_type;
    return same;
}

void hotbed_version_free(hotbed_version *v) {
    if (v == NULL)
        return;
    for (uint64_t i = 0; v->files != NULL && i < v->num_files; i++)
        hotbed_files_release(v->files[i]);
    for (uint32_t t = 0; v->tables != NULL && t < v->num_tables; t++)
        hotbed_delete(v->tables[t].changes);
    hotbed_delete(v->files);
    hotbed_delete(v->rows);
    hotbed_delete(v->tables);
    hotbed_delete(v);
}

/* Allocate a version with these files, of which it becomes a user, after `num` others. */
static hotbed_status version_new(
    hotbed_files *const *before, uint64_t num, hotbed_files *files, hotbed_version **out) {
    const hotbed_cut *cut = &files->cut;
    uint32_t world = cut->head->world, tables = cut->head->tables;
    hotbed_version *v = hotbed_new(sizeof *v);
    if (v != NULL) {
        v->files = hotbed_new((num + 1) * sizeof(hotbed_files *));
        v->rows = hotbed_new((num + 1) * world * sizeof(hotbed_rows_file *));
        v->tables = hotbed_new(tables * sizeof *v->tables);
    }
    if (v == NULL || v->files == NULL || v->rows == NULL || v->tables == NULL) {
        hotbed_version_free(v);
        return hotbed_fail(
            HOTBED_ERR_MEMORY, "no memory for a version of %" PRIu32 " tables", tables);
    }
    v->number = cut->head->number;
    v->digest = cut->digest;
    v->base = cut->head->base;
    v->step = cut->head->step;
    v->created_ns = cut->head->created_ns;
    v->run = cut->head->run;
    v->num_tables = tables;
    v->world = world;
    for (uint64_t i = 0; i <= num; i++) {
        hotbed_files *f = i < num ? before[i] : files;
        f->users++;
        v->files[v->num_files++] = f;
        for (uint32_t r = 0; r < world; r++)
            v->rows[v->num_rows++] = &f->rows[r];
    }
    for (uint32_t t = 0; t < tables; t++) {
        v->tables[t].dim = cut->tables[t].dim;
        v->tables[t].encoding = (hotbed_encoding)cut->tables[t].encoding;
        v->tables[t].missing = cut->tables[t].missing;
        v->tables[t].row_bytes = files->rows[0].tables[t].row_bytes;
        v->tables[t].value_bytes = hotbed_encoded_bytes(v->tables[t].encoding, v->tables[t].dim);
    }
    *out = v;
    return HOTBED_OK;
}

static hotbed_status check_keys(const hotbed_version *v, const hotbed_cut *cut) {
    for (uint32_t t = 0; t < v->num_tables; t++)
        if (v->tables[t].keys != cut->tables[t].keys)
            return hotbed_fail_table(
                HOTBED_ERR_CORRUPT, cut->tables[t].name,
                "cut %" PRIu64 ": table '%s' has %" PRIu64 " keys; the cut claims %" PRIu64,
                v->number, cut->tables[t].name, v->tables[t].keys, cut->tables[t].keys);
    return HOTBED_OK;
}

static hotbed_status set_routes(hotbed_version *v, const hotbed_cut *cut) {
    for (uint32_t t = 0; v->world > 1 && t < v->num_tables; t++)
        HOTBED_TRY(hotbed_route_init(
            &v->tables[t].route, (hotbed_route_kind)cut->tables[t].route, v->world,
            cut->tables[t].route_rows));
    return HOTBED_OK;
}

static hotbed_status finish(hotbed_version *v, hotbed_status status, hotbed_version **out) {
    *out = status == HOTBED_OK ? v : NULL;
    if (status != HOTBED_OK)
        hotbed_version_free(v);
    return status;
}

hotbed_status hotbed_version_of_base(hotbed_files *files, hotbed_version **out) {
    hotbed_version *v = NULL;
    *out = NULL;
    HOTBED_TRY(version_new(NULL, 0, files, &v));
    for (uint32_t t = 0; t < v->num_tables; t++)
        for (uint32_t r = 0; r < v->world; r++)
            v->tables[t].keys += files->rows[r].tables[t].rows;
    hotbed_status status = set_routes(v, &files->cut);
    HOTBED_THEN(status, check_keys(v, &files->cut));
    return finish(v, status, out);
}

/* Copy the changes of a table to an index with space for `more` others: at most half of it is used. */
static hotbed_status copy_changes(
    const hotbed_version_table *from, uint64_t more, hotbed_version_table *to) {
    uint64_t entries = 16, n = from->num_changes + more;
    if (n == 0)
        return HOTBED_OK;
    while (entries < 2 * n)
        entries *= 2;
    to->changes = hotbed_new(entries * sizeof *to->changes);
    HOTBED_TRY_MEMORY(to->changes, "an index of %" PRIu64 " changed rows", n);
    to->mask = entries - 1;
    to->num_changes = from->num_changes;
    if (from->mask == to->mask) {
        memcpy(to->changes, from->changes, entries * sizeof *to->changes);
        return HOTBED_OK;
    }
    for (uint64_t i = 0; from->mask != 0 && i <= from->mask; i++)
        if (from->changes[i].ref != 0)
            *change_of(to, from->changes[i].key, hotbed_hash_u64(from->changes[i].key)) =
                from->changes[i];
    return HOTBED_OK;
}

static bool in_base(const hotbed_version *v, uint32_t table, uint64_t key) {
    const hotbed_rows_file *file = base_of(v, &v->tables[table], key);
    const hotbed_rows_table *t = &file->tables[table];
    if (t->rows == 0)
        return false;
    const uint64_t *keys = hotbed_rows_column_of(file, table, HOTBED_ROWS_KEYS);
    const uint32_t *starts = hotbed_rows_column_of(file, table, HOTBED_ROWS_STARTS);
    uint64_t bucket = hotbed_rows_bucket(key, t->bits);
    for (uint32_t i = starts[bucket]; i < starts[bucket + 1]; i++)
        if (keys[i] == key)
            return true;
    return false;
}

/* Set the entry of a key, and count the table's keys. */
static void change(hotbed_version *v, uint32_t table, uint64_t key, uint64_t ref) {
    hotbed_version_table *t = &v->tables[table];
    hotbed_change *entry = change_of(t, key, hotbed_hash_u64(key));
    bool was = entry->ref == 0 ? in_base(v, table, key) : entry->ref != HOTBED_CHANGE_ERASED;
    t->num_changes += entry->ref == 0;
    *entry = (hotbed_change){.key = key, .ref = ref};
    t->keys += ref != HOTBED_CHANGE_ERASED && !was;
    t->keys -= ref == HOTBED_CHANGE_ERASED && was;
}

static hotbed_status apply_table(
    const hotbed_version *before, const hotbed_files *files, uint32_t t, hotbed_version *v) {
    uint64_t more = 0, first = (v->num_files - 1) * v->world;
    for (uint32_t r = 0; r < v->world; r++)
        more += files->rows[r].tables[t].rows + files->rows[r].tables[t].erased;
    v->tables[t].keys = before->tables[t].keys;
    HOTBED_TRY(copy_changes(&before->tables[t], more, &v->tables[t]));
    for (uint32_t r = 0; r < v->world; r++) {
        const hotbed_rows_file *file = &files->rows[r];
        const uint64_t *erased = hotbed_rows_column_of(file, t, HOTBED_ROWS_ERASED);
        const uint64_t *keys = hotbed_rows_column_of(file, t, HOTBED_ROWS_KEYS);
        for (uint64_t i = 0; i < file->tables[t].erased; i++)
            change(v, t, erased[i], HOTBED_CHANGE_ERASED);
        for (uint64_t i = 0; i < file->tables[t].rows; i++)
            change(v, t, keys[i], (first + r + 1) << 32 | i);
    }
    return HOTBED_OK;
}

static hotbed_status check_follows(const hotbed_version *before, const hotbed_cut *cut) {
    const hotbed_cut_head *head = cut->head;
    if (head->parent != before->number || !hotbed_digest_equal(head->before, before->digest))
        return hotbed_fail_limit(
            HOTBED_ERR_STATE, "cut", head->number, before->number,
            "cut %" PRIu64 " follows cut %" PRIu64 "; the reader has cut %" PRIu64 "%s",
            head->number, head->parent, before->number,
            head->parent == before->number ? ", which has another digest" : "");
    bool same = head->world == before->world && head->base == before->base &&
                hotbed_digest_equal(head->run, before->run) &&
                hotbed_cut_same_tables(cut, &before->files[0]->cut);
    for (uint32_t t = 0; same && t < head->tables; t++)
        same = cut->tables[t].encoding == (uint32_t)before->tables[t].encoding &&
               cut->tables[t].optimizer == before->files[0]->cut.tables[t].optimizer &&
               cut->tables[t].route == before->files[0]->cut.tables[t].route &&
               cut->tables[t].route_rows == before->files[0]->cut.tables[t].route_rows;
    return same ? HOTBED_OK
                : hotbed_fail_value(
                      HOTBED_ERR_CORRUPT, "cut", head->number,
                      "cut %" PRIu64
                      " has other tables, ranks, encodings or states than its base %" PRIu64,
                      head->number, before->base);
}

hotbed_status hotbed_version_after(
    const hotbed_version *before, hotbed_files *files, hotbed_version **out) {
    hotbed_version *v = NULL;
    *out = NULL;
    HOTBED_TRY(check_follows(before, &files->cut));
    HOTBED_TRY(version_new(before->files, before->num_files, files, &v));
    hotbed_status status = set_routes(v, &files->cut);
    for (uint32_t t = 0; t < v->num_tables && status == HOTBED_OK; t++)
        status = apply_table(before, files, t, v);
    HOTBED_THEN(status, check_keys(v, &files->cut));
    return finish(v, status, out);
}

uint64_t hotbed_version_mapped(const hotbed_version *v) {
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < v->num_files; i++) {
        bytes += v->files[i]->cut_map.bytes;
        for (uint32_t r = 0; r < v->world; r++)
            bytes += v->files[i]->maps[r].bytes;
    }
    return bytes;
}

uint64_t hotbed_version_memory(const hotbed_version *v) {
    uint64_t bytes = sizeof *v + v->num_tables * sizeof *v->tables;
    for (uint32_t t = 0; t < v->num_tables; t++)
        bytes += v->tables[t].mask == 0 ? 0 : (v->tables[t].mask + 1) * sizeof(hotbed_change);
    return bytes;
}
