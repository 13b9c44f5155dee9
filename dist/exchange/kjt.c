/* dist/exchange/kjt.c - keyed jagged tensors: checks, and their steps on the device. */
#include "dist/exchange/kjt.h"

#include "base/check.h"
#include "base/error.h"
#include "base/options.h"
#include "base/sort.h"
#include "base/stream.h"

#include <stdio.h>

enum { FEATURES_MOST = 65535 };
#define ROWS_MOST ((uint64_t)1 << 30) /* limit of rows and of keys: positions are 32-bit words */

static const hotbed_kjt_kernels *kernels_of(const hotbed_stream *stream) {
    return HOTBED_OF_BACKEND(hotbed_stream_backend(stream), hotbed_kjt_kernels);
}

/* --- the batch on the host -------------------------------------------------------------------- */

static uint32_t stride_of(const hotbed_kjt *kjt, uint32_t feature) {
    return kjt->strides == NULL ? kjt->batch_size : kjt->strides[feature];
}

uint64_t hotbed_kjt_rows(const hotbed_kjt *kjt) {
    uint64_t rows = 0;
    for (uint32_t f = 0; f < kjt->num_features; f++)
        rows += stride_of(kjt, f);
    return rows;
}

uint32_t hotbed_kjt_find(const hotbed_kjt *kjt, const char *name) {
    uint32_t f = 0;
    if (kjt->features == NULL || name == NULL)
        return kjt->num_features;
    while (f < kjt->num_features && strcmp(kjt->features[f], name) != 0)
        f++;
    return f;
}

typedef struct feature_text {
    char text[128];
} feature_text;

/* A feature for a message: its name if it has one, otherwise its number. */
static feature_text describe(const hotbed_kjt *kjt, uint32_t feature) {
    feature_text t;
    if (kjt->features == NULL)
        (void)snprintf(t.text, sizeof t.text, "feature %u", feature);
    else
        (void)snprintf(
            t.text, sizeof t.text, "feature %u (%.80s)", feature, kjt->features[feature]);
    return t;
}

hotbed_status hotbed_kjt_read(const hotbed_kjt *kjt, hotbed_kjt *out) {
    HOTBED_TRY(HOTBED_OPTIONS_READ(out, hotbed_kjt, weights, kjt));
    HOTBED_TRY(hotbed_check_range("num_features", out->num_features, 1, FEATURES_MOST));
    for (uint32_t f = 0; f < out->num_features; f++) {
        if (out->features != NULL && out->features[f] == NULL)
            return hotbed_fail_feature(
                HOTBED_ERR_ARGUMENT, f, "kjt: the name of feature %u is NULL", f);
        if (stride_of(out, f) > out->batch_size)
            return hotbed_error_feature(
                hotbed_fail_limit(
                    HOTBED_ERR_ARGUMENT, "strides", stride_of(out, f), out->batch_size,
                    "kjt: %s has %u samples, over batch_size %u", describe(out, f).text,
                    stride_of(out, f), out->batch_size),
                f);
    }
    uint64_t rows = hotbed_kjt_rows(out), padded = (uint64_t)out->num_features * out->batch_size;
    if (padded > ROWS_MOST || out->num_keys > ROWS_MOST)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, padded > ROWS_MOST ? "batch_size" : "num_keys",
            padded > ROWS_MOST ? out->batch_size : (double)out->num_keys,
            padded > ROWS_MOST ? (double)ROWS_MOST / out->num_features : ROWS_MOST,
            "kjt: %llu rows or %llu keys are over 2^30", (unsigned long long)padded,
            (unsigned long long)out->num_keys);
    HOTBED_TRY(hotbed_check_array("keys", out->keys, out->num_keys));
    if (out->offsets == NULL && out->lengths == NULL && out->num_keys != rows)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "num_keys", out->num_keys, rows,
            "kjt: without lengths and offsets each row has one key, but num_keys is %llu of %llu "
            "rows",
            (unsigned long long)out->num_keys, (unsigned long long)rows);
    return HOTBED_OK;
}

hotbed_status hotbed_kjt_check(const hotbed_kjt *kjt) {
    hotbed_kjt copy;
    return hotbed_kjt_read(kjt, &copy);
}

static hotbed_status at_row(hotbed_status failed, uint32_t feature, uint32_t sample) {
    return hotbed_error_sample(hotbed_error_feature(failed, feature), sample);
}

/* The lengths or offsets on the device, row by row. */
static hotbed_status check_rows(const hotbed_kjt *kjt, const int64_t *values) {
    const char *const parameter = kjt->offsets != NULL ? "offsets" : "lengths";
    uint64_t r = 0;
    int64_t end = 0;
    if (kjt->offsets != NULL && values[0] != 0)
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "offsets", values[0], "kjt: the first offset is %lld, not 0",
            (long long)values[0]);
    for (uint32_t f = 0; f < kjt->num_features; f++)
        for (uint32_t b = 0; b < stride_of(kjt, f); b++, r++) {
            int64_t length = kjt->offsets != NULL ? values[r + 1] - end : values[r];
            if (length < 0)
                return at_row(
                    hotbed_fail_value(
                        HOTBED_ERR_ARGUMENT, parameter, length,
                        "kjt: %s, sample %u: its length is %lld", describe(kjt, f).text, b,
                        (long long)length),
                    f, b);
            if (length > (int64_t)kjt->num_keys - end)
                return at_row(
                    hotbed_fail_limit(
                        HOTBED_ERR_ARGUMENT, parameter, (double)end + (double)length, kjt->num_keys,
                        "kjt: %s, sample %u: its %lld keys begin at %lld and end beyond num_keys "
                        "%llu",
                        describe(kjt, f).text, b, (long long)length, (long long)end,
                        (unsigned long long)kjt->num_keys),
                    f, b);
            end += length;
        }
    return HOTBED_OK;
}

hotbed_status hotbed_kjt_validate(const hotbed_kjt *kjt, hotbed_stream *stream) {
    hotbed_kjt k;
    HOTBED_TRY(hotbed_kjt_read(kjt, &k));
    HOTBED_TRY(hotbed_check_pointer("stream", stream));
    if (hotbed_stream_recording(stream))
        return hotbed_fail(
            HOTBED_ERR_STATE,
            "hotbed_kjt_validate: the stream records a graph, and the call waits");
    const int64_t *source = k.offsets != NULL ? k.offsets : k.lengths;
    uint64_t n = hotbed_kjt_rows(&k) + (k.offsets != NULL ? 1 : 0);
    if (source == NULL || n == 0)
        return HOTBED_OK;
    int64_t *values = hotbed_new(n * sizeof *values);
    HOTBED_TRY_MEMORY(values, "%llu lengths", (unsigned long long)n);
    hotbed_status status = hotbed_copy(values, source, n * sizeof *values, stream);
    HOTBED_THEN(status, hotbed_stream_finish(stream));
    HOTBED_THEN(status, check_rows(&k, values));
    hotbed_delete(values);
    return status;
}

/* --- steps on the device ------------------------------------------------------------------------ */

hotbed_kjt_view hotbed_kjt_view_of(
    const hotbed_kjt *kjt, uint32_t *starts, uint32_t *bad, hotbed_stream *stream) {
    hotbed_kjt_view view = {
        .keys = kjt->keys,
        .lengths = kjt->lengths,
        .offsets = kjt->offsets,
        .weights = kjt->weights,
        .rows = hotbed_kjt_rows(kjt),
        .bound = kjt->num_keys,
        .starts = starts,
        .bad = bad,
        .faults = hotbed_stream_faults(stream),
        .samples = kjt->strides == NULL ? kjt->batch_size : 0,
    };
    return view;
}

size_t hotbed_kjt_scratch(const hotbed_stream *stream, uint64_t n) {
    return hotbed_scan_scratch(hotbed_stream_backend(stream), n + 1);
}

hotbed_status hotbed_kjt_start(
    const hotbed_kjt_view *kjt, void *scratch, size_t scratch_bytes, hotbed_stream *stream) {
    const hotbed_kjt_kernels *kernels = kernels_of(stream);
    HOTBED_TRY(hotbed_fill(kjt->bad, 0, sizeof *kjt->bad, stream));
    HOTBED_TRY(kernels->lengths(kjt, stream));
    if (kjt->lengths == NULL)
        return HOTBED_OK;
    HOTBED_TRY(
        hotbed_scan(kjt->rows + 1, kjt->starts, kjt->starts, scratch, scratch_bytes, stream));
    return kernels->check(kjt, stream);
}

hotbed_status hotbed_kjt_put(
    uint32_t *to, const uint32_t *words, uint32_t n, hotbed_stream *stream) {
    for (uint32_t done = 0; done < n; done += HOTBED_WORDS_MOST) {
        hotbed_words part = {.to = to + done};
        part.n = n - done < HOTBED_WORDS_MOST ? n - done : HOTBED_WORDS_MOST;
        memcpy(part.word, words + done, part.n * sizeof *words);
        HOTBED_TRY(kernels_of(stream)->put(&part, stream));
    }
    return HOTBED_OK;
}

hotbed_status hotbed_kjt_put_bases(const hotbed_kjt *kjt, uint32_t *bases, hotbed_stream *stream) {
    uint32_t words[HOTBED_WORDS_MOST], n = 0, base = 0;
    for (uint32_t f = 0; f <= kjt->num_features; f++) {
        words[n++] = base;
        base += f < kjt->num_features ? stride_of(kjt, f) : 0;
        if (n == HOTBED_WORDS_MOST || f == kjt->num_features) {
            HOTBED_TRY(hotbed_kjt_put(bases, words, n, stream));
            bases += n;
            n = 0;
        }
    }
    return HOTBED_OK;
}

hotbed_status hotbed_kjt_pick(
    const hotbed_pick_view *pick, void *scratch, size_t scratch_bytes, hotbed_stream *stream) {
    const hotbed_kjt_kernels *kernels = kernels_of(stream);
    uint64_t rows = (uint64_t)pick->num_features * pick->batch_size;
    HOTBED_TRY(kernels->pick_lengths(pick, stream));
    HOTBED_TRY(hotbed_scan(rows + 1, pick->starts, pick->starts, scratch, scratch_bytes, stream));
    return kernels->pick_keys(pick, stream);
}

hotbed_status hotbed_kjt_pick_offsets(
    const hotbed_pick_view *pick, int64_t *offsets, hotbed_stream *stream) {
    return kernels_of(stream)->pick_offsets(pick, offsets, stream);
}
