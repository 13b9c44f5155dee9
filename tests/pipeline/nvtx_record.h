/* tests/pipeline/nvtx_record.h - ranges that NVTX reported to a tool. */
#ifndef HOTBED_TESTS_NVTX_RECORD_H
#define HOTBED_TESTS_NVTX_RECORD_H

enum { NVTX_RECORDS_MOST = 4096, NVTX_NAME_BYTES = 48 };

typedef struct nvtx_record {
    unsigned thread;            /* in the order of their first calls */
    int depth;                  /* ranges that are open on the thread after it */
    char name[NVTX_NAME_BYTES]; /* of a range that begins; "" where one ends */
} nvtx_record;

/* Copy the records so far, and forget them; how many there were. */
typedef unsigned (*nvtx_record_take_function)(nvtx_record *records);

#endif
