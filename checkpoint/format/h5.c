/* checkpoint/format/h5.c - layouts by libhdf5 in memory; the only file that includes hdf5.h. */
#include "checkpoint/format/h5.h"

#include "base/error.h"
#include "base/stream.h"
#include "checkpoint/format/sparse.h"

#include <hdf5.h>
#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { ALIGNMENT = 4096 };

typedef struct memory_file memory_file;

struct hotbed_h5 {
    hid_t file;
    hid_t driver;        /* of the file */
    uint64_t first_data; /* lowest offset of a dataset; UINT64_MAX: none yet */
    uint64_t end_data;
    /* The file as libhdf5 has written it: its metadata. The datasets are holes. */
    hotbed_sparse bytes;
    uint64_t file_bytes;
    bool no_memory;    /* some of the bytes are lost */
    memory_file *open; /* while libhdf5 has the file open */
};

/* --- libhdf5's own state ------------------------------------------------------------------------ */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The caller's settings for libhdf5's error stack. libhdf5 prints its errors by default; enter()
 * turns this off, and leave() restores the caller's settings. */
typedef struct quiet {
    H5E_auto2_t function;
    void *data;
} quiet;

static quiet enter(void) {
    quiet before = {.function = NULL, .data = NULL};
    pthread_mutex_lock(&lock);
    H5Eget_auto2(H5E_DEFAULT, &before.function, &before.data);
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    return before;
}

static void leave(quiet before) {
    H5Eset_auto2(H5E_DEFAULT, before.function, before.data);
    pthread_mutex_unlock(&lock);
}

/* Copy the innermost description of the error stack. */
static herr_t innermost(unsigned n, const H5E_error2_t *error, void *text) {
    if (n == 0 && error->desc != NULL)
        snprintf(text, 128, "%s", error->desc);
    return 0;
}

static hotbed_status fail_memory(void) {
    return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for an HDF5 layout");
}

static hotbed_status fail(const hotbed_h5 *h5, const char *what, const char *path) {
    char reason[128] = "no reason given";
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, innermost, reason);
    H5Eclear2(H5E_DEFAULT);
    if (h5->no_memory)
        return fail_memory();
    return hotbed_fail_path(
        HOTBED_ERR_IO, path, "HDF5 layout: cannot %s %s: %s", what, path, reason);
}

/* --- small helpers; all run between enter() and leave() ----------------------------------------- */

static hid_t float_type(size_t mantissa_bits) {
    hid_t type = H5Tcopy(H5T_IEEE_F32LE);
    size_t exponent_bits = 15 - mantissa_bits;
    if (H5Tset_fields(type, 15, mantissa_bits, exponent_bits, 0, mantissa_bits) < 0 ||
        H5Tset_size(type, 2) < 0 ||
        H5Tset_ebias(type, ((size_t)1 << (exponent_bits - 1)) - 1) < 0) {
        H5Tclose(type);
        return H5I_INVALID_HID;
    }
    return type;
}

/* Return a copy of the type, which the caller closes. */
static hid_t open_type(hotbed_h5_type type) {
    switch (type) {
    case HOTBED_H5_U8:
        return H5Tcopy(H5T_STD_U8LE);
    case HOTBED_H5_I64:
        return H5Tcopy(H5T_STD_I64LE);
    case HOTBED_H5_U64:
        return H5Tcopy(H5T_STD_U64LE);
    case HOTBED_H5_F16:
        return float_type(10);
    case HOTBED_H5_BF16:
        return float_type(7);
    case HOTBED_H5_F32:
        return H5Tcopy(H5T_IEEE_F32LE);
    }
    return H5I_INVALID_HID;
}

static hid_t open_space(uint64_t rows, uint64_t width) {
    hsize_t dims[2] = {rows, width};
    return H5Screate_simple(width == 0 ? 1 : 2, dims, NULL);
}

/* Make the groups above `path` that are missing. libhdf5 would make them, too, but with the time of day in each. */
static bool make_parents(hotbed_h5 *h5, const char *path) {
    char *parent = hotbed_new(strlen(path) + 1);
    bool good = parent != NULL;
    h5->no_memory |= !good;
    for (const char *end = strchr(path + 1, '/'); good && end != NULL; end = strchr(end + 1, '/')) {
        memcpy(parent, path, (size_t)(end - path));
        parent[end - path] = 0;
        if (H5Lexists(h5->file, parent, H5P_DEFAULT) > 0)
            continue;
        hid_t list = H5Pcreate(H5P_GROUP_CREATE);
        good = H5Pset_obj_track_times(list, false) >= 0;
        hid_t group =
            good ? H5Gcreate2(h5->file, parent, H5P_DEFAULT, list, H5P_DEFAULT) : H5I_INVALID_HID;
        good = group >= 0 && H5Gclose(group) >= 0;
        H5Pclose(list);
    }
    hotbed_delete(parent);
    return good;
}

static void close_all(hid_t type, hid_t space, hid_t list) {
    if (type >= 0)
        H5Tclose(type);
    if (space >= 0)
        H5Sclose(space);
    if (list >= 0)
        H5Pclose(list);
}

/* Check that the loaded libhdf5 has the version of the headers. libhdf5 checks this itself, and
 * aborts the process if they differ. */
static hotbed_status check_version(void) {
    unsigned major = 0, minor = 0, release = 0;
    pthread_mutex_lock(&lock);
    herr_t asked = H5get_libversion(&major, &minor, &release);
    pthread_mutex_unlock(&lock);
    if (asked < 0)
        return hotbed_fail(HOTBED_ERR_UNSUPPORTED, "libhdf5 cannot be initialized");
    if (major != H5_VERS_MAJOR || minor != H5_VERS_MINOR || release != H5_VERS_RELEASE)
        return hotbed_fail(
            HOTBED_ERR_UNSUPPORTED, "built with HDF5 %d.%d.%d, but %u.%u.%u is loaded",
            H5_VERS_MAJOR, H5_VERS_MINOR, H5_VERS_RELEASE, major, minor, release);
    return HOTBED_OK;
}

void hotbed_h5_version(char version[32]) {
    snprintf(version, 32, "%d.%d.%d", H5_VERS_MAJOR, H5_VERS_MINOR, H5_VERS_RELEASE);
}

/* --- the file in memory: a virtual file driver of libhdf5 ----------------------------------------- */

/* A file that libhdf5 has open. The driver's calls never fail: if libhdf5 cannot write a file, it
 * keeps the file open and fails again at process exit. If memory is short, the bytes are lost, and
 * the layout's `no_memory` is set. */
struct memory_file {
    H5FD_t base;   /* first: libhdf5 uses this part */
    hotbed_h5 *h5; /* NULL: the layout was destroyed, but libhdf5 could not close the file */
    haddr_t end;   /* end of the address space that libhdf5 has allocated */
};

/* The argument that H5Pset_driver() passes to the driver's open function. */
typedef struct driver_info {
    hotbed_h5 *h5;
} driver_info;

static H5FD_t *memory_open(const char *name, unsigned flags, hid_t access, haddr_t most) {
    const driver_info *info = H5Pget_driver_info(access);
    if (info == NULL)
        return NULL;
    memory_file *file = hotbed_new(sizeof *file);
    if (file == NULL) {
        info->h5->no_memory = true;
        return NULL;
    }
    file->h5 = info->h5;
    info->h5->open = file;
    return &file->base;
}

static herr_t memory_close(H5FD_t *base) {
    memory_file *file = (memory_file *)base;
    if (file->h5 != NULL)
        file->h5->open = NULL;
    hotbed_delete(file);
    return 0;
}

/* The flags of libhdf5's driver for ordinary files, so that the layouts are the same. */
static herr_t memory_query(const H5FD_t *base, unsigned long *flags) {
    *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE |
             H5FD_FEAT_AGGREGATE_SMALLDATA | H5FD_FEAT_DEFAULT_VFD_COMPATIBLE;
    return 0;
}

static haddr_t memory_get_eoa(const H5FD_t *base, H5FD_mem_t type) {
    return ((const memory_file *)base)->end;
}

static herr_t memory_set_eoa(H5FD_t *base, H5FD_mem_t type, haddr_t end) {
    ((memory_file *)base)->end = end;
    return 0;
}

static haddr_t memory_get_eof(const H5FD_t *base, H5FD_mem_t type) {
    const hotbed_h5 *h5 = ((const memory_file *)base)->h5;
    return h5 == NULL ? 0 : h5->file_bytes;
}

static herr_t memory_read(
    H5FD_t *base, H5FD_mem_t type, hid_t transfer, haddr_t offset, size_t bytes, void *data) {
    const hotbed_h5 *h5 = ((const memory_file *)base)->h5;
    if (h5 == NULL)
        memset(data, 0, bytes);
    else
        hotbed_sparse_read(&h5->bytes, offset, data, bytes);
    return 0;
}

static herr_t memory_write(
    H5FD_t *base, H5FD_mem_t type, hid_t transfer, haddr_t offset, size_t bytes, const void *data) {
    hotbed_h5 *h5 = ((memory_file *)base)->h5;
    if (h5 == NULL)
        return 0;
    if (!hotbed_sparse_write(&h5->bytes, offset, data, bytes))
        h5->no_memory = true;
    if (h5->file_bytes < offset + bytes)
        h5->file_bytes = offset + bytes;
    return 0;
}

static herr_t memory_truncate(H5FD_t *base, hid_t transfer, hbool_t closing) {
    const memory_file *file = (const memory_file *)base;
    if (file->h5 != NULL)
        file->h5->file_bytes = file->end;
    return 0;
}

static const H5FD_class_t memory_driver = {
#if defined(H5FD_CLASS_VERSION)
    .version = H5FD_CLASS_VERSION,
    .value = H5_VFD_RESERVED + 104, /* above the numbers that HDF5 keeps for itself */
#endif
    .name = "hotbed-memory",
    .maxaddr = INT64_MAX,
    .fc_degree = H5F_CLOSE_WEAK,
    .fapl_size = sizeof(driver_info),
    .open = memory_open,
    .close = memory_close,
    .query = memory_query,
    .get_eoa = memory_get_eoa,
    .set_eoa = memory_set_eoa,
    .get_eof = memory_get_eof,
    .read = memory_read,
    .write = memory_write,
    .truncate = memory_truncate,
    .fl_map = H5FD_FLMAP_DICHOTOMY,
};

/* Create the file with libhdf5. hotbed_h5_destroy() unregisters its driver, so that nothing of this
 * library remains in libhdf5, which the program may use too. */
static hotbed_status create_file(hotbed_h5 *h5, size_t metadata_bytes) {
    static const char name[] = "in memory";
    driver_info info = {.h5 = h5};
    h5->driver = H5FDregister(&memory_driver);
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    hid_t create = H5Pcreate(H5P_FILE_CREATE);
    if (H5Pset_driver(access, h5->driver, &info) >= 0 &&
        H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110) >= 0 &&
        H5Pset_alignment(access, ALIGNMENT, ALIGNMENT) >= 0 &&
        H5Pset_meta_block_size(access, metadata_bytes) >= 0 &&
        H5Pset_attr_phase_change(create, 64, 0) >= 0 && H5Pset_obj_track_times(create, false) >= 0)
        h5->file = H5Fcreate(name, H5F_ACC_TRUNC, create, access);
    /* Read the error before the lists are closed: each call of libhdf5 clears the error stack. */
    hotbed_status status = h5->file < 0 ? fail(h5, "create a file", name) : HOTBED_OK;
    H5Pclose(access);
    H5Pclose(create);
    return status;
}

/* --- the module's functions ----------------------------------------------------------------------- */

hotbed_status hotbed_h5_create(size_t metadata_bytes, hotbed_h5 **out) {
    *out = NULL;
    HOTBED_TRY(check_version());
    hotbed_h5 *h5 = hotbed_new(sizeof *h5);
    if (h5 == NULL)
        return fail_memory();
    h5->file = h5->driver = H5I_INVALID_HID;
    h5->first_data = UINT64_MAX;
    quiet before = enter();
    hotbed_status status = create_file(h5, metadata_bytes);
    leave(before);
    if (status != HOTBED_OK)
        hotbed_h5_destroy(h5);
    else
        *out = h5;
    return status;
}

void hotbed_h5_destroy(hotbed_h5 *h5) {
    if (h5 == NULL)
        return;
    quiet before = enter();
    if (h5->file >= 0)
        H5Fclose(h5->file);
    /* Last: H5FD_close() of libhdf5 1.10 drops the file's reference to the driver, which frees the
     * driver's table after the last reference, and then calls the table's close function. If
     * libhdf5 could not close the file, it calls the driver again at process exit. */
    if (h5->open != NULL)
        h5->open->h5 = NULL;
    else if (h5->driver >= 0)
        H5FDunregister(h5->driver);
    leave(before);
    hotbed_sparse_free(&h5->bytes);
    hotbed_delete(h5);
}

hotbed_status hotbed_h5_group(hotbed_h5 *h5, const char *path) {
    quiet before = enter();
    hid_t list = H5Pcreate(H5P_GROUP_CREATE);
    hid_t group = H5I_INVALID_HID;
    if (make_parents(h5, path) && H5Pset_attr_phase_change(list, 64, 0) >= 0 &&
        H5Pset_obj_track_times(list, false) >= 0)
        group = H5Gcreate2(h5->file, path, H5P_DEFAULT, list, H5P_DEFAULT);
    hotbed_status status =
        group < 0 || H5Gclose(group) < 0 ? fail(h5, "make group", path) : HOTBED_OK;
    close_all(H5I_INVALID_HID, H5I_INVALID_HID, list);
    leave(before);
    return status;
}

/* Return properties of a dataset that is allocated at once and never filled. */
static hid_t open_contiguous(void) {
    hid_t list = H5Pcreate(H5P_DATASET_CREATE);
    if (H5Pset_layout(list, H5D_CONTIGUOUS) < 0 ||
        H5Pset_alloc_time(list, H5D_ALLOC_TIME_EARLY) < 0 ||
        H5Pset_fill_time(list, H5D_FILL_TIME_NEVER) < 0 ||
        H5Pset_obj_track_times(list, false) < 0) {
        H5Pclose(list);
        return H5I_INVALID_HID;
    }
    return list;
}

hotbed_status hotbed_h5_dataset(
    hotbed_h5 *h5, const char *path, hotbed_h5_shape shape, uint64_t *offset) {
    quiet before = enter();
    hid_t type = open_type(shape.type), space = open_space(shape.rows, shape.width);
    hid_t list = open_contiguous(), data = H5I_INVALID_HID;
    if (make_parents(h5, path))
        data = H5Dcreate2(h5->file, path, type, space, H5P_DEFAULT, list, H5P_DEFAULT);
    hotbed_status status = data < 0 ? fail(h5, "make dataset", path) : HOTBED_OK;
    if (status == HOTBED_OK) {
        haddr_t at = H5Dget_offset(data);
        uint64_t bytes = H5Dget_storage_size(data);
        *offset = bytes == 0 ? 0 : at;
        if (bytes > 0 && at == HADDR_UNDEF) {
            status = fail(h5, "place dataset", path);
        } else if (bytes > 0) {
            h5->first_data = at < h5->first_data ? at : h5->first_data;
            h5->end_data = at + bytes > h5->end_data ? at + bytes : h5->end_data;
        }
        if (H5Dclose(data) < 0 && status == HOTBED_OK)
            status = fail(h5, "close dataset", path);
    }
    close_all(type, space, list);
    leave(before);
    return status;
}

/* Set what a view reads where a source is missing: NaN, the least i64, or 0. */
static int set_fill(hid_t list, hotbed_h5_type type) {
    float nan_value = NAN;
    int64_t least = INT64_MIN;
    uint64_t zero = 0;
    switch (type) {
    case HOTBED_H5_F16:
    case HOTBED_H5_BF16:
    case HOTBED_H5_F32:
        return H5Pset_fill_value(list, H5T_NATIVE_FLOAT, &nan_value);
    case HOTBED_H5_I64:
        return H5Pset_fill_value(list, H5T_NATIVE_INT64, &least);
    case HOTBED_H5_U8:
    case HOTBED_H5_U64:
        break;
    }
    return H5Pset_fill_value(list, H5T_NATIVE_UINT64, &zero);
}

/* Map `source` to the view's rows. */
static int add_source(
    hid_t list, hid_t space, hotbed_h5_shape shape, const hotbed_h5_source *source) {
    hsize_t start[2] = {source->first, 0}, count[2] = {source->rows, shape.width};
    hsize_t step[2] = {source->step, 1};
    hid_t from = open_space(source->rows, shape.width);
    int added = -1;
    if (H5Sselect_hyperslab(space, H5S_SELECT_SET, start, step, count, NULL) >= 0)
        added = H5Pset_virtual(list, space, source->file, source->path, from);
    H5Sclose(from);
    return added;
}

hotbed_status hotbed_h5_view(
    hotbed_h5 *h5, const char *path, hotbed_h5_shape shape, const hotbed_h5_source *sources,
    uint32_t num_sources) {
    quiet before = enter();
    hid_t type = open_type(shape.type), space = open_space(shape.rows, shape.width);
    hid_t list = H5Pcreate(H5P_DATASET_CREATE);
    int good = H5Pset_obj_track_times(list, false) >= 0 && set_fill(list, shape.type) >= 0;
    for (uint32_t i = 0; i < num_sources && good; i++)
        if (sources[i].rows > 0)
            good = add_source(list, space, shape, &sources[i]) >= 0;
    hid_t data = H5I_INVALID_HID;
    if (good && H5Sselect_all(space) >= 0 && make_parents(h5, path))
        data = H5Dcreate2(h5->file, path, type, space, H5P_DEFAULT, list, H5P_DEFAULT);
    hotbed_status status = data < 0 || H5Dclose(data) < 0 ? fail(h5, "make view", path) : HOTBED_OK;
    close_all(type, space, list);
    leave(before);
    return status;
}

hotbed_status hotbed_h5_link(hotbed_h5 *h5, const char *path, const char *target) {
    quiet before = enter();
    hotbed_status status = HOTBED_OK;
    if (!make_parents(h5, path) ||
        H5Lcreate_soft(target, h5->file, path, H5P_DEFAULT, H5P_DEFAULT) < 0)
        status = fail(h5, "link", path);
    leave(before);
    return status;
}

/* Write an attribute of `path` with one value, which has type `memory` in memory. */
static hotbed_status set_attribute(
    hotbed_h5 *h5, const char *path, const char *attribute, hid_t file_type, hid_t memory_type,
    const void *value) {
    hid_t space = H5Screate(H5S_SCALAR);
    hid_t set = H5Acreate_by_name(
        h5->file, path, attribute, file_type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    hotbed_status status = HOTBED_OK;
    if (set < 0 || H5Awrite(set, memory_type, value) < 0)
        status = fail(h5, "set an attribute of", path);
    if (set >= 0 && H5Aclose(set) < 0 && status == HOTBED_OK)
        status = fail(h5, "close an attribute of", path);
    close_all(H5I_INVALID_HID, space, H5I_INVALID_HID);
    return status;
}

hotbed_status hotbed_h5_text(
    hotbed_h5 *h5, const char *path, const char *attribute, const char *value) {
    quiet before = enter();
    hid_t type = H5Tcopy(H5T_C_S1);
    size_t bytes = strlen(value);
    hotbed_status status;
    /* Fixed length: libhdf5 stores text of variable length in a heap. */
    if (H5Tset_size(type, bytes == 0 ? 1 : bytes) < 0 || H5Tset_strpad(type, H5T_STR_NULLPAD) < 0)
        status = fail(h5, "set an attribute of", path);
    else
        status = set_attribute(h5, path, attribute, type, type, value);
    close_all(type, H5I_INVALID_HID, H5I_INVALID_HID);
    leave(before);
    return status;
}

hotbed_status hotbed_h5_number(
    hotbed_h5 *h5, const char *path, const char *attribute, uint64_t value) {
    quiet before = enter();
    hotbed_status status =
        set_attribute(h5, path, attribute, H5T_STD_U64LE, H5T_NATIVE_UINT64, &value);
    leave(before);
    return status;
}

hotbed_status hotbed_h5_real(hotbed_h5 *h5, const char *path, const char *attribute, double value) {
    quiet before = enter();
    hotbed_status status =
        set_attribute(h5, path, attribute, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, &value);
    leave(before);
    return status;
}

hotbed_status hotbed_h5_finish(hotbed_h5 *h5, hotbed_h5_image *out) {
    *out = (hotbed_h5_image){.metadata = NULL};
    quiet before = enter();
    hotbed_status status = H5Fclose(h5->file) < 0 ? fail(h5, "close", "the file") : HOTBED_OK;
    h5->file = H5I_INVALID_HID;
    leave(before);
    HOTBED_TRY(status);
    if (h5->no_memory)
        return fail_memory();
    if (h5->file_bytes < h5->end_data)
        return hotbed_fail_limit(
            HOTBED_ERR_IO, NULL, h5->file_bytes, h5->end_data,
            "HDF5 layout: the file ends at %" PRIu64 ", its data at %" PRIu64, h5->file_bytes,
            h5->end_data);
    uint64_t metadata_bytes = h5->first_data < h5->file_bytes ? h5->first_data : h5->file_bytes;
    if (!hotbed_sparse_is_zero(&h5->bytes, metadata_bytes))
        return HOTBED_OK; /* metadata lies between the datasets */
    void *metadata = hotbed_new(metadata_bytes);
    HOTBED_TRY_MEMORY(metadata, "%" PRIu64 " bytes of metadata", metadata_bytes);
    hotbed_sparse_read(&h5->bytes, 0, metadata, metadata_bytes);
    *out = (hotbed_h5_image){
        .metadata = metadata, .metadata_bytes = metadata_bytes, .file_bytes = h5->file_bytes};
    return HOTBED_OK;
}
