/* tests/checkpoint/sample.c - storages to save, and file systems that fail. */
#include "tests/checkpoint/sample.h"

#include "base/float.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/redistribute.h"
#include "storage/types.h"
#include "tests/support/harness.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STATIC_ROWS = 37 };

hotbed_storage *sample_create(const sample *s, hotbed_stream *stream) {
    hotbed_table_options tables[SAMPLE_TABLES];
    hotbed_storage_options options;
    hotbed_storage *storage = NULL;
    for (int i = 0; i < SAMPLE_TABLES; i++)
        tables[i] = (hotbed_table_options){.size = sizeof tables[i]};
    uint64_t rows = s->rows == 0 ? 300 : s->rows;
    tables[0].name = "user.id";
    tables[0].dim = s->dim == 0 ? 16 : s->dim;
    tables[0].capacity = s->capacity == 0 ? 2 * rows : s->capacity;
    tables[0].max_capacity = s->max_capacity;
    tables[1].name = "item";
    tables[1].dim = 8;
    tables[1].capacity = 512;
    tables[1].dtype = HOTBED_BF16;
    tables[1].state_dtype = s->narrow_states ? HOTBED_BF16 : HOTBED_F32;
    tables[2].name = "geo-x";
    tables[2].dim = 5;
    tables[2].capacity = STATIC_ROWS;
    tables[2].dtype = HOTBED_F16;
    tables[2].kind = HOTBED_TABLE_STATIC;
    tables[2].initializer =
        (hotbed_initializer){.kind = HOTBED_INIT_UNIFORM, .lower = -1, .upper = 1};
    tables[3].name = "nothing";
    tables[3].dim = 4;
    tables[3].capacity = 10;
    tables[4].name = ".";
    tables[4].dim = 1;
    tables[4].capacity = 100;
    hotbed_storage_options_init(&options);
    options.num_tables = SAMPLE_TABLES;
    options.tables = tables;
    options.key_type = s->key_type == 0 ? HOTBED_KEY_I64 : s->key_type;
    options.optimizer.kind = s->optimizer == 0 ? HOTBED_OPT_SGD : s->optimizer;
    options.seed = s->seed;
    options.mode = s->mode;
    options.hbm_bytes = s->hbm_bytes;
    CHECK_OK(hotbed_storage_create(&options, stream, &storage));
    return storage;
}

/* Copy host bytes to new device memory. */
static hotbed_memory upload(const void *data, size_t bytes, hotbed_stream *stream) {
    hotbed_memory memory;
    CHECK_OK(hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, bytes, NULL, &memory));
    CHECK_OK(hotbed_copy(memory.data, data, bytes, stream));
    CHECK_OK(hotbed_stream_sync(stream));
    return memory;
}

typedef struct rows_memory {
    hotbed_memory keys, weights, states[2], scores, times;
} rows_memory;

static void free_rows(rows_memory *m) {
    hotbed_memory_free(&m->keys);
    hotbed_memory_free(&m->weights);
    hotbed_memory_free(&m->states[0]);
    hotbed_memory_free(&m->states[1]);
    hotbed_memory_free(&m->scores);
    hotbed_memory_free(&m->times);
}

static hotbed_rows view_rows(const rows_memory *m, bool hash) {
    return (hotbed_rows){
        .weights = m->weights.data,
        .states = {m->states[0].data, m->states[1].data},
        .scores = hash ? m->scores.data : NULL,
        .times = m->times.data,
    };
}

sample_image sample_new(hotbed_storage *storage, uint32_t table, uint64_t rows) {
    hotbed_table_info info = {.size = sizeof info};
    hotbed_optimizer_kind kind = hotbed_storage_optimizer(storage)->kind;
    CHECK_OK(hotbed_storage_table(storage, table, &info));
    sample_image image = {.rows = rows};
    image.weight_bytes = hotbed_dtype_row_bytes(info.dtype, info.dim);
    image.keys = calloc(rows + 1, sizeof *image.keys);
    image.scores = calloc(rows + 1, sizeof *image.scores);
    image.weights = calloc(rows + 1, image.weight_bytes);
    bool times = info.score == HOTBED_SCORE_TIMESTAMP_LFU;
    image.times = times ? calloc(rows + 1, sizeof *image.times) : NULL;
    CHECK(image.keys != NULL && image.scores != NULL && image.weights != NULL);
    CHECK(!times || image.times != NULL);
    for (uint32_t i = 0; i < 2 && i < hotbed_optimizer_states(kind); i++) {
        image.state_bytes[i] = hotbed_optimizer_state_dim(kind, i, info.dim) *
                               hotbed_dtype_bytes(info.state_dtypes[i]);
        image.states[i] = calloc(rows + 1, image.state_bytes[i]);
        CHECK(image.states[i] != NULL);
    }
    return image;
}

void sample_free(sample_image *image) {
    free(image->keys);
    free(image->scores);
    free(image->times);
    free(image->weights);
    free(image->states[0]);
    free(image->states[1]);
}

static rows_memory upload_image(const sample_image *image, hotbed_stream *stream) {
    rows_memory m = {.keys = upload(image->keys, image->rows * sizeof(uint64_t), stream)};
    m.weights = upload(image->weights, image->rows * image->weight_bytes, stream);
    m.scores = upload(image->scores, image->rows * sizeof(uint64_t), stream);
    if (image->times != NULL)
        m.times = upload(image->times, image->rows * sizeof(uint64_t), stream);
    for (int i = 0; i < 2; i++)
        if (image->states[i] != NULL)
            m.states[i] = upload(image->states[i], image->rows * image->state_bytes[i], stream);
    return m;
}

void sample_store(
    hotbed_storage *storage, uint32_t table, const sample_image *image, hotbed_stream *stream) {
    hotbed_table_info info = {.size = sizeof info};
    CHECK_OK(hotbed_storage_table(storage, table, &info));
    rows_memory m = upload_image(image, stream);
    hotbed_rows rows = view_rows(&m, info.kind == HOTBED_TABLE_HASH);
    CHECK_OK(hotbed_storage_set_rows(storage, table, image->rows, m.keys.data, &rows, stream));
    CHECK_OK(hotbed_stream_sync(stream));
    free_rows(&m);
}

void sample_erase(
    hotbed_storage *storage, uint32_t table, const sample_image *image, hotbed_stream *stream) {
    hotbed_memory keys = upload(image->keys, image->rows * sizeof(uint64_t), stream);
    CHECK_OK(hotbed_storage_erase(storage, table, image->rows, keys.data, NULL, stream));
    CHECK_OK(hotbed_stream_sync(stream));
    hotbed_memory_free(&keys);
}

static uint64_t table_rows(const sample *s, uint32_t table) {
    const uint64_t rows[SAMPLE_TABLES] = {s->rows == 0 ? 300 : s->rows, 200, STATIC_ROWS, 0, 20};
    return rows[table];
}

static int by_key(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* n distinct keys, the extreme ones first. */
static void make_keys(uint64_t *keys, uint64_t n) {
    static const uint64_t extremes[] = {
        0, UINT64_MAX, (uint64_t)INT64_MAX, (uint64_t)INT64_MIN, UINT64_MAX - 1, 1};
    for (uint64_t i = 0; i < n; i++)
        keys[i] = i < sizeof extremes / sizeof *extremes
                      ? extremes[i]
                      : (hotbed_test_random() << 20 | i) & ~((uint64_t)1 << 63);
}

static void random_bytes(void *to, size_t bytes) {
    unsigned char *p = to;
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = hotbed_test_random();
        memcpy(p + i, &word, bytes - i < 8 ? bytes - i : 8);
    }
}

static void set_state(hotbed_storage *storage, hotbed_stream *stream) {
    hotbed_storage_state state = {
        .size = sizeof state,
        .optimizer_steps = 12345,
        .clock = 67890,
        .beta1_power = 0.1234567890123456789,
        .beta2_power = 0x1.fffffffffffffp-3,
        .learning_rate = 0.0123F,
    };
    CHECK_OK(hotbed_storage_set_state(storage, &state, stream));
}

void sample_fill(const sample *s, hotbed_storage *storage, hotbed_stream *stream) {
    for (uint32_t t = 0; t < SAMPLE_TABLES; t++) {
        hotbed_table_info info = {.size = sizeof info};
        CHECK_OK(hotbed_storage_table(storage, t, &info));
        sample_image image = sample_new(storage, t, table_rows(s, t));
        if (info.kind == HOTBED_TABLE_HASH)
            make_keys(image.keys, image.rows);
        else
            for (uint64_t i = 0; i < image.rows; i++)
                image.keys[i] = i;
        random_bytes(image.weights, image.rows * image.weight_bytes);
        random_bytes(image.scores, image.rows * sizeof(uint64_t));
        for (uint64_t i = 0; i < image.rows; i++)
            image.scores[i] >>= 8; /* keep scores below the values with a special meaning */
        for (int i = 0; i < 2; i++)
            if (image.states[i] != NULL)
                random_bytes(image.states[i], image.rows * image.state_bytes[i]);
        sample_store(storage, t, &image, stream);
        sample_free(&image);
    }
    set_state(storage, stream);
}

void sample_fill_formula(const sample *s, hotbed_storage *storage, hotbed_stream *stream) {
    for (uint32_t t = 0; t < SAMPLE_TABLES; t++) {
        hotbed_table_info info = {.size = sizeof info};
        CHECK_OK(hotbed_storage_table(storage, t, &info));
        sample_image image = sample_new(storage, t, table_rows(s, t));
        for (uint64_t i = 0; i < image.rows; i++) {
            uint64_t key = info.kind == HOTBED_TABLE_HASH ? i * 7919 + 3 : i;
            float base = (float)(key % 1000 + 10 * t) / 8;
            image.keys[i] = key;
            image.scores[i] = key % 100000;
            float weights[HOTBED_DIM_MOST];
            for (uint32_t e = 0; e < info.dim; e++) /* few significant bits: exact in bf16 too */
                weights[e] = (float)(key % 32 + t + e) / 2;
            hotbed_weights_write(
                info.dtype, info.dim, weights, image.weights + i * image.weight_bytes);
            for (uint64_t c = 0; c < 2; c++) {
                const uint64_t dim = image.state_bytes[c] / sizeof(float);
                for (uint64_t e = 0; e < dim; e++)
                    ((float *)(void *)image.states[c])[i * dim + e] = base + (float)(c + e);
            }
        }
        sample_store(storage, t, &image, stream);
        sample_free(&image);
    }
    set_state(storage, stream);
}

static sample formula_sample(const char *optimizer) {
    sample s = {.seed = 42};
    for (int kind = HOTBED_OPT_SGD; kind <= HOTBED_OPT_LAST; kind++)
        if (strcmp(optimizer, hotbed_optimizer_name((hotbed_optimizer_kind)kind)) == 0)
            s.optimizer = (hotbed_optimizer_kind)kind;
    CHECK(s.optimizer != 0);
    return s;
}

hotbed_status sample_load(
    const char *path, hotbed_storage *storage, const hotbed_checkpoint_load_options *options,
    uint64_t *step, hotbed_stream *stream) {
    hotbed_checkpoint_report report = {.size = sizeof report};
    hotbed_status status = hotbed_checkpoint_load(path, &storage, 1, options, &report, stream);
    if (status == HOTBED_OK)
        *step = report.step;
    return status;
}

/* List the storage; with a communicator all ranks fail if one does, as in the public calls. */
static hotbed_status open_together(
    hotbed_storage *const *storage, hotbed_comm *comm, hotbed_stream *stream,
    hotbed_storages *out) {
    hotbed_status status = hotbed_storages_open("sample", storage, 1, out);
    return comm == NULL ? status : hotbed_vote(comm, status, stream);
}

hotbed_status sample_write(
    const hotbed_checkpoint_config *config, const char *path, hotbed_storage *storage,
    const hotbed_checkpoint_options *options, hotbed_stream *stream) {
    hotbed_storages storages;
    hotbed_status status = open_together(&storage, options->comm, stream, &storages);
    if (status == HOTBED_OK)
        status = hotbed_checkpoint_write(config, path, &storages, options, stream);
    hotbed_storages_close(&storages);
    return status;
}

hotbed_status sample_save_shard(
    const hotbed_checkpoint_config *config, const char *path, hotbed_checkpoint_id id,
    hotbed_storage *storage, const hotbed_checkpoint_options *options, hotbed_stream *stream) {
    hotbed_storages storages;
    hotbed_status status = hotbed_storages_open("sample", &storage, 1, &storages);
    if (status == HOTBED_OK)
        status = hotbed_save_shard(config, path, id, &storages, options, stream);
    hotbed_storages_close(&storages);
    return status;
}

hotbed_status sample_snapshot_take(
    const hotbed_checkpoint_config *config, hotbed_storage *storage,
    const hotbed_checkpoint_options *options, hotbed_stream *stream,
    hotbed_checkpoint_snapshot **out) {
    hotbed_storages storages;
    hotbed_status status = hotbed_storages_open("sample", &storage, 1, &storages);
    if (status == HOTBED_OK)
        status = hotbed_snapshot_take(config, &storages, options, stream, out);
    hotbed_storages_close(&storages);
    return status;
}

hotbed_status sample_load_with(
    const hotbed_checkpoint_config *config, const char *path, hotbed_storage *storage,
    const hotbed_checkpoint_load_options *options, uint64_t *step, hotbed_stream *stream) {
    hotbed_storages storages;
    hotbed_checkpoint_report report = {.size = sizeof report};
    hotbed_status status = open_together(&storage, options->comm, stream, &storages);
    if (status == HOTBED_OK)
        status = hotbed_checkpoint_read(
            config, path, &storages, options, step == NULL ? NULL : &report, stream);
    if (status == HOTBED_OK && step != NULL)
        *step = report.step;
    hotbed_storages_close(&storages);
    return status;
}

void sample_extra(hotbed_checkpoint_options *options, const char *text) {
    static _Thread_local hotbed_checkpoint_blob blob;
    blob = (hotbed_checkpoint_blob){"extra", text, text == NULL ? 0 : strlen(text)};
    options->blobs = &blob;
    options->num_blobs = text != NULL;
}

void sample_save_formula(
    const char *path, const char *optimizer, uint32_t bucket_bits, hotbed_backend backend) {
    hotbed_checkpoint_config config = {.calls = &hotbed_io_system, .bucket_bits = bucket_bits};
    hotbed_checkpoint_options options = {.size = sizeof options};
    hotbed_stream *stream = hotbed_test_stream(backend);
    sample s = formula_sample(optimizer);
    hotbed_storage *storage = sample_create(&s, stream);
    sample_fill_formula(&s, storage, stream);
    options.step = 1234;
    sample_extra(&options, SAMPLE_EXTRA);
    CHECK_OK(sample_write(&config, path, storage, &options, stream));
    hotbed_storage_destroy(storage);
    hotbed_stream_destroy(stream);
}

void sample_check_formula(const char *path, const char *optimizer, hotbed_backend backend) {
    hotbed_stream *stream = hotbed_test_stream(backend);
    sample s = formula_sample(optimizer);
    hotbed_storage *a = sample_create(&s, stream), *b = sample_create(&s, stream);
    uint64_t step = 0, bytes = 100;
    char extra[100] = "";
    sample_fill_formula(&s, a, stream);
    CHECK_OK(hotbed_checkpoint_load(path, &b, 1, NULL, NULL, stream));
    CHECK_OK(sample_load(path, b, NULL, &step, stream));
    CHECK_OK(hotbed_checkpoint_read_blob(path, "extra", extra, &bytes));
    CHECK_EQ(step, 1234);
    CHECK_EQ(bytes, strlen(SAMPLE_EXTRA));
    CHECK_STRING(extra, SAMPLE_EXTRA);
    sample_check_same(a, b, stream);
    hotbed_storage_destroy(a);
    hotbed_storage_destroy(b);
    hotbed_stream_destroy(stream);
}

sample_image sample_read(hotbed_storage *storage, uint32_t table, hotbed_stream *stream) {
    uint64_t rows = 0;
    hotbed_table_info info = {.size = sizeof info};
    CHECK_OK(hotbed_storage_table(storage, table, &info));
    CHECK_OK(hotbed_storage_export_keys(storage, table, 0, NULL, NULL, &rows, stream));
    sample_image image = sample_new(storage, table, rows);
    CHECK_OK(hotbed_storage_export_keys(storage, table, rows, image.keys, NULL, &rows, stream));
    qsort(image.keys, rows, sizeof *image.keys, by_key);
    rows_memory m = upload_image(&image, stream);
    hotbed_rows view = view_rows(&m, info.kind == HOTBED_TABLE_HASH);
    CHECK_OK(hotbed_storage_get_rows(storage, table, rows, m.keys.data, &view, NULL, stream));
    CHECK_OK(hotbed_copy(image.weights, m.weights.data, rows * image.weight_bytes, stream));
    CHECK_OK(hotbed_copy(image.scores, m.scores.data, rows * sizeof(uint64_t), stream));
    if (image.times != NULL)
        CHECK_OK(hotbed_copy(image.times, m.times.data, rows * sizeof(uint64_t), stream));
    for (int i = 0; i < 2; i++)
        if (image.states[i] != NULL)
            CHECK_OK(hotbed_copy(
                image.states[i], m.states[i].data, rows * image.state_bytes[i], stream));
    CHECK_OK(hotbed_stream_sync(stream));
    free_rows(&m);
    return image;
}

void sample_check_same(hotbed_storage *a, hotbed_storage *b, hotbed_stream *stream) {
    CHECK_EQ(hotbed_storage_num_tables(a), hotbed_storage_num_tables(b));
    for (uint32_t t = 0; t < hotbed_storage_num_tables(a); t++) {
        sample_image x = sample_read(a, t, stream), y = sample_read(b, t, stream);
        CHECK_EQ(x.rows, y.rows);
        CHECK_BYTES(x.keys, y.keys, x.rows * sizeof(uint64_t));
        CHECK_BYTES(x.weights, y.weights, x.rows * x.weight_bytes);
        CHECK_BYTES(x.scores, y.scores, x.rows * sizeof(uint64_t));
        CHECK((x.times == NULL) == (y.times == NULL));
        if (x.times != NULL)
            CHECK_BYTES(x.times, y.times, x.rows * sizeof(uint64_t));
        for (int i = 0; i < 2; i++)
            if (x.states[i] != NULL)
                CHECK_BYTES(x.states[i], y.states[i], x.rows * x.state_bytes[i]);
        sample_free(&x);
        sample_free(&y);
    }
    hotbed_storage_state p = {.size = sizeof p}, q = {.size = sizeof q};
    CHECK_OK(hotbed_storage_get_state(a, &p, stream));
    CHECK_OK(hotbed_storage_get_state(b, &q, stream));
    CHECK_EQ(p.optimizer_steps, q.optimizer_steps);
    CHECK_EQ(p.clock, q.clock);
    CHECK_BYTES(&p.beta1_power, &q.beta1_power, sizeof p.beta1_power);
    CHECK_BYTES(&p.beta2_power, &q.beta2_power, sizeof p.beta2_power);
    CHECK_BYTES(&p.learning_rate, &q.learning_rate, sizeof p.learning_rate);
}

void sample_check_empty(hotbed_storage *storage, hotbed_stream *stream) {
    for (uint32_t t = 0; t < hotbed_storage_num_tables(storage); t++) {
        hotbed_table_info info = {.size = sizeof info};
        uint64_t keys = 0;
        CHECK_OK(hotbed_storage_table(storage, t, &info));
        CHECK_OK(hotbed_storage_size(storage, t, &keys, NULL, stream));
        CHECK_EQ(keys, info.kind == HOTBED_TABLE_STATIC ? info.capacity : 0);
    }
}

void sample_see(
    hotbed_storage *storage, uint32_t samples, uint64_t num_keys, const uint64_t *keys,
    hotbed_stream *stream) {
    hotbed_ticket *ticket = NULL;
    hotbed_batch batch = {.size = sizeof batch};
    hotbed_memory memory;
    CHECK_OK(hotbed_ticket_create(storage, num_keys, samples, stream, &ticket));
    CHECK_OK(hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, num_keys * 8, NULL, &memory));
    CHECK_OK(hotbed_copy(memory.data, keys, num_keys * 8, stream));
    batch.batch_size = samples;
    batch.num_keys = num_keys;
    batch.keys = memory.data;
    CHECK_OK(hotbed_storage_prefetch(storage, &batch, ticket, stream));
    CHECK_OK(hotbed_ticket_cancel(ticket, stream));
    CHECK_OK(hotbed_stream_sync(stream));
    hotbed_ticket_destroy(ticket);
    hotbed_memory_free(&memory);
}

/* --- system calls that fail ------------------------------------------------------------------- */

static const hotbed_io_calls *const real = &hotbed_io_system;

static const char *place; /* the last directory that sample_directory() made */

/* Remove a file of the draft that is in `place`; false: there is no such file. */
static bool remove_file(const char *name) {
    DIR *directory = opendir(place);
    bool removed = false;
    CHECK(directory != NULL);
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", entry->d_name, name);
        if (strncmp(entry->d_name, ".tmp-", 5) == 0)
            removed = unlinkat(dirfd(directory), path, 0) == 0;
    }
    closedir(directory);
    return removed;
}

static int fault_of(sample_disk *disk) {
    disk->count++;
    if (disk->fault == SAMPLE_FAULT_DEAD && disk->count >= disk->at)
        return -EIO;
    if (disk->count != disk->at)
        return 0;
    switch (disk->fault) {
    case SAMPLE_FAULT_ENOSPC:
        return -ENOSPC;
    case SAMPLE_FAULT_EIO:
        return -EIO;
    case SAMPLE_FAULT_EINTR:
        return -EINTR;
    case SAMPLE_FAULT_REMOVE:
        disk->removed = remove_file(disk->removes);
        return 0;
    case SAMPLE_FAULT_NONE:
    case SAMPLE_FAULT_SHORT:
    case SAMPLE_FAULT_DEAD:
    case SAMPLE_FAULT_NO_DIRECT_OPEN:
    case SAMPLE_FAULT_NO_DIRECT:
        break;
    }
    return 0;
}

/* 0, or the value that this call returns instead of being made. */
static int next(sample_disk *disk) {
    pthread_mutex_lock(&disk->lock);
    int error = fault_of(disk);
    pthread_mutex_unlock(&disk->lock);
    return error;
}

/* The same for a transfer, and how many of its bytes to move. */
static int next_transfer(sample_disk *disk, int file, size_t *bytes) {
    pthread_mutex_lock(&disk->lock);
    int error = fault_of(disk);
    bool direct = file >= 0 && file < SAMPLE_FILES && disk->direct[file];
    if (disk->fault == SAMPLE_FAULT_SHORT && disk->count >= disk->at && *bytes > 1)
        *bytes = direct && *bytes > HOTBED_IO_PAGE ? HOTBED_IO_PAGE : *bytes / 2;
    if (direct && disk->fault == SAMPLE_FAULT_NO_DIRECT)
        error = -EINVAL;
    disk->direct_bytes += direct && error == 0 ? *bytes : 0;
    pthread_mutex_unlock(&disk->lock);
    return error;
}

static uint64_t find_dirty(const sample_disk *disk, uint64_t inode) {
    uint64_t i = 0;
    while (i < disk->num_dirty && disk->dirty[i] != inode)
        i++;
    return i;
}

static void clean_inode(sample_disk *disk, uint64_t inode) {
    uint64_t i = find_dirty(disk, inode);
    if (i < disk->num_dirty)
        disk->dirty[i] = disk->dirty[--disk->num_dirty];
}

static uint64_t inode_of(const sample_disk *disk, int handle) {
    return handle >= 0 && handle < SAMPLE_FILES ? disk->inodes[handle] : 0;
}

static void change(sample_disk *disk, int handle) {
    uint64_t inode = inode_of(disk, handle);
    if (inode != 0 && find_dirty(disk, inode) == disk->num_dirty && disk->num_dirty < SAMPLE_FILES)
        disk->dirty[disk->num_dirty++] = inode;
}

static void changed(sample_disk *disk, int handle) {
    pthread_mutex_lock(&disk->lock);
    change(disk, handle);
    pthread_mutex_unlock(&disk->lock);
}

static void opened(sample_disk *disk, int handle, bool direct) {
    struct stat info;
    if (handle < 0 || handle >= SAMPLE_FILES || fstat(handle, &info) != 0)
        return;
    disk->inodes[handle] = info.st_ino;
    disk->direct[handle] = direct;
}

static bool is_direct(hotbed_io_open_kind kind) {
    return kind == HOTBED_IO_READ_DIRECT || kind == HOTBED_IO_WRITE_DIRECT;
}

static int fault_open(void *self, int directory, const char *name, hotbed_io_open_kind kind) {
    sample_disk *disk = self;
    int error = next(disk);
    if (error == 0 && disk->fault == SAMPLE_FAULT_NO_DIRECT_OPEN && is_direct(kind))
        error = -EINVAL;
    int file = error != 0 ? error : real->open(NULL, directory, name, kind);
    pthread_mutex_lock(&disk->lock);
    disk->open_files += file >= 0 ? 1 : 0;
    opened(disk, file, is_direct(kind));
    if (file >= 0 && kind == HOTBED_IO_CREATE) {
        change(disk, directory);
        change(disk, file);
    }
    pthread_mutex_unlock(&disk->lock);
    return file;
}

static int fault_close(void *self, int file) {
    sample_disk *disk = self;
    int error = next(disk);
    pthread_mutex_lock(&disk->lock);
    int closed = real->close(NULL, file); /* a close that fails has still closed the file */
    disk->open_files--;
    pthread_mutex_unlock(&disk->lock);
    /* The code above this table handles EINTR of the kernel. */
    return error == 0 || error == -EINTR ? closed : error;
}

static int fault_info(void *self, int file, hotbed_io_info *out) {
    int error = next(self);
    return error == 0 || error == -EINTR ? real->info(NULL, file, out) : error;
}

static int fault_allocate(void *self, int file, uint64_t bytes) {
    int error = next(self);
    return error != 0 ? error : real->allocate(NULL, file, bytes);
}

static int64_t fault_write_at(
    void *self, int file, const void *data, size_t bytes, uint64_t offset) {
    int error = next_transfer(self, file, &bytes);
    changed(self, file);
    return error != 0 ? error : real->write_at(NULL, file, data, bytes, offset);
}

static int64_t fault_read_at(void *self, int file, void *data, size_t bytes, uint64_t offset) {
    sample_disk *disk = self;
    int error = next_transfer(disk, file, &bytes);
    int64_t n = error != 0 ? error : real->read_at(NULL, file, data, bytes, offset);
    pthread_mutex_lock(&disk->lock);
    disk->bytes_read += n > 0 ? (uint64_t)n : 0;
    pthread_mutex_unlock(&disk->lock);
    return n;
}

static void fault_hint(void *self, int file, bool written, uint64_t offset, uint64_t bytes) {
    real->hint(NULL, file, written, offset, bytes);
}

static int fault_sync(void *self, int file) {
    sample_disk *disk = self;
    int error = next(self);
    pthread_mutex_lock(&disk->lock);
    if (error == 0)
        clean_inode(disk, inode_of(disk, file));
    pthread_mutex_unlock(&disk->lock);
    return error; /* no real fsync, which would only take time */
}

static int fault_exists(void *self, int directory, const char *name) {
    int error = next(self);
    return error == 0 || error == -EINTR ? real->exists(NULL, directory, name) : error;
}

static int fault_list(
    void *self, int directory, void (*each)(void *context, const char *name), void *context) {
    int error = next(self);
    return error == 0 || error == -EINTR ? real->list(NULL, directory, each, context) : error;
}

static int fault_make_directory(void *self, int directory, const char *name) {
    int error = next(self);
    changed(self, directory);
    return error == 0 || error == -EINTR ? real->make_directory(NULL, directory, name) : error;
}

static int renamed(
    sample_disk *disk, int directory, const char *from, const char *to,
    int (*call)(void *, int, const char *, const char *)) {
    int error = next(disk);
    pthread_mutex_lock(&disk->lock);
    clean_inode(disk, inode_of(disk, directory));
    disk->lost_at_rename = disk->num_dirty;
    change(disk, directory);
    pthread_mutex_unlock(&disk->lock);
    return error == 0 || error == -EINTR ? call(NULL, directory, from, to) : error;
}

static int fault_rename(void *self, int directory, const char *from, const char *to) {
    return renamed(self, directory, from, to, real->rename);
}

static int fault_rename_new(void *self, int directory, const char *from, const char *to) {
    return renamed(self, directory, from, to, real->rename_new);
}

static int fault_remove(void *self, int directory, const char *name, bool is_directory) {
    sample_disk *disk = self;
    int error = next(self);
    struct stat info;
    pthread_mutex_lock(&disk->lock);
    if (fstatat(directory, name, &info, AT_SYMLINK_NOFOLLOW) == 0)
        clean_inode(disk, info.st_ino);
    change(disk, directory);
    pthread_mutex_unlock(&disk->lock);
    return error == 0 || error == -EINTR ? real->remove(NULL, directory, name, is_directory)
                                         : error;
}

void sample_disk_init(sample_disk *disk, sample_fault fault, uint64_t at) {
    *disk = (sample_disk){
        .calls =
            {
                .self = disk,
                .open = fault_open,
                .close = fault_close,
                .info = fault_info,
                .allocate = fault_allocate,
                .write_at = fault_write_at,
                .read_at = fault_read_at,
                .hint = fault_hint,
                .sync = fault_sync,
                .exists = fault_exists,
                .list = fault_list,
                .make_directory = fault_make_directory,
                .rename = fault_rename,
                .rename_new = fault_rename_new,
                .remove = fault_remove,
            },
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .fault = fault,
        .at = at,
    };
}

/* --- files ------------------------------------------------------------------------------------ */

const char *sample_directory(void) {
    place = hotbed_test_directory();
    return place;
}

const char *sample_path(const char *name) {
    static char paths[64][512];
    static unsigned turn;
    char *path = paths[turn++ % 64];
    snprintf(path, sizeof paths[0], "%s/%s", place, name);
    return path;
}

unsigned char *sample_read_file(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    CHECK(file != NULL);
    CHECK(fseek(file, 0, SEEK_END) == 0);
    long size = ftell(file);
    CHECK(size >= 0 && fseek(file, 0, SEEK_SET) == 0);
    unsigned char *data = malloc((size_t)size + 1);
    CHECK(data != NULL && fread(data, 1, (size_t)size, file) == (size_t)size);
    fclose(file);
    *bytes = (size_t)size;
    return data;
}

void sample_write_file(const char *path, const void *data, size_t bytes) {
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL && fwrite(data, 1, bytes, file) == bytes);
    CHECK(fclose(file) == 0);
}

uint64_t sample_count_names(const char *path) {
    DIR *directory = opendir(path);
    uint64_t n = 0;
    CHECK(directory != NULL);
    while (readdir(directory) != NULL)
        n++;
    closedir(directory);
    return n - 2; /* without . and .. */
}

void sample_remove(const char *path) {
    DIR *directory = opendir(path);
    CHECK(directory != NULL);
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            CHECK(unlinkat(dirfd(directory), entry->d_name, 0) == 0);
    closedir(directory);
    CHECK(rmdir(path) == 0);
}

hotbed_stream *sample_stream(hotbed_backend backend) {
    hotbed_stream *stream = hotbed_test_stream(backend);
    sample_directory();
    return stream;
}
