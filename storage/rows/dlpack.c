/* storage/rows/dlpack.c - import and export of tensors through the DLPack ABI (hotbed/dlpack.h). */
#include "hotbed/dlpack.h"

#include "base/check.h"
#include "base/options.h"
#include "storage/storage.h"

/* Other libraries are compiled against this layout. */
_Static_assert(sizeof(hotbed_dl_tensor) == 48, "DLTensor");
_Static_assert(offsetof(hotbed_dl_tensor, shape) == 24, "DLTensor");
_Static_assert(sizeof(hotbed_dl_managed) == 64, "DLManagedTensor");
_Static_assert(sizeof(hotbed_dl_managed_versioned) == 80, "DLManagedTensorVersioned");
_Static_assert(offsetof(hotbed_dl_managed_versioned, tensor) == 32, "DLManagedTensorVersioned");

/* --- elements --------------------------------------------------------------------------------- */

typedef struct element {
    const char *name;
    hotbed_dl_dtype dtype;
    uint8_t other; /* a second accepted type code */
} element;

static const element *element_of(hotbed_element number) {
    static const element elements[] = {
        [HOTBED_ELEMENT_F32] = {"float32", {HOTBED_DL_FLOAT, 32, 1}, HOTBED_DL_FLOAT},
        [HOTBED_ELEMENT_F16] = {"float16", {HOTBED_DL_FLOAT, 16, 1}, HOTBED_DL_FLOAT},
        [HOTBED_ELEMENT_BF16] = {"bfloat16", {HOTBED_DL_BFLOAT, 16, 1}, HOTBED_DL_BFLOAT},
        [HOTBED_ELEMENT_I64] = {"int64", {HOTBED_DL_INT, 64, 1}, HOTBED_DL_INT},
        [HOTBED_ELEMENT_U64] = {"uint64", {HOTBED_DL_UINT, 64, 1}, HOTBED_DL_UINT},
        [HOTBED_ELEMENT_KEY] = {"int64 or uint64", {HOTBED_DL_INT, 64, 1}, HOTBED_DL_UINT},
        [HOTBED_ELEMENT_U32] = {"uint32", {HOTBED_DL_UINT, 32, 1}, HOTBED_DL_UINT},
        [HOTBED_ELEMENT_U8] = {"uint8 or bool", {HOTBED_DL_UINT, 8, 1}, HOTBED_DL_BOOL},
    };
    if ((int)number < HOTBED_ELEMENT_F32 || number > HOTBED_ELEMENT_U8)
        return NULL;
    return &elements[number];
}

/* --- import ----------------------------------------------------------------------------------- */

static hotbed_status read_want(const hotbed_dl_want *from, hotbed_dl_want *want) {
    HOTBED_TRY(HOTBED_OPTIONS_READ(want, hotbed_dl_want, rows, from));
    if (element_of(want->element) == NULL)
        return hotbed_fail_unknown("element", want->element);
    HOTBED_TRY(hotbed_check_range("rank", want->rank, 1, 2));
    if (want->name == NULL)
        want->name = "tensor";
    return HOTBED_OK;
}

static hotbed_status check_dtype(const hotbed_dl_tensor *t, const hotbed_dl_want *want) {
    const element *e = element_of(want->element);
    bool code = t->dtype.code == e->dtype.code || t->dtype.code == e->other;
    if (!code || t->dtype.bits != e->dtype.bits || t->dtype.lanes != 1)
        return hotbed_fail_parameter(
            HOTBED_ERR_ARGUMENT, want->name, "%s: type code %u, %u bits, %u lanes is not %s",
            want->name, t->dtype.code, t->dtype.bits, t->dtype.lanes, e->name);
    return HOTBED_OK;
}

static hotbed_status check_device(
    const hotbed_dl_tensor *t, const hotbed_dl_want *want, const hotbed_stream *stream) {
    bool cuda = hotbed_stream_backend(stream) == HOTBED_BACKEND_CUDA;
    bool good = t->device.type == HOTBED_DL_CUDA_HOST || t->device.type == HOTBED_DL_CUDA_MANAGED;
    if (t->device.type == HOTBED_DL_CPU)
        good = !cuda;
    if (t->device.type == HOTBED_DL_CUDA)
        good = cuda && t->device.id == hotbed_stream_device(stream);
    if (good)
        return HOTBED_OK;
    return hotbed_fail_parameter(
        HOTBED_ERR_ARGUMENT, want->name, "%s: on device type %d number %d, the stream is of %s %d",
        want->name, t->device.type, t->device.id,
        hotbed_backend_name(hotbed_stream_backend(stream)), hotbed_stream_device(stream));
}

/* Read rows, columns and stride, and check that no byte offset exceeds 2^63. */
static hotbed_status read_shape(
    const hotbed_dl_tensor *t, const hotbed_dl_want *want, hotbed_dl_array *out) {
    if (t->ndim != (int32_t)want->rank)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, want->name, t->ndim, want->rank, "%s: %d dimensions instead of %u",
            want->name, t->ndim, want->rank);
    if (t->shape == NULL)
        return hotbed_fail_parameter(HOTBED_ERR_ARGUMENT, want->name, "%s: no shape", want->name);
    int64_t shape[2] = {t->shape[0], want->rank == 2 ? t->shape[1] : 1};
    for (int d = 0; d < 2; d++)
        if (shape[d] < 0)
            return hotbed_fail_value(
                HOTBED_ERR_ARGUMENT, want->name, shape[d], "%s: dimension %d is %lld", want->name,
                d, (long long)shape[d]);
    if ((uint64_t)shape[0] < want->rows || (want->rank == 2 && (uint64_t)shape[1] < want->columns))
        return hotbed_fail_parameter(
            HOTBED_ERR_ARGUMENT, want->name, "%s: shape [%lld, %lld] is less than [%llu, %llu]",
            want->name, (long long)shape[0], (long long)shape[1], (unsigned long long)want->rows,
            (unsigned long long)(want->rank == 2 ? want->columns : 1));
    int64_t stride = shape[1], step = 1;
    if (t->strides != NULL && want->rank == 2)
        step = t->strides[1];
    if (t->strides != NULL && shape[0] > 1)
        stride = t->strides[0];
    bool empty = shape[0] == 0 || shape[1] == 0;
    if (!empty && shape[1] > 1 && step != 1)
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, want->name, step, "%s: elements of a row are %lld apart",
            want->name, (long long)step);
    if (!empty && (stride < shape[1] || ((want->dense || want->rank == 1) && stride != shape[1])))
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, want->name, stride, shape[1],
            "%s: rows of %lld elements are %lld apart", want->name, (long long)shape[1],
            (long long)stride);
    if (!empty && stride > INT64_MAX / shape[0] / 8)
        return hotbed_fail_parameter(
            HOTBED_ERR_ARGUMENT, want->name, "%s: %lld rows of %lld elements are too many",
            want->name, (long long)shape[0], (long long)stride);
    out->rows = (uint64_t)shape[0];
    out->columns = (uint64_t)shape[1];
    out->stride = (uint64_t)(empty ? shape[1] : stride);
    return HOTBED_OK;
}

/* Read the part that versioned and unversioned tensors share; `flags` is 0 for unversioned ones. */
static hotbed_status read_tensor(
    const hotbed_dl_tensor *t, uint64_t flags, const hotbed_dl_want *from,
    const hotbed_stream *stream, hotbed_dl_array *out) {
    hotbed_dl_want want;
    hotbed_dl_array array;
    HOTBED_TRY(hotbed_check_pointer("stream", stream));
    HOTBED_TRY(hotbed_check_pointer("out", out));
    HOTBED_TRY(read_want(from, &want));
    HOTBED_TRY(check_dtype(t, &want));
    HOTBED_TRY(check_device(t, &want, stream));
    HOTBED_TRY(read_shape(t, &want, &array));
    if (want.writable && (flags & HOTBED_DL_READ_ONLY) != 0)
        return hotbed_fail_parameter(HOTBED_ERR_ARGUMENT, want.name, "%s: is read-only", want.name);
    bool empty = array.rows == 0 || array.columns == 0;
    if (t->data == NULL && !empty)
        return hotbed_fail_parameter(HOTBED_ERR_ARGUMENT, want.name, "%s: no data", want.name);
    uint64_t at = (uint64_t)(uintptr_t)t->data + t->byte_offset;
    if (!empty && at % (t->dtype.bits / 8U) != 0)
        return hotbed_fail_parameter(
            HOTBED_ERR_ARGUMENT, want.name, "%s: address %llx is not aligned to %u bits", want.name,
            (unsigned long long)at, t->dtype.bits);
    array.data = t->data == NULL ? NULL : (char *)t->data + t->byte_offset;
    *out = array;
    return HOTBED_OK;
}

hotbed_status hotbed_dl_read(
    const hotbed_dl_managed *managed, const hotbed_dl_want *want, const hotbed_stream *stream,
    hotbed_dl_array *out) {
    HOTBED_TRY(hotbed_check_pointer("managed", managed));
    return read_tensor(&managed->tensor, 0, want, stream, out);
}

hotbed_status hotbed_dl_read_versioned(
    const hotbed_dl_managed_versioned *managed, const hotbed_dl_want *want,
    const hotbed_stream *stream, hotbed_dl_array *out) {
    HOTBED_TRY(hotbed_check_pointer("managed", managed));
    if (managed->major != HOTBED_DL_MAJOR) /* of another major version, only the deleter is known */
        return hotbed_fail_limit(
            HOTBED_ERR_UNSUPPORTED, "version", managed->major, HOTBED_DL_MAJOR,
            "the tensor has DLPack version %u.%u; supported is major version %d", managed->major,
            managed->minor, HOTBED_DL_MAJOR);
    return read_tensor(&managed->tensor, managed->flags, want, stream, out);
}

/* --- export ----------------------------------------------------------------------------------- */

/* An exported tensor with its shape and strides, in one allocation. */
typedef struct lent {
    union {
        hotbed_dl_managed plain;
        hotbed_dl_managed_versioned versioned;
    } managed;
    int64_t shape[2], strides[2];
    void (*release)(void *argument);
    void *argument;
} lent;

static void end_loan(lent *l) {
    if (l->release != NULL)
        l->release(l->argument);
    hotbed_delete(l);
}

static void delete_plain(hotbed_dl_managed *self) {
    if (self != NULL)
        end_loan(self->context);
}

static void delete_versioned(hotbed_dl_managed_versioned *self) {
    if (self != NULL)
        end_loan(self->context);
}

static hotbed_status read_view(
    const hotbed_dl_view *from, const hotbed_stream *stream, hotbed_dl_view *view) {
    HOTBED_TRY(hotbed_check_pointer("stream", stream));
    HOTBED_TRY(HOTBED_OPTIONS_READ(view, hotbed_dl_view, columns, from));
    if (element_of(view->element) == NULL || view->element == HOTBED_ELEMENT_KEY)
        return hotbed_fail_unknown("element", view->element);
    HOTBED_TRY(hotbed_check_range("rank", view->rank, 1, 2));
    HOTBED_TRY(hotbed_check_choice("memory", view->memory, 0, HOTBED_MEMORY_FILE));
    if (view->rank == 1)
        view->columns = 1;
    if (view->stride == 0)
        view->stride = view->columns;
    if (view->stride < view->columns || (view->rank == 1 && view->stride != 1))
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "stride", view->stride, view->columns,
            "rows of %llu elements are %llu apart", (unsigned long long)view->columns,
            (unsigned long long)view->stride);
    uint64_t most = (uint64_t)INT64_MAX / 8;
    if (view->rows > most || view->stride > most / (view->rows == 0 ? 1 : view->rows))
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "rows", view->rows, "%llu rows of %llu elements are too many",
            (unsigned long long)view->rows, (unsigned long long)view->stride);
    if (view->data == NULL && view->rows != 0 && view->columns != 0)
        return hotbed_fail_null("data");
    return HOTBED_OK;
}

static hotbed_dl_device device_of(const hotbed_dl_view *view, const hotbed_stream *stream) {
    hotbed_dl_device device = {HOTBED_DL_CPU, 0};
    if (hotbed_stream_backend(stream) != HOTBED_BACKEND_CUDA)
        return device;
    if (view->memory == 0 || view->memory == HOTBED_MEMORY_DEVICE) {
        device.type = HOTBED_DL_CUDA;
        device.id = hotbed_stream_device(stream);
    } else if (view->memory == HOTBED_MEMORY_PINNED) {
        device.type = HOTBED_DL_CUDA_HOST;
    }
    return device;
}

/* Allocate an exported tensor; its view is in *tensor. NULL: out of memory. */
static lent *lend(
    const hotbed_dl_view *view, const hotbed_stream *stream, hotbed_dl_tensor *tensor) {
    lent *l = hotbed_new(sizeof *l);
    if (l == NULL) {
        (void)hotbed_fail(HOTBED_ERR_MEMORY, "no memory for a tensor");
        return NULL;
    }
    l->shape[0] = (int64_t)view->rows;
    l->shape[1] = (int64_t)view->columns;
    l->strides[0] = (int64_t)view->stride;
    l->strides[1] = 1;
    l->release = view->release;
    l->argument = view->argument;
    tensor->data = view->rows == 0 || view->columns == 0 ? NULL : view->data;
    tensor->device = device_of(view, stream);
    tensor->ndim = (int32_t)view->rank;
    tensor->dtype = element_of(view->element)->dtype;
    tensor->shape = l->shape;
    tensor->strides = l->strides;
    tensor->byte_offset = 0;
    return l;
}

hotbed_status hotbed_dl_export(
    const hotbed_dl_view *view, const hotbed_stream *stream, hotbed_dl_managed **out) {
    hotbed_dl_view v;
    hotbed_dl_tensor tensor;
    HOTBED_TRY(hotbed_check_pointer("out", out));
    *out = NULL;
    HOTBED_TRY(read_view(view, stream, &v));
    if (v.read_only)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "an unversioned tensor has no read-only flag");
    lent *l = lend(&v, stream, &tensor);
    if (l == NULL)
        return HOTBED_ERR_MEMORY;
    l->managed.plain.tensor = tensor;
    l->managed.plain.context = l;
    l->managed.plain.deleter = delete_plain;
    *out = &l->managed.plain;
    return HOTBED_OK;
}

hotbed_status hotbed_dl_export_versioned(
    const hotbed_dl_view *view, const hotbed_stream *stream, hotbed_dl_managed_versioned **out) {
    hotbed_dl_view v;
    hotbed_dl_tensor tensor;
    HOTBED_TRY(hotbed_check_pointer("out", out));
    *out = NULL;
    HOTBED_TRY(read_view(view, stream, &v));
    lent *l = lend(&v, stream, &tensor);
    if (l == NULL)
        return HOTBED_ERR_MEMORY;
    hotbed_dl_managed_versioned *managed = &l->managed.versioned;
    managed->major = HOTBED_DL_MAJOR;
    managed->minor = HOTBED_DL_MINOR;
    managed->context = l;
    managed->deleter = delete_versioned;
    managed->flags = v.read_only ? HOTBED_DL_READ_ONLY : 0;
    managed->tensor = tensor;
    *out = managed;
    return HOTBED_OK;
}

/* --- a storage's tables ----------------------------------------------------------------------- */

/* View `columns` elements of each row, from byte `offset` of the row. */
static hotbed_dl_view view_of(
    const hotbed_table_info *info, hotbed_element number, uint64_t offset, uint64_t columns) {
    hotbed_dl_view view = {
        .size = sizeof view,
        .element = number,
        .rank = 2,
        .memory = HOTBED_MEMORY_DEVICE,
        .data = (char *)info->weights + offset,
        .rows = info->slots,
        .columns = columns,
        .stride = info->row_bytes / (element_of(number)->dtype.bits / 8),
    };
    return view;
}

hotbed_status hotbed_dl_weights(
    const hotbed_storage *storage, uint32_t table, hotbed_dl_view *out) {
    hotbed_table_info info = {.size = sizeof info};
    HOTBED_TRY(hotbed_check_pointer("out", out));
    HOTBED_TRY(hotbed_storage_table(storage, table, &info));
    uint64_t columns;
    const hotbed_element number = hotbed_weights_element(info.dtype, info.dim, &columns);
    *out = view_of(&info, number, 0, columns);
    return HOTBED_OK;
}

hotbed_status hotbed_dl_state(
    const hotbed_storage *storage, uint32_t table, uint32_t state, hotbed_dl_view *out) {
    hotbed_table_info info = {.size = sizeof info};
    HOTBED_TRY(hotbed_check_pointer("out", out));
    HOTBED_TRY(hotbed_storage_table(storage, table, &info));
    const hotbed_optimizer_kind kind = hotbed_storage_optimizer(storage)->kind;
    if (state >= hotbed_optimizer_states(kind))
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "state", state, hotbed_optimizer_states(kind),
            "state %u: optimizer %s has %u", state, hotbed_optimizer_name(kind),
            hotbed_optimizer_states(kind));
    uint64_t columns;
    const hotbed_element number = hotbed_weights_element(
        info.state_dtypes[state], hotbed_optimizer_state_dim(kind, state, info.dim), &columns);
    *out = view_of(&info, number, info.state_offsets[state], columns);
    return HOTBED_OK;
}
