/* checkpoint/h5.c - layouts by libhdf5 in a nameless file; the only file that includes hdf5.h. */
#define _GNU_SOURCE /* mkostemp(), SEEK_DATA */
#include "checkpoint/h5.h"

#include "base/error.h"
#include "base/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <hdf5.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ALIGNMENT = 4096, PATH_BYTES = 256, SCAN_BYTES = 1 << 16 };

struct hotbed_h5 {
    int memory; /* the nameless file */
    hid_t file;
    uint64_t first_data; /* lowest offset of a dataset; UINT64_MAX: none yet */
    uint64_t end_data;
};

/* --- libhdf5's own state ------------------------------------------------------------------------ */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* libhdf5's handler at exit crashes on what a failed write leaves behind.  When the process has
 * already begun to use libhdf5 this comes too late, and changes nothing. */
static void no_handler_at_exit(void) {
    if (H5dont_atexit() < 0)
        return;
}

/* libhdf5 prints its error stack unless told not to; the caller's own setting is put back. */
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

/* Keep the innermost description of the error stack. */
static herr_t innermost(unsigned n, const H5E_error2_t *error, void *text) {
    if (n == 0 && error->desc != NULL)
        snprintf(text, 128, "%s", error->desc);
    return 0;
}

static hotbed_status fail(const char *what, const char *path) {
    char reason[128] = "no reason given";
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, innermost, reason);
    H5Eclear2(H5E_DEFAULT);
    return hotbed_fail(HOTBED_ERR_IO, "HDF5 layout: cannot %s %s: %s", what, path, reason);
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

/* A copy that the caller closes. */
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

/* Link creation that makes the groups on the way. */
static hid_t open_way(void) {
    hid_t way = H5Pcreate(H5P_LINK_CREATE);
    if (H5Pset_create_intermediate_group(way, 1) < 0) {
        H5Pclose(way);
        return H5I_INVALID_HID;
    }
    return way;
}

static void close_all(hid_t type, hid_t space, hid_t way, hid_t list) {
    if (type >= 0)
        H5Tclose(type);
    if (space >= 0)
        H5Sclose(space);
    if (way >= 0)
        H5Pclose(way);
    if (list >= 0)
        H5Pclose(list);
}

/* --- the module's functions ----------------------------------------------------------------------- */

/* A mismatch would end the process: libhdf5 checks by aborting. */
static hotbed_status check_version(void) {
    unsigned major = 0, minor = 0, release = 0;
    if (H5get_libversion(&major, &minor, &release) < 0)
        return hotbed_fail(HOTBED_ERR_UNSUPPORTED, "libhdf5 cannot be initialised");
    if (major != H5_VERS_MAJOR || minor != H5_VERS_MINOR || release != H5_VERS_RELEASE)
        return hotbed_fail(
            HOTBED_ERR_UNSUPPORTED, "built with HDF5 %d.%d.%d, but %u.%u.%u is loaded",
            H5_VERS_MAJOR, H5_VERS_MINOR, H5_VERS_RELEASE, major, minor, release);
    return HOTBED_OK;
}

void hotbed_h5_version(char version[32]) {
    snprintf(version, 32, "%d.%d.%d", H5_VERS_MAJOR, H5_VERS_MINOR, H5_VERS_RELEASE);
}

/* Make an empty file, in memory where there is a file system for that.  Only metadata is ever written to
 * it; the datasets are holes. */
static hotbed_status make_file(hotbed_h5 *h5, char path[PATH_BYTES]) {
    const char *directories[] = {"/dev/shm", getenv("TMPDIR"), "/tmp"};
    for (size_t i = 0; i < sizeof directories / sizeof *directories && h5->memory < 0; i++) {
        if (directories[i] == NULL)
            continue;
        int length = snprintf(path, PATH_BYTES, "%s/hotbed-layout-XXXXXX", directories[i]);
        if (length > 0 && length < PATH_BYTES)
            h5->memory = mkostemp(path, O_CLOEXEC);
    }
    if (h5->memory < 0)
        return hotbed_fail(
            HOTBED_ERR_IO,
            "HDF5 layout: no place for a small file in /dev/shm, TMPDIR or /tmp: "
            "error %d",
            errno);
    return HOTBED_OK;
}

/* Let libhdf5 open the file. */
static hotbed_status create_file(hotbed_h5 *h5, const char *path, size_t metadata_bytes) {
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    hid_t create = H5Pcreate(H5P_FILE_CREATE);
    /* The driver is named, so that the environment does not choose another. */
    if (H5Pset_fapl_sec2(access) >= 0 &&
        H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110) >= 0 &&
        H5Pset_alignment(access, ALIGNMENT, ALIGNMENT) >= 0 &&
        H5Pset_meta_block_size(access, metadata_bytes) >= 0 &&
        H5Pset_attr_phase_change(create, 64, 0) >= 0 && H5Pset_obj_track_times(create, false) >= 0)
        h5->file = H5Fcreate(path, H5F_ACC_TRUNC, create, access);
    /* Before the lists are closed: each call of libhdf5 clears the stack that says why. */
    hotbed_status status = h5->file < 0 ? fail("create", path) : HOTBED_OK;
    H5Pclose(access);
    H5Pclose(create);
    return status;
}

hotbed_status hotbed_h5_create(size_t metadata_bytes, hotbed_h5 **out) {
    *out = NULL;
    pthread_once(&once, no_handler_at_exit);
    HOTBED_TRY(check_version());
    hotbed_h5 *h5 = hotbed_new(sizeof *h5);
    if (h5 == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for an HDF5 layout");
    h5->file = H5I_INVALID_HID;
    h5->first_data = UINT64_MAX;
    h5->memory = -1;
    char path[PATH_BYTES];
    hotbed_status status = make_file(h5, path);
    if (status != HOTBED_OK) {
        hotbed_h5_destroy(h5);
        return status;
    }
    quiet before = enter();
    status = create_file(h5, path, metadata_bytes);
    unlink(path); /* it lives on without a name, while it is open */
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
    if (h5->file >= 0) {
        quiet before = enter();
        H5Fclose(h5->file);
        leave(before);
    }
    if (h5->memory >= 0)
        close(h5->memory);
    hotbed_delete(h5);
}

hotbed_status hotbed_h5_group(hotbed_h5 *h5, const char *path) {
    quiet before = enter();
    hid_t way = open_way();
    hid_t list = H5Pcreate(H5P_GROUP_CREATE);
    hid_t group = H5I_INVALID_HID;
    if (H5Pset_attr_phase_change(list, 64, 0) >= 0 && H5Pset_obj_track_times(list, false) >= 0)
        group = H5Gcreate2(h5->file, path, way, list, H5P_DEFAULT);
    hotbed_status status = group < 0 || H5Gclose(group) < 0 ? fail("make group", path) : HOTBED_OK;
    close_all(H5I_INVALID_HID, H5I_INVALID_HID, way, list);
    leave(before);
    return status;
}

/* A dataset that has its place at once, and is never filled. */
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
    hid_t way = open_way(), list = open_contiguous();
    hid_t data = H5Dcreate2(h5->file, path, type, space, way, list, H5P_DEFAULT);
    hotbed_status status = data < 0 ? fail("make dataset", path) : HOTBED_OK;
    if (status == HOTBED_OK) {
        haddr_t at = H5Dget_offset(data);
        uint64_t bytes = H5Dget_storage_size(data);
        *offset = bytes == 0 ? 0 : at;
        if (bytes > 0 && at == HADDR_UNDEF) {
            status = fail("place dataset", path);
        } else if (bytes > 0) {
            h5->first_data = at < h5->first_data ? at : h5->first_data;
            h5->end_data = at + bytes > h5->end_data ? at + bytes : h5->end_data;
        }
        if (H5Dclose(data) < 0 && status == HOTBED_OK)
            status = fail("close dataset", path);
    }
    close_all(type, space, way, list);
    leave(before);
    return status;
}

/* What a view reads where no source has rows: nothing that could be taken for data. */
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

/* Map `source` into the view's rows. */
static int add_source(
    hid_t list, hid_t space, hotbed_h5_shape shape, const hotbed_h5_source *source) {
    hsize_t start[2] = {source->first, 0}, count[2] = {source->rows, shape.width};
    hid_t from = open_space(source->rows, shape.width);
    int added = -1;
    if (H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL) >= 0)
        added = H5Pset_virtual(list, space, source->file, source->path, from);
    H5Sclose(from);
    return added;
}

hotbed_status hotbed_h5_view(
    hotbed_h5 *h5, const char *path, hotbed_h5_shape shape, const hotbed_h5_source *sources,
    uint32_t num_sources) {
    quiet before = enter();
    hid_t type = open_type(shape.type), space = open_space(shape.rows, shape.width);
    hid_t way = open_way(), list = H5Pcreate(H5P_DATASET_CREATE);
    int good = H5Pset_obj_track_times(list, false) >= 0 && set_fill(list, shape.type) >= 0;
    for (uint32_t i = 0; i < num_sources && good; i++)
        if (sources[i].rows > 0)
            good = add_source(list, space, shape, &sources[i]) >= 0;
    hid_t data = H5I_INVALID_HID;
    if (good && H5Sselect_all(space) >= 0)
        data = H5Dcreate2(h5->file, path, type, space, way, list, H5P_DEFAULT);
    hotbed_status status = data < 0 || H5Dclose(data) < 0 ? fail("make view", path) : HOTBED_OK;
    close_all(type, space, way, list);
    leave(before);
    return status;
}

hotbed_status hotbed_h5_link(hotbed_h5 *h5, const char *path, const char *target) {
    quiet before = enter();
    hid_t way = open_way();
    hotbed_status status = HOTBED_OK;
    if (H5Lcreate_soft(target, h5->file, path, way, H5P_DEFAULT) < 0)
        status = fail("link", path);
    close_all(H5I_INVALID_HID, H5I_INVALID_HID, way, H5I_INVALID_HID);
    leave(before);
    return status;
}

/* An attribute of `path` with one value in memory of type `memory`. */
static hotbed_status set_attribute(
    hotbed_h5 *h5, const char *path, const char *attribute, hid_t file_type, hid_t memory_type,
    const void *value) {
    hid_t space = H5Screate(H5S_SCALAR);
    hid_t set = H5Acreate_by_name(
        h5->file, path, attribute, file_type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    hotbed_status status = HOTBED_OK;
    if (set < 0 || H5Awrite(set, memory_type, value) < 0)
        status = fail("set an attribute of", path);
    if (set >= 0 && H5Aclose(set) < 0 && status == HOTBED_OK)
        status = fail("close an attribute of", path);
    close_all(H5I_INVALID_HID, space, H5I_INVALID_HID, H5I_INVALID_HID);
    return status;
}

hotbed_status hotbed_h5_text(
    hotbed_h5 *h5, const char *path, const char *attribute, const char *value) {
    quiet before = enter();
    hid_t type = H5Tcopy(H5T_C_S1);
    size_t bytes = strlen(value);
    hotbed_status status;
    /* Fixed length: text of variable length would live in a heap. */
    if (H5Tset_size(type, bytes == 0 ? 1 : bytes) < 0 || H5Tset_strpad(type, H5T_STR_NULLPAD) < 0)
        status = fail("set an attribute of", path);
    else
        status = set_attribute(h5, path, attribute, type, type, value);
    close_all(type, H5I_INVALID_HID, H5I_INVALID_HID, H5I_INVALID_HID);
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

static hotbed_status read_memory(hotbed_h5 *h5, void *to, size_t bytes, uint64_t offset) {
    char *at = to;
    while (bytes > 0) {
        ssize_t n = pread(h5->memory, at, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return hotbed_fail(
                HOTBED_ERR_IO, "HDF5 layout: cannot read %zu bytes at %" PRIu64 ": error %d", bytes,
                offset, n < 0 ? errno : 0);
        at += n;
        bytes -= (size_t)n;
        offset += (uint64_t)n;
    }
    return HOTBED_OK;
}

/* Whether libhdf5 has written nothing from `from` to the file's end.  Only its metadata was written, so
 * the kernel knows the few pages that exist. */
static hotbed_status only_zeros(hotbed_h5 *h5, uint64_t from, uint64_t bytes, bool *zeros) {
    char *buffer = hotbed_new(SCAN_BYTES);
    if (buffer == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no %d bytes to scan a layout", SCAN_BYTES);
    hotbed_status status = HOTBED_OK;
    *zeros = true;
    while (status == HOTBED_OK && *zeros && from < bytes) {
        off_t data = lseek(h5->memory, (off_t)from, SEEK_DATA);
        if (data < 0)
            break; /* ENXIO: no more */
        from = (uint64_t)data;
        size_t n = bytes - from < SCAN_BYTES ? (size_t)(bytes - from) : SCAN_BYTES;
        status = read_memory(h5, buffer, n, from);
        for (size_t i = 0; status == HOTBED_OK && i < n && *zeros; i++)
            *zeros = buffer[i] == 0;
        from += n;
    }
    hotbed_delete(buffer);
    return status;
}

hotbed_status hotbed_h5_finish(hotbed_h5 *h5, hotbed_h5_image *out) {
    *out = (hotbed_h5_image){.metadata = NULL};
    quiet before = enter();
    hotbed_status status = H5Fclose(h5->file) < 0 ? fail("close", "in memory") : HOTBED_OK;
    h5->file = H5I_INVALID_HID;
    leave(before);
    HOTBED_TRY(status);
    struct stat stat;
    if (fstat(h5->memory, &stat) != 0)
        return hotbed_fail(HOTBED_ERR_IO, "HDF5 layout: no size: error %d", errno);
    uint64_t file_bytes = (uint64_t)stat.st_size;
    if (file_bytes < h5->end_data)
        return hotbed_fail(
            HOTBED_ERR_IO, "HDF5 layout: the file ends at %" PRIu64 ", its data at %" PRIu64,
            file_bytes, h5->end_data);
    uint64_t metadata_bytes = h5->first_data < file_bytes ? h5->first_data : file_bytes;
    bool fits = true;
    HOTBED_TRY(only_zeros(h5, metadata_bytes, file_bytes, &fits));
    if (!fits)
        return HOTBED_OK; /* metadata lies between the datasets */
    void *metadata = hotbed_new(metadata_bytes);
    if (metadata == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no %" PRIu64 " bytes of metadata", metadata_bytes);
    status = read_memory(h5, metadata, metadata_bytes, 0);
    if (status != HOTBED_OK) {
        hotbed_delete(metadata);
        return status;
    }
    *out = (hotbed_h5_image){
        .metadata = metadata, .metadata_bytes = metadata_bytes, .file_bytes = file_bytes};
    return HOTBED_OK;
}
