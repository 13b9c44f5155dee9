/* hotbed/dlpack.h - exchange of tensors with PyTorch, JAX, CuPy or NumPy, without a copy.
 *
 * Experimental: all calls.
 *
 * For language bindings, and for programs that share arrays with such a framework. DLPack
 * (https://dmlc.github.io/dlpack) is a C ABI through which libraries lend each other tensors. The
 * structs below have the layout of DLPack 0.x (`unversioned`) and 1.x (`versioned`), so dlpack.h is
 * not needed: cast a DLManagedTensor * or DLManagedTensorVersioned * to the struct here, and back.
 *
 * In: hotbed_dl_read() checks that a tensor suits a call, and returns the pointer and stride for
 * it. The tensor keeps its owner: whoever received the tensor calls its deleter, after the stream
 * has passed the work.
 *
 *       hotbed_dl_want want = {
 *           .size = sizeof want, .element = HOTBED_ELEMENT_KEY, .rank = 1, .name = "keys"};
 *       hotbed_dl_array keys;
 *       hotbed_dl_read(tensor, &want, stream, &keys);
 *       batch.keys = keys.data, batch.num_keys = keys.rows;
 *
 * Out: hotbed_dl_export() creates a tensor over memory that stays in its place: the weights of a
 * storage, or an output. The caller orders work on it, with events or by one stream that both sides
 * use (hotbed_stream_wrap_cuda()).
 *
 *       hotbed_dl_view view = {.size = sizeof view};
 *       hotbed_dl_weights(storage, 0, &view);
 *       hotbed_dl_managed *weights;
 *       hotbed_dl_export(&view, stream, &weights); // the borrower calls weights->deleter(weights) */
#ifndef HOTBED_DLPACK_H
#define HOTBED_DLPACK_H

#include "hotbed/status.h"
#include "hotbed/storage.h"
#include "hotbed/stream.h"

HOTBED_BEGIN_DECLS

/* --- the ABI ---------------------------------------------------------------------------------- */

enum {
    HOTBED_DL_CPU = 1, /* hotbed_dl_device.type */
    HOTBED_DL_CUDA = 2,
    HOTBED_DL_CUDA_HOST = 3, /* pinned */
    HOTBED_DL_CUDA_MANAGED = 13,
};

enum {
    HOTBED_DL_INT = 0, /* hotbed_dl_dtype.code */
    HOTBED_DL_UINT = 1,
    HOTBED_DL_FLOAT = 2,
    HOTBED_DL_BFLOAT = 4,
    HOTBED_DL_BOOL = 6,
};

enum {
    HOTBED_DL_MAJOR = 1, /* the version that is written, and the major version that is read */
    HOTBED_DL_MINOR = 0,
    HOTBED_DL_READ_ONLY = 1, /* hotbed_dl_managed_versioned.flags */
};

typedef struct hotbed_dl_device { /* DLDevice */
    int32_t type;
    int32_t id;
} hotbed_dl_device;

typedef struct hotbed_dl_dtype { /* DLDataType */
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} hotbed_dl_dtype;

typedef struct hotbed_dl_tensor { /* DLTensor */
    void *data;
    hotbed_dl_device device;
    int32_t ndim;
    hotbed_dl_dtype dtype;
    int64_t *shape;   /* [ndim] */
    int64_t *strides; /* [ndim] in elements; NULL: rows follow each other */
    uint64_t byte_offset;
} hotbed_dl_tensor;

typedef struct hotbed_dl_managed { /* DLManagedTensor */
    hotbed_dl_tensor tensor;
    void *context;
    void (*deleter)(struct hotbed_dl_managed *self);
} hotbed_dl_managed;

typedef struct hotbed_dl_managed_versioned { /* DLManagedTensorVersioned */
    uint32_t major, minor;
    void *context;
    void (*deleter)(struct hotbed_dl_managed_versioned *self);
    uint64_t flags;
    hotbed_dl_tensor tensor;
} hotbed_dl_managed_versioned;

/* --- in --------------------------------------------------------------------------------------- */

/* Element types of the arrays that calls accept; the first three have the values of the same
 * hotbed_dtype. */
typedef enum hotbed_element {
    HOTBED_ELEMENT_F32 = 1,
    HOTBED_ELEMENT_F16 = 2,
    HOTBED_ELEMENT_BF16 = 3,
    HOTBED_ELEMENT_I64 = 4,
    HOTBED_ELEMENT_U64 = 5,
    HOTBED_ELEMENT_KEY = 6, /* int64 or uint64 */
    HOTBED_ELEMENT_U32 = 7,
    HOTBED_ELEMENT_U8 = 8, /* uint8 or bool */
} hotbed_element;

/* The requirements of a call. Zero the struct, then set `size` and fields. */
typedef struct hotbed_dl_want {
    uint32_t size;          /* sizeof(hotbed_dl_want) */
    hotbed_element element; /* required */
    uint32_t rank;          /* 1: [rows], 2: [rows, columns]; required */
    bool writable;          /* the call writes, so a read-only tensor is refused */
    bool dense;             /* the call accepts no stride: rows must follow each other */
    uint64_t rows;          /* minimum number of rows */
    uint64_t columns;       /* rank 2: minimum number of columns */
    const char *name;       /* for messages; NULL: "tensor" */
} hotbed_dl_want;

/* The arguments for the call. Frozen: the struct has no `size`. */
typedef struct hotbed_dl_array {
    void *data;       /* address of the first element */
    uint64_t rows;    /* rows of the tensor */
    uint64_t columns; /* columns of the tensor; rank 1: 1 */
    uint64_t stride;  /* elements from one row to the next */
} hotbed_dl_array;

/* Check a tensor and get its parts. Returns at once; nothing is copied, waited for or kept. The
 * elements of a row must be adjacent. A CUDA stream accepts tensors on its GPU, and pinned and
 * managed tensors. A host stream accepts tensors that the host can access: CPU, pinned, managed.
 * Errors: ARGUMENT (with the tensor's name and values: element type, rank, too few rows or columns,
 * strides, alignment, device, read-only, an impossible shape), UNSUPPORTED (a major version other
 * than 1). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_dl_read(
    const hotbed_dl_managed *managed, const hotbed_dl_want *want, const hotbed_stream *stream,
    hotbed_dl_array *out);
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_dl_read_versioned(
    const hotbed_dl_managed_versioned *managed, const hotbed_dl_want *want,
    const hotbed_stream *stream, hotbed_dl_array *out);

/* --- out -------------------------------------------------------------------------------------- */

/* The memory for a new tensor. Zero the struct, then set `size` and fields, or let
 * hotbed_dl_weights() set them. */
typedef struct hotbed_dl_view {
    uint32_t size;             /* sizeof(hotbed_dl_view) */
    hotbed_element element;    /* not KEY; required */
    uint32_t rank;             /* 1 or 2; required */
    hotbed_memory_kind memory; /* 0 is DEVICE, of the stream's backend and device */
    void *data;                /* required unless there are no elements */
    uint64_t rows;
    uint64_t columns; /* rank 2 */
    uint64_t stride;  /* elements from one row to the next; 0: columns */
    bool read_only;   /* versioned tensors only */
    /* called once, on the thread that deletes the tensor; the memory may then be freed. NULL:
     * nothing is called */
    void (*release)(void *argument);
    void *argument;
} hotbed_dl_view;

/* Create a tensor over the memory, which must outlive it. Synchronous, without a wait. The borrower
 * calls the tensor's deleter, which frees the tensor and calls `release`. On error *out is NULL,
 * and `release` is not called.
 * Errors: ARGUMENT (NULL, element, rank, memory, a stride below columns, read_only unversioned,
 * sizes over 2^63 - 1), MEMORY. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_dl_export(const hotbed_dl_view *view, const hotbed_stream *stream, hotbed_dl_managed **out);
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_dl_export_versioned(
    const hotbed_dl_view *view, const hotbed_stream *stream, hotbed_dl_managed_versioned **out);

/* Describe the embeddings of a table as an array [slots, dim] (hotbed_dl_weights()), or its
 * optimizer state number `state` as an array [slots, state_dim] of its type (hotbed_dl_state()). Row s
 * belongs to slot first_slot + s; in a STATIC table this is key s. Rows of free slots have no
 * meaning. Training continues with the values that a borrower writes.
 * Errors: ARGUMENT (NULL, table number, a state that the optimizer does not have). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_dl_weights(const hotbed_storage *storage, uint32_t table, hotbed_dl_view *out);
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_dl_state(const hotbed_storage *storage, uint32_t table, uint32_t state, hotbed_dl_view *out);

HOTBED_END_DECLS
#endif
