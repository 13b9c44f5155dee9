/* serve/reader.c - finds the newest cut that can be used, and gives it to lookups.
 *
 * Lookups take a version with one atomic addition: `now` has the number of the version's slot in its
 * upper 16 bits, and below how many lookups have taken it. A lookup that is done adds to the version's
 * `released`. The poll that replaces a version learns from `now` how many took it, and frees it when as
 * many have released it. */
#include "serve/reader.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/options.h"
#include "base/port.h"
#include "base/sort.h"
#include "base/stream.h"
#include "base/thread.h"
#include "serve/lookup.h"
#include "serve/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 64, REFUSALS = 8, SLOT_SHIFT = 48, LISTS_MOST = 100 };

/* A version that is not the newest, and how many lookups have taken it. */
typedef struct retired {
    hotbed_version *version; /* NULL: the slot is free, or has the newest version */
    uint64_t taken;
} retired;

/* Why a cut cannot be used. Its files are not read again while they are the same. */
typedef struct refusal {
    uint64_t number; /* 0: none */
    hotbed_digest files;
    hotbed_status status;
    hotbed_error error;
} refusal;

struct hotbed_reader {
    const hotbed_io_calls *calls;
    char *path;
    hotbed_cut_table *tables; /* as at the open: names, dims and key types stay */
    uint32_t num_tables;

    uint64_t now; /* see above */
    hotbed_version *slots[SLOTS];
    uint64_t lookups, keys, missing; /* counts */

    pthread_mutex_t polling; /* guards all below, up to `lock` */
    hotbed_version *newest;
    retired retired[SLOTS];
    refusal refusals[REFUSALS];
    uint32_t next_refusal;

    pthread_mutex_t lock; /* guards all below; held for short */
    pthread_cond_t ended;
    bool end;
    uint64_t seen, behind; /* number of the newest cut in the directory; cuts after the version */
    uint64_t versions, bases, refused;
    hotbed_status status; /* of the last poll */
    hotbed_error error;

    pthread_t thread;
    bool started;
    uint32_t follow_ms;
    uint32_t forks; /* when the reader was opened */
};

/* --- forks ------------------------------------------------------------------------------------ */

/* A child of a fork has the reader's memory, but not its thread, and perhaps its locks stay locked. It would
 * answer from one version for ever, so its calls fail. Atomic: forks since the first reader was opened. */
static uint32_t forks;

static void count_fork(void) {
    __atomic_add_fetch(&forks, 1, __ATOMIC_RELAXED);
}

static void watch_forks(void) {
    (void)pthread_atfork(NULL, NULL, count_fork);
}

static bool is_forked(const hotbed_reader *r) {
    return hotbed_load_relaxed_u32(&forks) != r->forks;
}

/* Check the reader of a call. */
static hotbed_status check_reader(const hotbed_reader *r, const char *call) {
    if (r == NULL)
        return hotbed_fail_parameter(HOTBED_ERR_ARGUMENT, "reader", "%s: reader is NULL", call);
    if (is_forked(r))
        return hotbed_fail(
            HOTBED_ERR_STATE,
            "%s: this process was forked from the one that opened the reader, and does not follow "
            "the "
            "publisher: open a reader after the fork",
            call);
    return HOTBED_OK;
}

/* --- the version that lookups use ------------------------------------------------------------- */

static hotbed_version *take(hotbed_reader *r) {
    /* acquires the slot's version, which install() released */
    uint64_t word = hotbed_add_acquire_u64(&r->now, 1);
    return r->slots[word >> SLOT_SHIFT];
}

static void give(hotbed_version *v) {
    hotbed_add_release_u64(&v->released, 1); /* this thread's reads of it are over */
}

hotbed_status hotbed_reader_take(hotbed_reader *r, const char *call, const hotbed_version **out) {
    HOTBED_TRY(check_reader(r, call));
    *out = take(r);
    return HOTBED_OK;
}

void hotbed_reader_give(const hotbed_version *v) {
    give((hotbed_version *)(uintptr_t)v);
}

/* Free versions that no lookup uses any more. */
static void collect(hotbed_reader *r) {
    for (uint32_t i = 0; i < SLOTS; i++) {
        retired *old = &r->retired[i];
        /* acquires the reads that give() released */
        if (old->version == NULL || hotbed_load_acquire_u64(&old->version->released) != old->taken)
            continue;
        hotbed_version_free(old->version);
        old->version = NULL;
        r->slots[i] = NULL;
    }
}

/* Let lookups use a version. Takes ownership of it. */
static hotbed_status install(hotbed_reader *r, hotbed_version *v) {
    uint32_t slot = 0;
    collect(r);
    while (slot < SLOTS && r->slots[slot] != NULL)
        slot++;
    if (slot == SLOTS) {
        hotbed_version_free(v);
        return hotbed_fail_bound(
            HOTBED_ERR_STATE, SLOTS, "lookups that have not returned use %d versions: try again",
            SLOTS);
    }
    v->used_ns = hotbed_monotonic_now();
    v->lag = hotbed_cut_age(v->created_ns, v->used_ns);
    r->slots[slot] = v;
    uint64_t word = hotbed_load_relaxed_u64(&r->now);
    /* releases the slot and the version to take() */
    while (!hotbed_cas_u64(&r->now, word, (uint64_t)slot << SLOT_SHIFT))
        word = hotbed_load_relaxed_u64(&r->now);
    if (r->newest != NULL)
        r->retired[word >> SLOT_SHIFT] =
            (retired){.version = r->newest, .taken = word & (((uint64_t)1 << SLOT_SHIFT) - 1)};
    r->newest = v;
    pthread_mutex_lock(&r->lock);
    r->versions++;
    r->bases += v->number == v->base;
    pthread_mutex_unlock(&r->lock);
    collect(r);
    return HOTBED_OK;
}

/* --- the directory ---------------------------------------------------------------------------- */

/* Cuts in a directory. */
typedef struct cuts {
    uint64_t n, capacity;
    uint64_t *numbers;
    bool memory; /* an allocation failed */
} cuts;

static void add_cut(void *context, const char *name) {
    cuts *all = context;
    uint64_t number = hotbed_cut_number(name);
    if (number == 0)
        return;
    if (hotbed_reserve(&all->numbers, all->n, 1, &all->capacity, sizeof *all->numbers))
        all->numbers[all->n++] = number;
    else
        all->memory = true;
}

/* The state of a poll. */
typedef struct poll {
    hotbed_reader *r;
    int directory;
    cuts cuts;
    hotbed_status status; /* of the newest cut that cannot be used */
    hotbed_error error;
} poll;

static hotbed_status list(poll *p) {
    const hotbed_io_calls *calls = p->r->calls;
    p->cuts.n = 0;
    int error = calls->list(calls->self, p->directory, add_cut, &p->cuts);
    if (error < 0)
        return hotbed_io_fail("cannot list", p->r->path, error);
    if (p->cuts.memory)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for the names in %s", p->r->path);
    hotbed_sort_words(p->cuts.n, p->cuts.numbers);
    return HOTBED_OK;
}

static bool is_there(const poll *p, uint64_t number) {
    struct stat stat;
    const hotbed_cut_file name = hotbed_cut_name(number);
    return fstatat(p->directory, name.text, &stat, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT;
}

/* What the system says about the files of a cut: it changes if one is replaced or appears. */
static hotbed_digest look_at(const poll *p, uint64_t number, uint32_t world) {
    hotbed_digest sum = {0};
    for (uint32_t r = 0; r <= world; r++) {
        const hotbed_cut_file name =
            r == world ? hotbed_cut_name(number) : hotbed_rows_name(number, r);
        struct stat s;
        uint64_t seen[6] = {r};
        if (fstatat(p->directory, name.text, &s, AT_SYMLINK_NOFOLLOW) == 0) {
            seen[1] = (uint64_t)s.st_ino;
            seen[2] = (uint64_t)s.st_size;
            seen[3] = (uint64_t)s.st_mtim.tv_sec;
            seen[4] = (uint64_t)s.st_mtim.tv_nsec;
            seen[5] = 1;
        }
        sum = hotbed_digest_add(sum, hotbed_digest_of(seen, sizeof seen));
    }
    return sum;
}

/* Keep why the poll cannot use a cut: of the newest, which is refused first. */
static void refuse(poll *p, hotbed_status status) {
    if (p->status == HOTBED_OK) {
        p->status = status;
        hotbed_error_copy(&p->error);
    }
}

/* Open the files of a cut, unless the same ones were found damaged before. */
static hotbed_status open_files(poll *p, uint64_t number, hotbed_files **out) {
    hotbed_reader *r = p->r;
    HOTBED_TRY(hotbed_files_head(p->directory, r->path, number, out));
    uint32_t world = (*out)->cut.head->world;
    hotbed_files_release(*out);
    *out = NULL;
    hotbed_digest files = look_at(p, number, world);
    for (uint32_t i = 0; i < REFUSALS; i++)
        if (r->refusals[i].number == number && hotbed_digest_equal(r->refusals[i].files, files))
            return hotbed_error_return(&r->refusals[i].error, r->refusals[i].status);
    hotbed_status status = hotbed_files_open(p->directory, r->path, number, out);
    if (status == HOTBED_ERR_CORRUPT) {
        refusal *keep = &r->refusals[r->next_refusal++ % REFUSALS];
        *keep = (refusal){.number = number, .files = files, .status = status};
        hotbed_error_copy(&keep->error);
    }
    return status;
}

static hotbed_status check_tables(const hotbed_reader *r, const hotbed_cut *cut) {
    hotbed_cut_head head = {.tables = r->num_tables};
    hotbed_cut known = {.head = &head, .tables = r->tables};
    if (r->tables == NULL || hotbed_cut_same_tables(&known, cut))
        return HOTBED_OK;
    return hotbed_fail_value(
        HOTBED_ERR_STATE, "cut", cut->head->number,
        "cut %" PRIu64
        " has other tables, dims or key types than when the directory was opened: open it again",
        cut->head->number);
}

/* Keep names, dims and key types of the first version. */
static hotbed_status keep_tables(hotbed_reader *r, const hotbed_cut *cut) {
    if (r->tables != NULL)
        return HOTBED_OK;
    r->tables = hotbed_new(cut->head->tables * sizeof *r->tables);
    HOTBED_TRY_MEMORY(r->tables, "%" PRIu32 " tables", cut->head->tables);
    memcpy(r->tables, cut->tables, cut->head->tables * sizeof *r->tables);
    r->num_tables = cut->head->tables;
    return HOTBED_OK;
}

/* Use a cut: a base, or the increment after the newest version. */
static hotbed_status use(poll *p, uint64_t number, bool base) {
    hotbed_files *files = NULL;
    hotbed_version *v = NULL;
    HOTBED_TRY(open_files(p, number, &files));
    hotbed_status status = check_tables(p->r, &files->cut);
    if (status == HOTBED_OK)
        status = base ? hotbed_version_of_base(files, &v)
                      : hotbed_version_after(p->r->newest, files, &v);
    if (status == HOTBED_OK) {
        status = keep_tables(p->r, &files->cut);
        if (status != HOTBED_OK)
            hotbed_version_free(v);
    }
    HOTBED_THEN(status, install(p->r, v));
    hotbed_files_release(files); /* the version uses them */
    return status;
}

/* Whether a cut is a base. Errors: as hotbed_files_head(). */
static hotbed_status is_base(const poll *p, uint64_t number, bool *base) {
    hotbed_files *files = NULL;
    HOTBED_TRY(hotbed_files_head(p->directory, p->r->path, number, &files));
    *base = files->cut.head->parent == 0;
    hotbed_files_release(files);
    return HOTBED_OK;
}

static uint64_t version_number(const hotbed_reader *r) {
    return r->newest == NULL ? 0 : r->newest->number;
}

/* Use the newest base that can be used, if it is newer than the version. */
static void use_bases(poll *p) {
    uint64_t first = version_number(p->r);
    for (uint64_t i = p->cuts.n; i > 0 && p->cuts.numbers[i - 1] > first; i--) {
        bool base = false;
        uint64_t number = p->cuts.numbers[i - 1];
        hotbed_status status = is_base(p, number, &base);
        if (status == HOTBED_OK && base)
            status = use(p, number, true);
        if (status == HOTBED_OK && base)
            return;
        if (status != HOTBED_OK && is_there(p, number)) /* otherwise removed as an old one */
            refuse(p, status);
    }
}

/* Use the increments after the version, in order, as far as they follow each other. */
static void use_increments(poll *p) {
    for (uint64_t i = 0; i < p->cuts.n && p->r->newest != NULL; i++) {
        uint64_t number = p->cuts.numbers[i];
        if (number <= version_number(p->r))
            continue;
        hotbed_status status = use(p, number, false);
        if (status != HOTBED_OK && is_there(p, number)) {
            refuse(p, status);
            return;
        }
    }
    /* The version is the newest cut: no refusal matters to lookups. */
    if (p->cuts.n > 0 && version_number(p->r) == p->cuts.numbers[p->cuts.n - 1])
        p->status = HOTBED_OK;
}

/* Check that the version's cut is still the one in the directory: another directory in its place may have a cut
 * with the same number. */
static hotbed_status check_newest(const poll *p) {
    const hotbed_version *v = p->r->newest;
    const hotbed_cut_file name = hotbed_cut_name(v->number);
    hotbed_files *files = NULL;
    HOTBED_TRY(hotbed_files_head(p->directory, p->r->path, v->number, &files));
    const bool same = hotbed_digest_equal(files->cut.digest, v->digest);
    hotbed_files_release(files);
    return same ? HOTBED_OK
                : hotbed_fail_path_value(
                      HOTBED_ERR_STATE, p->r->path, "cut", v->number,
                      "%s/%s is not the cut that the reader uses: the directory was replaced; open "
                      "it again",
                      p->r->path, name.text);
}

static uint64_t newest_cut(const poll *p) {
    return p->cuts.n == 0 ? 0 : p->cuts.numbers[p->cuts.n - 1];
}

/* List the directory, and use the cuts that are newer than the version. */
static hotbed_status list_and_use(poll *p) {
    hotbed_reader *r = p->r;
    p->status = HOTBED_OK;
    HOTBED_TRY(list(p));
    const uint64_t newest = newest_cut(p);
    if (newest < version_number(r))
        return hotbed_fail_path_value(
            HOTBED_ERR_STATE, r->path, "cut", version_number(r),
            "%s has no cut from number %" PRIu64 " on, which the reader uses: if the directory was "
            "replaced, open it again",
            r->path, version_number(r));
    if (r->newest != NULL && newest == r->newest->number)
        return check_newest(p);
    use_bases(p);
    use_increments(p);
    if (p->status != HOTBED_OK)
        return hotbed_error_return(&p->error, p->status);
    if (r->newest != NULL)
        return HOTBED_OK;
    if (newest == 0)
        return hotbed_fail_path(
            HOTBED_ERR_STATE, r->path, "%s has no base: nothing is published yet", r->path);
    return hotbed_fail_path_value(
        HOTBED_ERR_STATE, r->path, "cut", p->cuts.numbers[0],
        "%s has no base: cut %" PRIu64 " and those after it follow one that is missing", r->path,
        p->cuts.numbers[0]);
}

/* Whether the publisher has removed a cut, from the version on, since the directory was listed. */
static bool has_changed(const poll *p) {
    bool gone = false;
    for (uint64_t i = 0; i < p->cuts.n && !gone; i++)
        gone = p->cuts.numbers[i] >= version_number(p->r) && !is_there(p, p->cuts.numbers[i]);
    return gone;
}

static hotbed_status poll_directory(poll *p) {
    hotbed_reader *r = p->r;
    p->directory = open(r->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (p->directory < 0)
        return hotbed_fail_path_os(
            HOTBED_ERR_IO, r->path, errno, "cannot open the directory %s", r->path);
    for (int i = 0; i < LISTS_MOST; i++) {
        const hotbed_status status = list_and_use(p);
        if ((status == HOTBED_OK && version_number(r) == newest_cut(p)) || !has_changed(p))
            return status;
    }
    return hotbed_fail_path(
        HOTBED_ERR_STATE, r->path,
        "%s was listed %d times, and each time the publisher removed the newest cuts before they "
        "were read: keep more bases",
        r->path, LISTS_MOST);
}

static hotbed_status poll_once(hotbed_reader *r) {
    poll p = {.r = r, .directory = -1};
    pthread_mutex_lock(&r->polling);
    collect(r);
    hotbed_status status = poll_directory(&p);
    uint64_t behind = 0;
    for (uint64_t i = 0; i < p.cuts.n; i++)
        behind += p.cuts.numbers[i] > version_number(r);
    pthread_mutex_lock(&r->lock);
    r->seen = p.cuts.n > 0 ? p.cuts.numbers[p.cuts.n - 1] : r->seen;
    r->behind = behind;
    r->refused += status != HOTBED_OK;
    r->status = status;
    if (status != HOTBED_OK)
        hotbed_error_copy(&r->error);
    pthread_mutex_unlock(&r->lock);
    if (p.directory >= 0)
        close(p.directory);
    hotbed_delete(p.cuts.numbers);
    pthread_mutex_unlock(&r->polling);
    return status;
}

hotbed_status hotbed_reader_poll(hotbed_reader *r) {
    HOTBED_TRY(check_reader(r, "reader_poll"));
    return poll_once(r);
}

static void *follow(void *argument) {
    hotbed_reader *r = argument;
    pthread_mutex_lock(&r->lock);
    while (!r->end) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        uint64_t ns = (uint64_t)until.tv_nsec + (uint64_t)(r->follow_ms % 1000) * 1000000U;
        until.tv_sec += (time_t)(r->follow_ms / 1000 + ns / 1000000000U);
        until.tv_nsec = (long)(ns % 1000000000U);
        if (pthread_cond_timedwait(&r->ended, &r->lock, &until) != ETIMEDOUT)
            continue;
        pthread_mutex_unlock(&r->lock);
        (void)poll_once(r); /* its status stays for hotbed_reader_health() */
        pthread_mutex_lock(&r->lock);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* --- open and close --------------------------------------------------------------------------- */

static hotbed_status open_reader(
    hotbed_reader *r, const char *directory, const hotbed_reader_options *options) {
    hotbed_reader_options read = {.size = sizeof read};
    if (options != NULL)
        HOTBED_TRY(hotbed_options_read(&read, sizeof read, 4, options, "hotbed_reader_options"));
    size_t bytes = strlen(directory) + 1;
    r->path = hotbed_new(bytes);
    HOTBED_TRY_MEMORY(r->path, "%zu bytes of a path", bytes);
    memcpy(r->path, directory, bytes);
    r->follow_ms = read.follow_ms;
    hotbed_status status = poll_once(r);
    if (r->newest == NULL) /* otherwise the reader has a cut, though not the newest */
        return status == HOTBED_ERR_IO || status == HOTBED_ERR_MEMORY ||
                       status == HOTBED_ERR_UNSUPPORTED
                   ? status
                   : HOTBED_FAIL_AFTER(
                         HOTBED_ERR_STATE, "%s has no whole cut: %s", directory,
                         hotbed_last_error());
    if (r->follow_ms == 0)
        return HOTBED_OK;
    int error = hotbed_thread_start(&r->thread, follow, r);
    if (error != 0)
        return hotbed_fail_os(HOTBED_ERR_MEMORY, error, "reader_open: cannot create a thread");
    r->started = true;
    return HOTBED_OK;
}

hotbed_status hotbed_reader_open_with(
    const hotbed_io_calls *calls, const char *directory, const hotbed_reader_options *options,
    hotbed_reader **out) {
    HOTBED_TRY_OUT(out);
    HOTBED_TRY(hotbed_check_pointer("directory", directory));
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, watch_forks);
    hotbed_reader *r = hotbed_new(sizeof *r);
    HOTBED_TRY_MEMORY(r, "a reader");
    r->calls = calls;
    r->forks = hotbed_load_relaxed_u32(&forks);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&r->ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&r->polling, NULL);
    pthread_mutex_init(&r->lock, NULL);
    hotbed_status status = open_reader(r, directory, options);
    if (status != HOTBED_OK) {
        hotbed_error error;
        hotbed_error_copy(&error);
        hotbed_reader_close(r);
        return hotbed_error_return(&error, status);
    }
    *out = r;
    return HOTBED_OK;
}

hotbed_status hotbed_reader_open(
    const char *directory, const hotbed_reader_options *options, hotbed_reader **out) {
    return hotbed_reader_open_with(&hotbed_io_system, directory, options, out);
}

void hotbed_reader_close(hotbed_reader *r) {
    if (r == NULL)
        return;
    if (is_forked(r)) /* its locks may be held by threads that are not here: the memory stays */
        return;
    if (r->started) {
        pthread_mutex_lock(&r->lock);
        r->end = true;
        pthread_cond_broadcast(&r->ended);
        pthread_mutex_unlock(&r->lock);
        pthread_join(r->thread, NULL);
    }
    for (uint32_t i = 0; i < SLOTS; i++)
        hotbed_version_free(r->slots[i]);
    pthread_cond_destroy(&r->ended);
    pthread_mutex_destroy(&r->lock);
    pthread_mutex_destroy(&r->polling);
    hotbed_delete(r->tables);
    hotbed_delete(r->path);
    hotbed_delete(r);
}

/* --- calls ------------------------------------------------------------------------------------ */

static void find(
    const void *version, uint32_t table, uint32_t n, const uint64_t *keys,
    const unsigned char **rows) {
    hotbed_version_find(version, table, n, keys, rows);
}

hotbed_status hotbed_reader_lookup(
    hotbed_reader *r, const hotbed_lookup *lookups, uint32_t n, uint64_t *version) {
    HOTBED_TRY(check_reader(r, "reader_lookup"));
    if (lookups == NULL && n > 0)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "reader_lookup: lookups is NULL");
    hotbed_version *v = take(r);
    const hotbed_lookup_source source = {v->tables, v->num_tables, v, find};
    hotbed_status status = HOTBED_OK;
    uint64_t keys = 0, missing = 0;
    for (uint32_t i = 0; i < n && status == HOTBED_OK; i++)
        status = hotbed_lookup_check(&source, &lookups[i]);
    for (uint32_t i = 0; i < n && status == HOTBED_OK; i++) {
        missing += hotbed_lookup_answer(&source, &lookups[i]);
        keys += lookups[i].num_keys;
    }
    if (status == HOTBED_OK && version != NULL)
        *version = v->number;
    give(v);
    (void)hotbed_add_relaxed_u64(&r->lookups, 1);
    (void)hotbed_add_relaxed_u64(&r->keys, keys);
    if (missing > 0)
        (void)hotbed_add_relaxed_u64(&r->missing, missing);
    return status;
}

uint32_t hotbed_reader_num_tables(const hotbed_reader *r) {
    return r == NULL ? 0 : r->num_tables;
}

hotbed_status hotbed_reader_find(const hotbed_reader *r, const char *name, uint32_t *table) {
    if (r == NULL || name == NULL || table == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "reader_find: an argument is NULL");
    for (uint32_t t = 0; t < r->num_tables; t++)
        if (strcmp(r->tables[t].name, name) == 0) {
            *table = t;
            return HOTBED_OK;
        }
    return hotbed_fail_table(
        HOTBED_ERR_ARGUMENT, name, "reader_find: %s has no table '%s'", r->path, name);
}

hotbed_status hotbed_reader_table_info(hotbed_reader *r, uint32_t table, hotbed_reader_table *out) {
    HOTBED_TRY(check_reader(r, "reader_table_info"));
    HOTBED_TRY(hotbed_output_check(out, "hotbed_reader_table"));
    HOTBED_TRY(hotbed_check_below("table", table, r->num_tables));
    hotbed_version *v = take(r);
    hotbed_reader_table info = {
        .dim = r->tables[table].dim,
        .encoding = v->tables[table].encoding,
        .key_type = (hotbed_key_type)r->tables[table].key_type,
        .missing = v->tables[table].missing,
        .keys = v->tables[table].keys,
    };
    give(v);
    memcpy(info.name, r->tables[table].name, sizeof info.name);
    hotbed_output_write(out, &info, sizeof info);
    return HOTBED_OK;
}

static void read_stats(hotbed_reader *r, hotbed_reader_stats *out) {
    hotbed_version *v = take(r);
    *out = (hotbed_reader_stats){
        .version = v->number,
        .base = v->base,
        .step = v->step,
        .age = hotbed_cut_age(v->created_ns, v->used_ns),
        .lag = v->lag,
        .lookups = hotbed_load_relaxed_u64(&r->lookups),
        .keys = hotbed_load_relaxed_u64(&r->keys),
        .missing = hotbed_load_relaxed_u64(&r->missing),
        .mapped_bytes = hotbed_version_mapped(v),
        .memory_bytes = hotbed_version_memory(v),
    };
    give(v);
    pthread_mutex_lock(&r->lock);
    out->newest = r->seen > out->version ? r->seen : out->version;
    out->behind = (uint32_t)r->behind;
    out->versions = r->versions;
    out->bases = r->bases;
    out->refused = r->refused;
    pthread_mutex_unlock(&r->lock);
}

hotbed_status hotbed_reader_get_stats(hotbed_reader *r, hotbed_reader_stats *out) {
    hotbed_reader_stats stats;
    HOTBED_TRY(check_reader(r, "reader_get_stats"));
    HOTBED_TRY(hotbed_output_check(out, "hotbed_reader_stats"));
    read_stats(r, &stats);
    hotbed_output_write(out, &stats, sizeof stats);
    return HOTBED_OK;
}

hotbed_status hotbed_reader_health(hotbed_reader *r, double most_seconds) {
    hotbed_reader_stats stats;
    HOTBED_TRY(check_reader(r, "reader_health"));
    if (!(most_seconds >= 0))
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "most_seconds", most_seconds,
            "reader_health: most_seconds is %g, not 0 or more", most_seconds);
    pthread_mutex_lock(&r->lock);
    hotbed_status status = r->status;
    hotbed_error error = r->error;
    pthread_mutex_unlock(&r->lock);
    if (status != HOTBED_OK)
        return hotbed_error_return(&error, status);
    read_stats(r, &stats);
    if (most_seconds > 0 && stats.age > most_seconds)
        return hotbed_fail_limit(
            HOTBED_ERR_STATE, "age", stats.age, most_seconds,
            "cut %" PRIu64 " is %.1f seconds old; %.1f are allowed", stats.version, stats.age,
            most_seconds);
    return HOTBED_OK;
}

/* --- metrics ---------------------------------------------------------------------------------- */

static void add_stats(hotbed_metrics *out, hotbed_reader *r) {
    hotbed_reader_stats s;
    read_stats(r, &s);
    pthread_mutex_lock(&r->lock);
    bool healthy = r->status == HOTBED_OK;
    pthread_mutex_unlock(&r->lock);
    const struct {
        const char *name, *type, *help;
        double value;
    } all[] = {
        {"healthy", "gauge", "1 if the newest cut is used.", healthy},
        {"version", "gauge", "Number of the cut that answers lookups.", (double)s.version},
        {"step", "gauge", "Training step of that cut.", (double)s.step},
        {"behind_cuts", "gauge", "Newer cuts in the directory.", s.behind},
        {"age_seconds", "gauge", "Age of the rows.", s.age},
        {"lag_seconds", "gauge", "Age of the rows when they were first used.", s.lag},
        {"versions_total", "counter", "Cuts used so far.", (double)s.versions},
        {"refused_total", "counter", "Polls that refused a cut.", (double)s.refused},
        {"lookups_total", "counter", "Lookup calls.", (double)s.lookups},
        {"keys_total", "counter", "Keys looked up.", (double)s.keys},
        {"missing_keys_total", "counter", "Keys without a row.", (double)s.missing},
        {"mapped_bytes", "gauge", "Bytes of mapped files.", (double)s.mapped_bytes},
        {"memory_bytes", "gauge", "Bytes of the index of changes.", (double)s.memory_bytes},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        hotbed_metrics_add(out, all[i].name, all[i].type, all[i].help, NULL, all[i].value);
    hotbed_version *v = take(r);
    for (uint32_t t = 0; t < r->num_tables; t++) {
        char label[96];
        snprintf(label, sizeof label, "{table=\"%s\"}", r->tables[t].name);
        hotbed_metrics_add(
            out, "table_keys", "gauge", t == 0 ? "Keys of a table." : NULL, label,
            (double)v->tables[t].keys);
    }
    give(v);
}

hotbed_status hotbed_reader_metrics(
    hotbed_reader *r, char *to, uint64_t capacity, uint64_t *bytes) {
    HOTBED_TRY(check_reader(r, "reader_metrics"));
    HOTBED_TRY(hotbed_check_pointer_of("reader_metrics", "bytes", bytes));
    hotbed_metrics out = {.prefix = "hotbed_reader_", .to = to, .capacity = capacity};
    add_stats(&out, r);
    return hotbed_metrics_end(&out, "reader_metrics", bytes);
}
