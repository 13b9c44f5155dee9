/* tests/pipeline/nvtx_record.c - an NVTX tool, loaded by NVTX_INJECTION64_PATH, that records ranges. */
#include "tests/pipeline/nvtx_record.h"

#include <nvtx3/nvToolsExt.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static nvtx_record kept[NVTX_RECORDS_MOST];
static unsigned num_kept, num_threads;
static _Thread_local unsigned own_thread; /* number of this thread, + 1; 0: not assigned yet */
static _Thread_local int own_depth;

static void keep(const char *name) {
    (void)pthread_mutex_lock(&lock);
    if (own_thread == 0)
        own_thread = ++num_threads;
    if (num_kept < NVTX_RECORDS_MOST) {
        nvtx_record *to = &kept[num_kept++];
        to->thread = own_thread - 1;
        to->depth = own_depth;
        (void)snprintf(to->name, sizeof to->name, "%s", name);
    }
    (void)pthread_mutex_unlock(&lock);
}

static int NVTX_API push(const char *message) {
    own_depth++;
    keep(message);
    return own_depth - 1;
}

static int NVTX_API pop(void) {
    own_depth--;
    keep("");
    return own_depth;
}

EXPORTED unsigned nvtx_record_take(nvtx_record *records);
EXPORTED unsigned nvtx_record_take(nvtx_record *records) {
    (void)pthread_mutex_lock(&lock);
    unsigned n = num_kept;
    memcpy(records, kept, n * sizeof *records);
    num_kept = 0;
    (void)pthread_mutex_unlock(&lock);
    return n;
}

/* NVTX calls this once, at the first range; 1 means success. */
/* NOLINTBEGIN(readability-identifier-naming): NVTX's name */
EXPORTED int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table);
EXPORTED int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
    /* NOLINTEND(readability-identifier-naming) */
    const NvtxExportTableCallbacks *callbacks = get_table(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable functions = NULL;
    unsigned size = 0;
    if (callbacks == NULL ||
        callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &functions, &size) == 0 ||
        size <= NVTX_CBID_CORE_RangePop)
        return 0;
    *functions[NVTX_CBID_CORE_RangePushA] = (NvtxFunctionPointer)push;
    *functions[NVTX_CBID_CORE_RangePop] = (NvtxFunctionPointer)pop;
    return 1;
}
