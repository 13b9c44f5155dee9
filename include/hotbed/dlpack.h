/* hotbed/dlpack.h - tensors of PyTorch, JAX, CuPy or NumPy in and out, without a copy.
 *
 * DLPack (https://dmlc.github.io/dlpack) is a C ABI by which libraries lend each other tensors.  The structs
 * below have the layout of DLPack 0.x (`unversioned`) and 1.x (`versioned`), so this header needs no other:
 * a DLManagedTensor * or DLManagedTensorVersioned * of dlpack.h is cast to the struct here, and back.
 *
 * In: hotbed_dl_read() looks whether a tensor is what a call takes, and gives the pointer and stride for the
 * call.  The tensor stays its owner's: who got it calls its deleter, once the stream has passed the work.
 *
 *     hotbed_dl_want want = {.size = sizeof want, .element = HOTBED_ELEMENT_KEY, .rank = 1, .name = "keys"};
 *     hotbed_dl_array keys;
 *     hotbed_dl_read(tensor, &want, stream, &keys);
 *     batch.keys = keys.data, batch.num_keys = keys.rows;
 *
 * Out: hotbed_dl_export() makes a tensor over memory that stays where it is: a storage's weights, an output.
 * Work on it is ordered by the caller, with events or by one stream that both sides use
 * (hotbed_stream_wrap_cuda()).
 */
#ifndef HOTBED_DLPACK_H
#define HOTBED_DLPACK_H

#include "hotbed/status.h"
#include "hotbed/storage.h"
#include "hotbed/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

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
    HOTBED_DL_MAJOR = 1, /* the version that is written, and the major that is read */
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
    int64_t *strides; /* [ndim] in elements; NULL: rows after each other */
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

/* Elements of arrays that calls take; the first three are those of hotbed_dtype. */
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

/* What a call takes.  Zero it and set `size` and fields. */
typedef struct hotbed_dl_want {
    uint32_t size;          /* sizeof(hotbed_dl_want) */
    hotbed_element element; /* required */
    uint32_t rank;          /* 1: [rows], 2: [rows, columns]; required */
    bool writable;          /* the call writes: a tensor that is read-only is refused */
    bool dense;             /* the call takes no stride: rows follow each other */
    uint64_t rows;          /* at least so many */
    uint64_t columns;       /* rank 2: at least so many */
    const char *name;       /* for messages; NULL: "tensor" */
} hotbed_dl_want;

/* What to hand to the call. */
typedef struct hotbed_dl_array {
    void *data;       /* of the first element */
    uint64_t rows;    /* the tensor's */
    uint64_t columns; /* rank 1: 1 */
    uint64_t stride;  /* elements from one row to the next */
} hotbed_dl_array;

/* Check a tensor and give its parts.  At once; nothing is copied, waited for or kept.  Elements of a row are
 * next to each other.  A CUDA stream takes tensors of its GPU, pinned and managed ones; a host stream those
 * that the host can reach: CPU, pinned, managed.
 * Errors: ARGUMENT (with the tensor's name and values: element type, rank, too few rows or columns, strides,
 * alignment, device, read-only, a shape that cannot be), UNSUPPORTED (another major version than 1). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_dl_read(
    const hotbed_dl_managed *managed, const hotbed_dl_want *want, const hotbed_stream *stream,
    hotbed_dl_array *out);
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_dl_read_versioned(
    const hotbed_dl_managed_versioned *managed, const hotbed_dl_want *want,
    const hotbed_stream *stream, hotbed_dl_array *out);

/* --- out -------------------------------------------------------------------------------------- */

/* Memory that a tensor is made over.  Zero it and set `size` and fields, or have hotbed_dl_weights() set
 * them. */
typedef struct hotbed_dl_view {
    uint32_t size;             /* sizeof(hotbed_dl_view) */
    hotbed_element element;    /* not KEY; required */
    uint32_t rank;             /* 1 or 2; required */
    hotbed_memory_kind memory; /* 0 is DEVICE, of the stream's backend and device */
    void *data;                /* required unless there are no elements */
    uint64_t rows;
    uint64_t columns;                /* rank 2 */
    uint64_t stride;                 /* elements from one row to the next; 0: columns */
    bool read_only;                  /* versioned tensors only */
    void (*release)(void *argument); /* called once, by whichever thread deletes the tensor: the
                                      * memory may go; NULL: nothing is */
    void *argument;
} hotbed_dl_view;

/* Make a tensor over the memory, which outlives it.  Synchronous, without a wait.  Its deleter, which the
 * borrower calls, frees the tensor and calls `release`.  *out is NULL on error, and `release` is not called.
 * Errors: ARGUMENT (NULL, element, rank, memory, a stride below columns, read_only unversioned, sizes over
 * 2^63 - 1), MEMORY. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_dl_export(const hotbed_dl_view *view, const hotbed_stream *stream, hotbed_dl_managed **out);
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_dl_export_versioned(
    const hotbed_dl_view *view, const hotbed_stream *stream, hotbed_dl_managed_versioned **out);

/* The view of a table's embeddings, [slots, dim]: row s is that of slot first_slot + s, and in a STATIC table
 * that of key s.  Or, of optimiser state number `state`, [slots, state_dim] of f32.  The rows of free slots
 * have no meaning.  What a borrower writes is what training goes on with.
 * Errors: ARGUMENT (NULL, table number, a state that the optimiser does not have). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_dl_weights(const hotbed_storage *storage, uint32_t table, hotbed_dl_view *out);
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_dl_state(const hotbed_storage *storage, uint32_t table, uint32_t state, hotbed_dl_view *out);

#ifdef __cplusplus
}
#endif
#endif
