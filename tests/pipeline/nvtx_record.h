/* tests/pipeline/nvtx_record.h - the records of nvtx_record.c. */
#pragma once

enum { NVTX_RECORDS_MOST = 4096, NVTX_NAME_BYTES = 48 };

typedef struct nvtx_record {
    unsigned thread;            /* numbered in the order of first calls */
    int depth;                  /* number of open ranges of the thread after this record */
    char name[NVTX_NAME_BYTES]; /* of the range that begins; "" for the end of a range */
} nvtx_record;

/* Copy the records so far, and clear them; returns their number. */
typedef unsigned (*nvtx_record_take_function)(nvtx_record *records);
