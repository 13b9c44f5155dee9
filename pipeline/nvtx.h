/* pipeline/nvtx.h - ranges that NVIDIA's tools show; nothing in a build without NVTX. */
#ifndef HOTBED_PIPELINE_NVTX_H
#define HOTBED_PIPELINE_NVTX_H

/* Begin a range on this thread, and end the latest one. */
void hotbed_nvtx_push(const char *name);
void hotbed_nvtx_pop(void);

#endif
