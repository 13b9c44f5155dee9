/* pipeline/nvtx.h - ranges that NVIDIA's tools show; nothing in a build without NVTX. */
#ifndef HOTBED_PIPELINE_NVTX_H
#define HOTBED_PIPELINE_NVTX_H

/* Before any thread begins a range: NVTX looks for a tool at its first call, and does not guard what it finds. */
void hotbed_nvtx_start(void);

/* Begin a range on this thread, and end the latest one. */
void hotbed_nvtx_push(const char *name);
void hotbed_nvtx_pop(void);

#endif
