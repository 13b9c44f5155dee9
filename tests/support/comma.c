/* tests/support/comma.c - a locale with a decimal comma, for tests of text that machines read. */
#define _DEFAULT_SOURCE 1 /* setenv() */
#include "tests/support/comma.h"

#include "tests/support/harness.h"

#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static _Thread_local locale_t before, comma;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Compile the locale, once a program.  NULL: it cannot be done. */
static const char *make(void) {
    static const char *folder;
    char command[600];
    pthread_mutex_lock(&lock);
    if (folder == NULL) {
        const char *in = hotbed_test_directory();
        (void)snprintf(
            command, sizeof command, "localedef -i de_DE -f UTF-8 '%s/de_DE.UTF-8' >'%s/log' 2>&1",
            in, in);
        if (system(command) == 0) { /* NOLINT(cert-env33-c,concurrency-mt-unsafe) */
            CHECK_EQ(setenv("LOCPATH", in, 1), 0);
            folder = in;
        }
    }
    pthread_mutex_unlock(&lock);
    return folder;
}

const char *comma_begin(void) {
    char text[8];
    if (make() == NULL)
        return "localedef cannot make de_DE.UTF-8: the C library's locale sources are not "
               "installed";
    comma = newlocale(LC_ALL_MASK, "de_DE.UTF-8", (locale_t)0);
    CHECK(comma != (locale_t)0);
    before = uselocale(comma);
    (void)snprintf(text, sizeof text, "%g", 0.5);
    CHECK_STRING(text, "0,5"); /* else the test would show nothing */
    return NULL;
}

void comma_end(void) {
    (void)uselocale(before);
    freelocale(comma);
}
