/* examples/train/log_source.c - the bytes of a click log: a file or the standard input, plain or gzip. */
#include "examples/train/log_source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum {
    INPUT_BYTES = 1 << 18,
    GZIP_WINDOW = 15 + 16, /* for inflateInit2(): the largest window, a gzip header */
    GZIP_FIRST = 0x1f,
    GZIP_SECOND = 0x8b
};

struct hotbed_log_source {
    int file;
    double file_bytes; /* 0: not known */
    double read_bytes; /* bytes read from the file so far */
    bool packed;
    bool between; /* packed: one gzip member has ended, and the next has not begun */
    bool padded;  /* packed: zero bytes followed the last member */
    bool ended;   /* the file has no more bytes */
    z_stream gz;  /* its input holds the bytes read but not used, of plain files too */
    char error[128];
    unsigned char input[INPUT_BYTES];
};

const char *hotbed_log_source_name(const char *path) {
    return strcmp(path, "-") == 0 ? "standard input" : path;
}

static bool fail(hotbed_log_source *source, const char *text) {
    snprintf(source->error, sizeof source->error, "%s", text);
    return false;
}

/* Read `bytes` from the file, or up to its end. */
static bool read_file(hotbed_log_source *source, void *to, size_t bytes, size_t *got) {
    *got = 0;
    while (*got < bytes && !source->ended) {
        ssize_t n = read(source->file, (char *)to + *got, bytes - *got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail(source, strerror(errno));
        source->ended = n == 0;
        source->read_bytes += (double)n;
        *got += (size_t)n;
    }
    return true;
}

/* Fill the empty input buffer. */
static bool refill(hotbed_log_source *source) {
    size_t got;
    bool ok = read_file(source, source->input, sizeof source->input, &got);
    source->gz.next_in = source->input;
    source->gz.avail_in = (uInt)got;
    return ok;
}

/* Open the file, and detect whether it is gzip. */
static bool open_file(hotbed_log_source *source, const char *path) {
    struct stat status;
    source->file = strcmp(path, "-") == 0 ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (source->file < 0 || fstat(source->file, &status) != 0)
        return fail(source, strerror(errno));
    if (S_ISDIR(status.st_mode))
        return fail(source, "is a directory");
    if (S_ISREG(status.st_mode))
        source->file_bytes = (double)status.st_size;
    (void)posix_fadvise(source->file, 0, 0, POSIX_FADV_SEQUENTIAL); /* read ahead further */
    if (!refill(source))
        return false;
    const z_stream *gz = &source->gz;
    source->packed =
        gz->avail_in >= 2 && gz->next_in[0] == GZIP_FIRST && gz->next_in[1] == GZIP_SECOND;
    if (source->packed && inflateInit2(&source->gz, GZIP_WINDOW) != Z_OK) {
        source->packed = false;
        return fail(source, "no memory to unpack");
    }
    return true;
}

hotbed_log_source *hotbed_log_source_open(const char *path, char *message, size_t bytes) {
    hotbed_log_source *source = calloc(1, sizeof *source);
    if (source == NULL) {
        snprintf(message, bytes, "no memory to read it");
        return NULL;
    }
    source->file = -1;
    if (open_file(source, path))
        return source;
    snprintf(message, bytes, "%s", source->error);
    hotbed_log_source_close(source);
    return NULL;
}

/* Return the bytes that were read to recognize gzip, then the file itself. */
static size_t read_plain(hotbed_log_source *source, char *to, size_t bytes) {
    size_t held = source->gz.avail_in < bytes ? source->gz.avail_in : bytes, got;
    memcpy(to, source->gz.next_in, held);
    source->gz.next_in += held;
    source->gz.avail_in -= (uInt)held;
    (void)read_file(source, to + held, bytes - held, &got);
    return held + got;
}

/* Go on to the next member of the gzip data. False at the end of the file, and if anything but a
 * member follows. Zero bytes at the end are padding, as gzip treats them. */
static bool next_member(hotbed_log_source *source) {
    z_stream *gz = &source->gz;
    for (;;) {
        while (gz->avail_in > 0 && *gz->next_in == 0) {
            source->padded = true;
            gz->next_in++;
            gz->avail_in--;
        }
        if (gz->avail_in > 0)
            break;
        if (source->ended || !refill(source))
            return false;
    }
    if (*gz->next_in == GZIP_FIRST && !source->padded) {
        source->between = false;
        return inflateReset(gz) == Z_OK || fail(source, "the gzip data is damaged");
    }
    snprintf(
        source->error, sizeof source->error,
        "the gzip data ends at byte %.0f, and something else follows",
        source->read_bytes - (double)gz->avail_in);
    return false;
}

static bool unpack(hotbed_log_source *source) {
    z_stream *gz = &source->gz;
    if (gz->avail_in == 0 && !source->ended && !refill(source))
        return false;
    int code = inflate(gz, Z_NO_FLUSH);
    if (code == Z_STREAM_END) {
        source->between = true;
        return true;
    }
    if (code == Z_MEM_ERROR)
        return fail(source, "no memory to unpack");
    if (code == Z_OK || (code == Z_BUF_ERROR && !(gz->avail_in == 0 && source->ended)))
        return true;
    return fail(
        source, code == Z_BUF_ERROR ? "the gzip data ends too soon" : "the gzip data is damaged");
}

static size_t read_packed(hotbed_log_source *source, char *to, size_t bytes) {
    z_stream *gz = &source->gz;
    gz->next_out = (unsigned char *)to;
    gz->avail_out = (uInt)bytes;
    while (gz->avail_out > 0)
        if (source->between ? !next_member(source) : !unpack(source))
            break;
    return bytes - gz->avail_out;
}

size_t hotbed_log_source_read(hotbed_log_source *source, char *to, size_t bytes) {
    if (source->error[0] != '\0')
        return 0;
    return source->packed ? read_packed(source, to, bytes) : read_plain(source, to, bytes);
}

const char *hotbed_log_source_error(const hotbed_log_source *source) {
    return source->error[0] != '\0' ? source->error : NULL;
}

double hotbed_log_source_fraction(const hotbed_log_source *source) {
    if (source->file_bytes <= 0)
        return -1;
    double fraction = (source->read_bytes - (double)source->gz.avail_in) / source->file_bytes;
    return fraction < 1 ? fraction : 1;
}

void hotbed_log_source_close(hotbed_log_source *source) {
    if (source == NULL)
        return;
    if (source->packed)
        inflateEnd(&source->gz);
    if (source->file > STDIN_FILENO)
        close(source->file);
    free(source);
}
