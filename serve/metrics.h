/* serve/metrics.h - Prometheus's text format. */
#pragma once

#include "hotbed/status.h"

#include <stdint.h>

/* A text that may be longer than its memory. */
typedef struct hotbed_metrics {
    const char *prefix; /* of all names */
    char *to;           /* [capacity], or NULL */
    uint64_t capacity, bytes;
} hotbed_metrics;

/* Add a metric: its help, its type and its value. `labels`, "{..}", may be NULL. With `help` NULL it is
 * another value of the metric before. */
void hotbed_metrics_add(
    hotbed_metrics *metrics, const char *name, const char *type, const char *help,
    const char *labels, double value);

/* Set *bytes. Errors: ARGUMENT (the text is longer than its memory), with `call`. */
hotbed_status hotbed_metrics_end(const hotbed_metrics *metrics, const char *call, uint64_t *bytes);
