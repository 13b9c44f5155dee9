/* pipeline/nvtx.h - ranges that NVIDIA's tools show; no-ops in a build without NVTX. */
#pragma once

/* Call before any thread begins a range: NVTX looks for a tool at its first call, which is
 * not thread-safe. */
void hotbed_nvtx_start(void);

/* Begin a range on this thread. hotbed_nvtx_pop() ends the latest one. */
void hotbed_nvtx_push(const char *name);
void hotbed_nvtx_pop(void);
