/* serve/metrics.c - metrics as text, with a decimal point in every locale. */
#include "serve/metrics.h"

#include "base/error.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

HOTBED_PRINTF(2, 3)
static void print(hotbed_metrics *m, const char *format, ...) {
    char line[256];
    va_list args;
    va_start(args, format);
    int n = hotbed_vformat(line, sizeof line, format, args);
    va_end(args);
    size_t bytes = n < 0 ? 0 : (size_t)n < sizeof line ? (size_t)n : sizeof line - 1;
    if (m->to != NULL && m->bytes + bytes < m->capacity)
        memcpy(m->to + m->bytes, line, bytes + 1);
    m->bytes += bytes;
}

void hotbed_metrics_add(
    hotbed_metrics *m, const char *name, const char *type, const char *help, const char *labels,
    double value) {
    if (help != NULL) {
        print(m, "# HELP %s%s %s\n", m->prefix, name, help);
        print(m, "# TYPE %s%s %s\n", m->prefix, name, type);
    }
    print(m, "%s%s%s %.17g\n", m->prefix, name, labels == NULL ? "" : labels, value);
}

hotbed_status hotbed_metrics_end(const hotbed_metrics *m, const char *call, uint64_t *bytes) {
    *bytes = m->bytes;
    if (m->to == NULL || m->bytes < m->capacity)
        return HOTBED_OK;
    if (m->capacity > 0)
        m->to[m->capacity - 1] = '\0';
    return hotbed_fail_limit(
        HOTBED_ERR_ARGUMENT, "capacity", m->capacity, (double)m->bytes + 1,
        "%s: the text has %" PRIu64 " bytes with its 0, capacity is %" PRIu64, call, m->bytes + 1,
        m->capacity);
}
