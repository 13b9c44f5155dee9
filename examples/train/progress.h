/* examples/train/progress.h - a progress bar on a terminal, otherwise a line from time to time. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct hotbed_progress {
    const char *what; /* "train", "eval" */
    bool quiet;
    bool terminal;
    bool shown; /* the terminal's last line shows a bar */
    double start;
    double last; /* time of the last output */
    double first_fraction;
} hotbed_progress;

/* Seconds of a monotonic clock. */
double hotbed_progress_clock(void);

void hotbed_progress_begin(hotbed_progress *progress, const char *what, bool quiet);

/* Show the progress, unless something was shown just before.
 *   fraction  in  fraction of the work that is done; below 0: not known
 *   loss      in  below 0: none */
void hotbed_progress_show(hotbed_progress *progress, uint64_t rows, double fraction, double loss);

/* Leave the bar's line, so that other text can be printed. */
void hotbed_progress_end(hotbed_progress *progress);
