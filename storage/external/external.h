/* storage/external/external.h - internals of external stores, for storages, built-in plug-ins and tests. */
#pragma once

#include "hotbed/external.h"
#include "hotbed/types.h"

#define HOTBED_EXTERNAL_BATCH_MOST ((uint64_t)1 << 30)

/* Allocate scratch memory, so that batches of up to n keys allocate nothing. */
hotbed_status hotbed_external_reserve(hotbed_external *external, uint64_t n);

/* Return the number of tables in the options. */
uint32_t hotbed_external_num_tables(const hotbed_external *external);

/* Get a table as in the options; its name is valid while the store exists.
 * Errors: ARGUMENT (table number). */
HOTBED_MUST_USE hotbed_status hotbed_external_table_read(
    const hotbed_external *external, uint32_t table, hotbed_external_table *out);

/* Set the type of the keys, for error texts: a storage that uses the store knows it. */
void hotbed_external_set_key_type(hotbed_external *external, hotbed_key_type type);

/* Check that the rows of a table are laid out as a storage's before, if the plug-in can tell; see
 * hotbed_external_calls.layout. Errors: ARGUMENT, the store's. */
hotbed_status hotbed_external_check_layout(
    hotbed_external *external, uint32_t table, const char *layout);

/* Errors: ARGUMENT if the table number is out of range. */
hotbed_status hotbed_external_check_table(const hotbed_external *external, uint32_t table);

/* Call `function` in the order of `stream`: on a thread of the stream, or on this thread after a
 * wait if the plug-in wants that. Errors: STATE (this thread would wait, but the stream records a
 * graph). */
hotbed_status hotbed_external_enqueue(
    const hotbed_external *external, hotbed_stream *stream, void (*function)(void *argument),
    void *argument);

void hotbed_external_count_stream_wait(hotbed_external *external, uint64_t nanoseconds);

/* The plug-in that keeps rows in memory. */
extern const hotbed_external_calls hotbed_external_memory_calls;
void *hotbed_external_memory_new(void);
