/* tests/examples/test_progress.c - the line of hotbed-train fits the terminal, whatever its width. */
#define _GNU_SOURCE 1 /* posix_openpt(), struct winsize */
#include "examples/train/progress.h"
#include "tests/support/harness.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

enum { TEXT_BYTES = 1024 };

/* Show a progress on a terminal of `width` columns (0: unknown), and set text to what it gets. */
static void show(unsigned short width, double fraction, double loss, char text[TEXT_BYTES]) {
    int control = posix_openpt(O_RDWR | O_NOCTTY);
    CHECK(control >= 0 && grantpt(control) == 0 && unlockpt(control) == 0);
    int terminal = open(ptsname(control), O_RDWR | O_NOCTTY);
    CHECK(terminal >= 0);
    struct termios modes;
    CHECK(tcgetattr(terminal, &modes) == 0);
    modes.c_oflag &= ~(tcflag_t)OPOST; /* bytes as they were written */
    CHECK(tcsetattr(terminal, TCSANOW, &modes) == 0);
    struct winsize size = {.ws_row = 25, .ws_col = width};
    CHECK(ioctl(terminal, TIOCSWINSZ, &size) == 0);
    int before = dup(STDERR_FILENO);
    fflush(stderr);
    CHECK(before >= 0 && dup2(terminal, STDERR_FILENO) == STDERR_FILENO);
    hotbed_progress progress;
    hotbed_progress_begin(&progress, "train", false);
    progress.last -= 1; /* as if the last line were a second old */
    hotbed_progress_show(&progress, 1234567890, fraction / 2, loss);
    progress.last -= 1;
    hotbed_progress_show(&progress, 1234567890, fraction, loss);
    CHECK(progress.terminal && progress.shown);
    CHECK(dup2(before, STDERR_FILENO) == STDERR_FILENO);
    close(before);
    close(terminal); /* then a read fails after the last byte */
    size_t n = 0;
    for (ssize_t got = 1; got > 0; n += got > 0 ? (size_t)got : 0)
        got = read(control, text + n, TEXT_BYTES - 1 - n);
    text[n] = '\0';
    close(control);
}

/* Return the most columns that a line of the text takes. */
static size_t widest(const char *text) {
    size_t column = 0, most = 0;
    for (const char *c = text; *c != '\0'; c++) {
        if (strncmp(c, "\033[K", 3) == 0) { /* erases the rest of the line */
            c += 2;
            continue;
        }
        column = *c == '\r' ? 0 : column + 1;
        most = column > most ? column : most;
    }
    return most;
}

/* A line that fills the last column would wrap, and the next one would not overwrite it. */
static void a_line_fits_the_terminal(hotbed_backend backend) {
    static const unsigned short widths[] = {0, 1, 2, 10, 20, 40, 60, 70, 80, 90, 120, 1000};
    char text[TEXT_BYTES];
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (int known = 0; known < 2; known++) {
            show(widths[w], known ? 0.5 : -1, known ? 0.6931 : -1, text);
            CHECK(widest(text) < (widths[w] == 0 ? 80 : widths[w]));
        }
    show(1000, 0.5, 0.6931, text);
    CHECK(strstr(text, "[============            ]") != NULL && strstr(text, "left") != NULL);
    show(70, 0.5, 0.6931, text); /* the bar goes first */
    CHECK(strchr(text, '[') == strchr(text, '\033') + 1);
    CHECK(strstr(text, "train  50 %") != NULL && strstr(text, "loss 0.6931") != NULL);
}

const hotbed_test hotbed_tests[] = {
    {TEST(a_line_fits_the_terminal)},
    {NULL, NULL},
};
