/* examples/train/progress.c - a progress bar on a terminal, otherwise a line from time to time. */
#define _DEFAULT_SOURCE /* struct winsize */
#include "examples/train/progress.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { BAR = 24 };

double hotbed_progress_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void hotbed_progress_begin(hotbed_progress *progress, const char *what, bool quiet) {
    memset(progress, 0, sizeof *progress);
    progress->what = what;
    progress->quiet = quiet;
    progress->terminal = isatty(STDERR_FILENO) == 1;
    progress->start = hotbed_progress_clock();
    progress->last = progress->start;
    progress->first_fraction = -1;
}

/* The columns of the terminal, or 80. */
static size_t columns(void) {
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

static void format_time(double seconds, char *text, size_t bytes) {
    unsigned long s = (unsigned long)(seconds + 0.5);
    if (s >= 3600)
        snprintf(text, bytes, "%lu:%02lu:%02lu", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(text, bytes, "%lu:%02lu", s / 60, s % 60);
}

void hotbed_progress_show(hotbed_progress *progress, uint64_t rows, double fraction, double loss) {
    double time = hotbed_progress_clock();
    if (progress->first_fraction < 0 && fraction >= 0)
        progress->first_fraction = fraction;
    if (progress->quiet || time - progress->last < (progress->terminal ? 0.1 : 2.0))
        return;
    progress->last = time;
    double seconds = time - progress->start;
    char bar[BAR + 3] = "";
    char left[32] = "";
    char loss_text[32] = "";
    if (fraction >= 0 && progress->terminal) {
        int full = (int)(fraction * BAR);
        bar[0] = '[';
        memset(bar + 1, '=', (size_t)full);
        memset(bar + 1 + full, ' ', (size_t)(BAR - full));
        bar[BAR + 1] = ']';
    }
    double done = fraction - progress->first_fraction;
    if (fraction >= 0 && done > 0) {
        char text[24];
        format_time(seconds / done * (1.0 - fraction), text, sizeof text);
        snprintf(left, sizeof left, "  %s left", text);
    }
    if (loss >= 0)
        snprintf(loss_text, sizeof loss_text, "  loss %.4f", loss);
    char percent[16] = "";
    if (fraction >= 0)
        snprintf(percent, sizeof percent, " %3.0f %%", fraction * 100);
    char line[256], brief[160];
    (void)snprintf(
        brief, sizeof brief, "%s%s  %llu rows  %.0f rows/s%s%s", progress->what, percent,
        (unsigned long long)rows, (double)rows / seconds, loss_text, left);
    (void)snprintf(
        line, sizeof line, "%s %s%s", progress->what, bar, brief + strlen(progress->what));
    if (!progress->terminal) {
        fprintf(stderr, "%s\n", line);
        return;
    }
    /* A line that is longer than the terminal would not be overwritten by the next one: the bar
     * goes first, then the end of the line. */
    const size_t width = columns();
    fprintf(stderr, "\r%.*s\033[K", (int)width - 1, strlen(line) < width ? line : brief);
    progress->shown = progress->terminal;
    fflush(stderr);
}

void hotbed_progress_end(hotbed_progress *progress) {
    if (progress->shown)
        fputs("\r\033[K", stderr);
    progress->shown = false;
}
