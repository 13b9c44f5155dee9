/* tests/storage/test_dlpack.c - contract of hotbed/dlpack.h, with tensors that the test makes itself.
 *
 * Tensors are read and exported in both forms of DLPack, plain and versioned.  Each check of type, shape, stride and
 * device has a test, and deleters are counted to see who owns a tensor.  test_dlpack_python.py uses real frameworks.
 */
#include "hotbed/dlpack.h"
#include "tests/storage/fixture.h"
#include "tests/support/fault.h"

/* --- a tensor of the test -------------------------------------------------------------------- */

typedef struct tensor {
    hotbed_dl_managed plain;
    hotbed_dl_managed_versioned versioned;
    int64_t shape[3], strides[3];
    uint32_t deleted;
} tensor;

static void delete_plain(hotbed_dl_managed *self) {
    ((tensor *)self->context)->deleted++;
}

static void delete_versioned(hotbed_dl_managed_versioned *self) {
    ((tensor *)self->context)->deleted++;
}

/* Make a contiguous tensor in device memory, as a framework would. */
static void make(
    tensor *t, hotbed_backend backend, void *data, hotbed_dl_dtype dtype, int32_t ndim,
    int64_t rows, int64_t columns) {
    memset(t, 0, sizeof *t);
    t->shape[0] = rows;
    t->shape[1] = columns;
    t->strides[0] = ndim == 2 ? columns : 1;
    t->strides[1] = 1;
    hotbed_dl_tensor *v = &t->plain.tensor;
    v->data = data;
    v->device.type = backend == HOTBED_BACKEND_CUDA ? HOTBED_DL_CUDA : HOTBED_DL_CPU;
    v->ndim = ndim;
    v->dtype = dtype;
    v->shape = t->shape;
    v->strides = t->strides;
    t->plain.context = t;
    t->plain.deleter = delete_plain;
    t->versioned.major = 1;
    t->versioned.minor = 1;
    t->versioned.context = t;
    t->versioned.deleter = delete_versioned;
    t->versioned.tensor = *v;
}

static const hotbed_dl_dtype f32 = {HOTBED_DL_FLOAT, 32, 1}, i64 = {HOTBED_DL_INT, 64, 1};

static hotbed_dl_want want_of(hotbed_element element, uint32_t rank) {
    hotbed_dl_want want = {.size = sizeof want, .element = element, .rank = rank, .name = "keys"};
    return want;
}

/* Read the tensor in both forms, and check that the results are equal. */
static hotbed_status read_both(
    const tensor *t, const hotbed_dl_want *want, const hotbed_stream *stream,
    hotbed_dl_array *out) {
    hotbed_dl_array other = {0};
    tensor copy = *t;
    copy.versioned.tensor = t->plain.tensor;
    hotbed_status status = hotbed_dl_read(&t->plain, want, stream, out);
    CHECK_STATUS(hotbed_dl_read_versioned(&copy.versioned, want, stream, &other), status);
    if (status == HOTBED_OK)
        CHECK_BYTES(&other, out, sizeof other);
    return status;
}

/* --- reading ----------------------------------------------------------------------------------- */

/* A step whose arrays are all passed as tensors equals the model. */
static void a_step_on_tensors_equals_the_model(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(1);
    tensor keys, offsets, weights, output;
    hotbed_dl_array array;
    setup_start(&s, 2, 6, 300);
    s.options.pooling = HOTBED_POOL_SUM;
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, 200, 16);
    const batch_shape how = {.batch_size = 16, .max_bag = 5, .weights = true};
    for (int i = 0; i < 3; i++) {
        test_ticket_fill(&l, &random, &how);
        hotbed_batch batch = test_ticket_batch(&l);
        make(&keys, backend, (void *)batch.keys, i64, 1, (int64_t)batch.num_keys, 1);
        make(&offsets, backend, (void *)batch.offsets, i64, 1, 2 * 16 + 1, 1);
        make(&weights, backend, (void *)batch.weights, f32, 1, (int64_t)batch.num_keys, 1);
        int64_t columns = (int64_t)hotbed_storage_columns(r.storage);
        make(&output, backend, l.output, f32, 2, 16, columns);
        if (l.stride != 0)
            output.strides[0] = (int64_t)l.stride;
        hotbed_batch from = {.size = sizeof from, .batch_size = 16};
        hotbed_dl_want want = want_of(HOTBED_ELEMENT_KEY, 1);
        CHECK_OK(read_both(&keys, &want, r.stream, &array));
        from.keys = array.data;
        from.num_keys = array.rows;
        CHECK_EQ(array.stride, 1);
        want = want_of(HOTBED_ELEMENT_I64, 1);
        want.rows = 2 * 16 + 1;
        CHECK_OK(read_both(&offsets, &want, r.stream, &array));
        from.offsets = array.data;
        want = want_of(HOTBED_ELEMENT_F32, 1);
        want.rows = from.num_keys;
        CHECK_OK(read_both(&weights, &want, r.stream, &array));
        from.weights = array.data;
        CHECK_BYTES(&from, &batch, sizeof batch);
        test_ticket_prefetch(&l);
        want = want_of(HOTBED_ELEMENT_F32, 2);
        want.writable = true;
        want.rows = 16;
        want.columns = (uint64_t)columns;
        CHECK_OK(read_both(&output, &want, r.stream, &array));
        CHECK(array.data == l.output);
        CHECK_EQ(array.columns, (uint64_t)columns);
        uint64_t stride = l.stride;
        l.stride = array.stride;
        test_ticket_forward(&l);
        test_ticket_backward(&l, &random);
        l.stride = stride;
        CHECK_EQ(keys.deleted + output.deleted, 0); /* reading does not take ownership */
    }
    fixture_check(&r);
    fixture_close(&r);
}

static void every_element_type_is_supported(hotbed_backend backend) {
    static const struct {
        hotbed_element element;
        hotbed_dl_dtype dtype;
    } pairs[] = {
        {HOTBED_ELEMENT_F32, {HOTBED_DL_FLOAT, 32, 1}},
        {HOTBED_ELEMENT_F16, {HOTBED_DL_FLOAT, 16, 1}},
        {HOTBED_ELEMENT_BF16, {HOTBED_DL_BFLOAT, 16, 1}},
        {HOTBED_ELEMENT_I64, {HOTBED_DL_INT, 64, 1}},
        {HOTBED_ELEMENT_U64, {HOTBED_DL_UINT, 64, 1}},
        {HOTBED_ELEMENT_KEY, {HOTBED_DL_INT, 64, 1}},
        {HOTBED_ELEMENT_KEY, {HOTBED_DL_UINT, 64, 1}},
        {HOTBED_ELEMENT_U32, {HOTBED_DL_UINT, 32, 1}},
        {HOTBED_ELEMENT_U8, {HOTBED_DL_UINT, 8, 1}},
        {HOTBED_ELEMENT_U8, {HOTBED_DL_BOOL, 8, 1}},
    };
    enum { N = sizeof pairs / sizeof pairs[0] };
    static uint64_t data[8];
    hotbed_dl_array array;
    hotbed_stream *stream = hotbed_test_stream(backend);
    for (int d = 0; d < N; d++) {
        tensor t;
        make(&t, backend, data, pairs[d].dtype, 1, 8, 1);
        for (int e = 0; e < N; e++) {
            const hotbed_dl_want want = want_of(pairs[e].element, 1);
            bool same = memcmp(&pairs[d].dtype, &pairs[e].dtype, sizeof pairs[d].dtype) == 0;
            for (int k = 0; k < N; k++) /* some pair allows the type for this element */
                same = same || (pairs[k].element == pairs[e].element &&
                                memcmp(&pairs[k].dtype, &pairs[d].dtype, sizeof f32) == 0);
            CHECK_STATUS(
                read_both(&t, &want, stream, &array), same ? HOTBED_OK : HOTBED_ERR_ARGUMENT);
        }
        t.plain.tensor.dtype.lanes = 2;
        const hotbed_dl_want want = want_of(pairs[d].element, 1);
        CHECK_STATUS(read_both(&t, &want, stream, &array), HOTBED_ERR_ARGUMENT);
    }
    hotbed_stream_destroy(stream);
}

/* Each case changes a valid [4, 8] tensor of F32; `good`: it is still accepted. */
static void shapes_and_strides_are_checked(hotbed_backend backend) {
    static const struct {
        int64_t shape[2], strides[2];
        bool no_strides, dense, good;
        uint64_t stride;
    } cases[] = {
        {{4, 8}, {8, 1}, false, false, true, 8},
        {{4, 8}, {0, 0}, true, true, true, 8},
        {{4, 8}, {10, 1}, false, false, true, 10},
        {{4, 8}, {10, 1}, false, true, false, 0},
        {{4, 8}, {7, 1}, false, false, false, 0},  /* rows overlap */
        {{4, 8}, {0, 1}, false, false, false, 0},  /* one row, broadcast */
        {{4, 8}, {-8, 1}, false, false, false, 0}, /* rows in reverse order */
        {{4, 8}, {1, 4}, false, false, false, 0},  /* transposed */
        {{4, 8}, {16, 2}, false, false, false, 0}, /* every other element */
        {{1, 8}, {-3, 1}, false, true, true, 8},   /* the stride of a single row is ignored */
        {{4, 1}, {3, 77}, false, false, true, 3},  /* of a single column, too */
        {{0, 8}, {0, 0}, false, true, true, 8},
        {{4, 0}, {9, 9}, false, true, true, 0},
        {{-1, 8}, {8, 1}, false, false, false, 0},
        {{4, -8}, {8, 1}, false, false, false, 0},
        {{INT64_MAX, 8}, {8, 1}, false, false, false, 0},
        {{4, 8}, {INT64_MAX, 1}, false, false, false, 0},
        {{INT64_MIN, INT64_MIN}, {INT64_MIN, INT64_MIN}, false, false, false, 0},
    };
    static float data[64];
    hotbed_stream *stream = hotbed_test_stream(backend);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tensor t;
        hotbed_dl_array array = {NULL, 7, 7, 7};
        make(&t, backend, data, f32, 2, cases[i].shape[0], cases[i].shape[1]);
        memcpy(t.strides, cases[i].strides, sizeof cases[i].strides);
        if (cases[i].no_strides)
            t.plain.tensor.strides = NULL;
        hotbed_dl_want want = want_of(HOTBED_ELEMENT_F32, 2);
        want.dense = cases[i].dense;
        CHECK_STATUS(
            read_both(&t, &want, stream, &array), cases[i].good ? HOTBED_OK : HOTBED_ERR_ARGUMENT);
        CHECK_EQ(array.rows, cases[i].good ? (uint64_t)cases[i].shape[0] : 7);
        CHECK_EQ(array.stride, cases[i].good ? cases[i].stride : 7);
    }
    hotbed_stream_destroy(stream);
}

static void documented_errors_of_reading(hotbed_backend backend) {
    static float data[64];
    hotbed_dl_array array;
    tensor good, t;
    const hotbed_dl_want fine = want_of(HOTBED_ELEMENT_F32, 2);
    hotbed_dl_want want = fine;
    hotbed_stream *stream = hotbed_test_stream(backend);
    make(&good, backend, data, f32, 2, 4, 8);
    CHECK_OK(read_both(&good, &fine, stream, &array));
    CHECK_STATUS(hotbed_dl_read(NULL, &fine, stream, &array), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_dl_read_versioned(NULL, &fine, stream, &array), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(read_both(&good, NULL, stream, &array), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(read_both(&good, &fine, NULL, &array), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_dl_read(&good.plain, &fine, stream, NULL), HOTBED_ERR_ARGUMENT);
    want.size = 4;
    CHECK_STATUS(read_both(&good, &want, stream, &array), HOTBED_ERR_ARGUMENT);
    want = want_of((hotbed_element)0, 2);
    CHECK_STATUS(read_both(&good, &want, stream, &array), HOTBED_ERR_ARGUMENT);
    want = want_of((hotbed_element)9, 2);
    CHECK_STATUS(read_both(&good, &want, stream, &array), HOTBED_ERR_ARGUMENT);
    for (uint32_t rank = 0; rank < 4; rank++) {
        want = want_of(HOTBED_ELEMENT_F32, rank);
        CHECK_STATUS(
            read_both(&good, &want, stream, &array), rank == 2 ? HOTBED_OK : HOTBED_ERR_ARGUMENT);
    }
    want = fine;
    want.rows = 5;
    CHECK_STATUS(read_both(&good, &want, stream, &array), HOTBED_ERR_ARGUMENT);
    CHECK(strstr(hotbed_last_error(), "keys") != NULL);
    want = fine;
    want.columns = 9;
    want.name = NULL;
    CHECK_STATUS(read_both(&good, &want, stream, &array), HOTBED_ERR_ARGUMENT);
    CHECK(strstr(hotbed_last_error(), "tensor") != NULL);
    t = good;
    t.plain.tensor.shape = NULL;
    CHECK_STATUS(read_both(&t, &fine, stream, &array), HOTBED_ERR_ARGUMENT);
    t = good;
    t.plain.tensor.data = NULL;
    CHECK_STATUS(read_both(&t, &fine, stream, &array), HOTBED_ERR_ARGUMENT);
    t = good;
    t.plain.tensor.byte_offset = 2;
    CHECK_STATUS(read_both(&t, &fine, stream, &array), HOTBED_ERR_ARGUMENT);
    t.plain.tensor.byte_offset = 16;
    CHECK_OK(read_both(&t, &fine, stream, &array));
    CHECK(array.data == data + 4);
    t = good;
    t.versioned.flags = HOTBED_DL_READ_ONLY;
    CHECK_OK(hotbed_dl_read_versioned(&t.versioned, &fine, stream, &array));
    want = fine;
    want.writable = true;
    CHECK_STATUS(
        hotbed_dl_read_versioned(&t.versioned, &want, stream, &array), HOTBED_ERR_ARGUMENT);
    t.versioned.flags = 2; /* the flag "is a copy" is accepted */
    CHECK_OK(hotbed_dl_read_versioned(&t.versioned, &want, stream, &array));
    t.versioned.major = 2;
    CHECK_STATUS(
        hotbed_dl_read_versioned(&t.versioned, &fine, stream, &array), HOTBED_ERR_UNSUPPORTED);
    t.versioned.major = 0;
    CHECK_STATUS(
        hotbed_dl_read_versioned(&t.versioned, &fine, stream, &array), HOTBED_ERR_UNSUPPORTED);
    hotbed_stream_destroy(stream);
}

static void devices_are_checked(hotbed_backend backend) {
    static float data[8];
    bool cuda = backend == HOTBED_BACKEND_CUDA;
    const struct {
        int32_t type, id;
        bool good;
    } cases[] = {
        {HOTBED_DL_CPU, 0, !cuda},
        {HOTBED_DL_CUDA, 0, cuda},
        {HOTBED_DL_CUDA, 1, false},
        {HOTBED_DL_CUDA_HOST, 0, true},
        {HOTBED_DL_CUDA_MANAGED, 0, true},
        {10, 0, false},
        {0, 0, false},
        {-1, 0, false},
    };
    hotbed_dl_array array;
    hotbed_stream *stream = hotbed_test_stream(backend);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tensor t;
        const hotbed_dl_want want = want_of(HOTBED_ELEMENT_F32, 1);
        make(&t, backend, data, f32, 1, 8, 1);
        t.plain.tensor.device.type = cases[i].type;
        t.plain.tensor.device.id = cases[i].id;
        CHECK_STATUS(
            read_both(&t, &want, stream, &array), cases[i].good ? HOTBED_OK : HOTBED_ERR_ARGUMENT);
    }
    hotbed_stream_destroy(stream);
}

/* --- export ---------------------------------------------------------------------------------- */

static void count(void *argument) {
    ++*(int *)argument;
}

/* An exported tensor can be read with the same address, shape and type, and is released once. */
static void an_exported_tensor_can_be_read(hotbed_backend backend) {
    static const hotbed_element elements[] = {
        HOTBED_ELEMENT_F32, HOTBED_ELEMENT_F16, HOTBED_ELEMENT_BF16, HOTBED_ELEMENT_I64,
        HOTBED_ELEMENT_U64, HOTBED_ELEMENT_U32, HOTBED_ELEMENT_U8};
    static uint64_t data[64];
    int released = 0, expected = 0;
    hotbed_stream *stream = hotbed_test_stream(backend);
    for (size_t i = 0; i < sizeof elements / sizeof elements[0]; i++)
        for (uint32_t rank = 1; rank <= 2; rank++) {
            hotbed_dl_managed *plain;
            hotbed_dl_managed_versioned *versioned;
            hotbed_dl_array array;
            hotbed_dl_view view = {
                .size = sizeof view, .element = elements[i], .rank = rank, .data = data};
            view.rows = 3;
            view.columns = rank == 2 ? 4 : 0;
            view.stride = rank == 2 ? 5 : 0;
            view.release = count;
            view.argument = &released;
            hotbed_dl_want want = want_of(elements[i], rank);
            want.writable = true;
            CHECK_OK(hotbed_dl_export(&view, stream, &plain));
            CHECK_OK(hotbed_dl_read(plain, &want, stream, &array));
            CHECK(array.data == data && array.rows == 3);
            CHECK(array.columns == (rank == 2 ? 4 : 1) && array.stride == (rank == 2 ? 5 : 1));
            view.read_only = true;
            view.release = i % 2 == 0 ? count : NULL;
            CHECK_OK(hotbed_dl_export_versioned(&view, stream, &versioned));
            CHECK_STATUS(
                hotbed_dl_read_versioned(versioned, &want, stream, &array), HOTBED_ERR_ARGUMENT);
            want.writable = false;
            CHECK_OK(hotbed_dl_read_versioned(versioned, &want, stream, &array));
            CHECK(array.data == data);
            CHECK_EQ(released, expected);
            plain->deleter(plain);
            CHECK_EQ(released, ++expected);
            versioned->deleter(versioned);
            expected += i % 2 == 0;
            CHECK_EQ(released, expected);
        }
    hotbed_stream_destroy(stream);
}

static void an_exported_tensor_names_its_device(hotbed_backend backend) {
    static uint64_t data[4];
    bool cuda = backend == HOTBED_BACKEND_CUDA;
    hotbed_stream *stream = hotbed_test_stream(backend);
    for (int kind = 0; kind <= HOTBED_MEMORY_FILE; kind++) {
        hotbed_dl_managed *plain;
        hotbed_dl_view view = {.size = sizeof view, .element = HOTBED_ELEMENT_F32, .rank = 1};
        view.memory = (hotbed_memory_kind)kind;
        view.data = data;
        view.rows = 4;
        CHECK_OK(hotbed_dl_export(&view, stream, &plain));
        int32_t expected = HOTBED_DL_CPU;
        if (cuda && (kind == 0 || kind == HOTBED_MEMORY_DEVICE))
            expected = HOTBED_DL_CUDA;
        if (cuda && kind == HOTBED_MEMORY_PINNED)
            expected = HOTBED_DL_CUDA_HOST;
        CHECK_EQ(plain->tensor.device.type, expected);
        CHECK_EQ(plain->tensor.device.id, 0);
        plain->deleter(plain);
    }
    hotbed_stream_destroy(stream);
}

/* Address of element [row, column] of an F32 tensor. */
static float *element_at(const hotbed_dl_tensor *t, uint64_t row, uint64_t column) {
    return (float *)t->data + (int64_t)row * t->strides[0] + (int64_t)column * t->strides[1];
}

/* Lookups read what is written through the tensor, and the tensor shows what training writes. */
static void exported_weights_and_states_are_views_of_the_table(hotbed_backend backend) {
    enum { DIM = 5, ROWS = 20 };
    setup s;
    fixture r;
    hotbed_dl_view view;
    hotbed_dl_managed *weights, *state;
    setup_start(&s, 2, DIM, ROWS);
    s.tables[0].kind = HOTBED_TABLE_STATIC;
    s.tables[1].dtype = HOTBED_BF16;
    s.tables[1].state_dtype = HOTBED_BF16;
    s.options.optimizer.kind = HOTBED_OPT_ADAM;
    fixture_open_bare(&r, backend, &s.options);
    CHECK_OK(hotbed_dl_state(r.storage, 1, 1, &view));
    CHECK_EQ(view.element, HOTBED_ELEMENT_BF16);
    CHECK_EQ(view.columns, DIM);
    hotbed_table_info info = {.size = sizeof info};
    CHECK_OK(hotbed_storage_table(r.storage, 1, &info));
    CHECK(view.data == (char *)info.weights + info.state_offsets[1]);
    CHECK_EQ(view.stride * sizeof(uint16_t), info.row_bytes);
    CHECK_OK(hotbed_dl_weights(r.storage, 0, &view));
    CHECK_OK(hotbed_dl_export(&view, r.stream, &weights));
    CHECK_OK(hotbed_dl_state(r.storage, 0, 1, &view));
    CHECK_OK(hotbed_dl_export(&view, r.stream, &state));
    CHECK_EQ(weights->tensor.shape[0], ROWS);
    CHECK_EQ(weights->tensor.shape[1], DIM);
    CHECK_EQ(state->tensor.shape[1], DIM);
    float row[DIM], seen[DIM], moment[DIM], seen_moment[DIM];
    for (uint64_t key = 0; key < ROWS; key += 7) {
        for (int e = 0; e < DIM; e++) {
            row[e] = (float)key + (float)e / 8.0F;
            moment[e] = row[e] * 2.0F;
        }
        fixture_upload(&r, element_at(&weights->tensor, key, 0), row, sizeof row);
        fixture_upload(&r, element_at(&state->tensor, key, 0), moment, sizeof moment);
        float *device = fixture_alloc(&r, 2 * sizeof row);
        const hotbed_rows rows = {.weights = device, .states = {NULL, device + DIM}};
        const void *device_key = fixture_copy(&r, &key, sizeof key);
        CHECK_OK(hotbed_storage_get_rows(r.storage, 0, 1, device_key, &rows, NULL, r.stream));
        fixture_download(&r, seen, device, sizeof seen);
        fixture_download(&r, seen_moment, device + DIM, sizeof seen_moment);
        CHECK_BYTES(seen, row, sizeof row);
        CHECK_BYTES(seen_moment, moment, sizeof moment);
        for (int e = 0; e < DIM; e++)
            row[e] = -row[e];
        fixture_upload(&r, device, row, sizeof row);
        const hotbed_rows back = {.weights = device};
        CHECK_OK(hotbed_storage_set_rows(r.storage, 0, 1, device_key, &back, r.stream));
        fixture_download(&r, seen, element_at(&weights->tensor, key, 0), sizeof seen);
        CHECK_BYTES(seen, row, sizeof row);
    }
    weights->deleter(weights);
    state->deleter(state);
    CHECK_OK(hotbed_dl_weights(r.storage, 1, &view));
    CHECK_OK(hotbed_storage_table(r.storage, 1, &info));
    CHECK_EQ(view.element, HOTBED_ELEMENT_BF16);
    CHECK_EQ(view.rows, info.slots);
    CHECK_EQ(view.stride * 2, info.row_bytes);
    CHECK(view.data == info.weights);
    fixture_close(&r);
}

static void documented_errors_of_export(hotbed_backend backend) {
    static float data[64];
    setup s;
    fixture r;
    hotbed_dl_managed *plain;
    hotbed_dl_managed_versioned *versioned;
    int released = 0;
    const hotbed_dl_view good = {
        .size = sizeof good,
        .element = HOTBED_ELEMENT_F32,
        .rank = 2,
        .data = data,
        .rows = 4,
        .columns = 8,
        .release = count,
        .argument = &released};
    setup_start(&s, 1, 4, 10);
    fixture_open_bare(&r, backend, &s.options);
    for (int i = 0; i < 13; i++) {
        hotbed_dl_view view = good;
        switch (i) {
        case 0:
            view.size = 8;
            break;
        case 1:
            view.element = HOTBED_ELEMENT_KEY;
            break;
        case 2:
            view.element = (hotbed_element)0;
            break;
        case 3:
            view.element = (hotbed_element)99;
            break;
        case 4:
            view.rank = 0;
            break;
        case 5:
            view.rank = 3;
            break;
        case 6:
            view.memory = (hotbed_memory_kind)5;
            break;
        case 7:
            view.stride = 7;
            break;
        case 8:
            view.data = NULL;
            break;
        case 9:
            view.rows = (uint64_t)1 << 60;
            break;
        case 10:
            view.stride = (uint64_t)1 << 60;
            break;
        case 11:
            view.rows = UINT64_MAX;
            break;
        default:
            view.rank = 1;
            view.stride = 2;
            break;
        }
        plain = (hotbed_dl_managed *)&s;
        versioned = (hotbed_dl_managed_versioned *)&s;
        CHECK_STATUS(hotbed_dl_export(&view, r.stream, &plain), HOTBED_ERR_ARGUMENT);
        CHECK_STATUS(hotbed_dl_export_versioned(&view, r.stream, &versioned), HOTBED_ERR_ARGUMENT);
        CHECK(plain == NULL && versioned == NULL);
    }
    hotbed_dl_view view = good;
    view.read_only = true;
    CHECK_STATUS(hotbed_dl_export(&view, r.stream, &plain), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_dl_export(NULL, r.stream, &plain), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_dl_export(&good, NULL, &plain), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_dl_export(&good, r.stream, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_dl_export_versioned(NULL, r.stream, &versioned), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_dl_export_versioned(&good, NULL, &versioned), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_dl_export_versioned(&good, r.stream, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_dl_weights(NULL, 0, &view), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_dl_weights(r.storage, 1, &view), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_dl_weights(r.storage, 0, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_dl_state(NULL, 0, 0, &view), HOTBED_ERR_ARGUMENT);
    /* SGD has no state */
    CHECK_STATUS(hotbed_dl_state(r.storage, 0, 0, &view), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_dl_state(r.storage, 0, 0, NULL), HOTBED_ERR_ARGUMENT);
    fault_arm(1);
    CHECK_STATUS(hotbed_dl_export(&good, r.stream, &plain), HOTBED_ERR_MEMORY);
    CHECK(fault_disarm() && plain == NULL);
    fault_arm(1);
    CHECK_STATUS(hotbed_dl_export_versioned(&good, r.stream, &versioned), HOTBED_ERR_MEMORY);
    CHECK(fault_disarm() && versioned == NULL);
    CHECK_EQ(released, 0);
    fixture_close(&r);
}

const hotbed_test hotbed_tests[] = {
    {TEST(a_step_on_tensors_equals_the_model)},
    {TEST(every_element_type_is_supported)},
    {TEST(shapes_and_strides_are_checked)},
    {TEST(documented_errors_of_reading)},
    {TEST(devices_are_checked)},
    {TEST(an_exported_tensor_can_be_read)},
    {TEST(an_exported_tensor_names_its_device)},
    {TEST(exported_weights_and_states_are_views_of_the_table)},
    {TEST(documented_errors_of_export)},
    {NULL, NULL},
};
