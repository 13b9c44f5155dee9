/* tests/checkpoint/test_fuzz.c - replays a fuzzer's corpus, and the same inputs with one bit changed. */
#include "tests/checkpoint/sample.h"
#include "tests/support/harness.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes); /* NOLINT: libFuzzer's name */

static void the_corpus_does_no_harm(hotbed_backend backend) {
    DIR *corpus = opendir(HOTBED_TEST_CORPUS);
    CHECK(corpus != NULL);
    uint64_t files = 0;
    for (struct dirent *entry; (entry = readdir(corpus)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue;
        char path[1024];
        size_t bytes;
        snprintf(path, sizeof path, "%s/%s", HOTBED_TEST_CORPUS, entry->d_name);
        unsigned char *data = sample_read_file(path, &bytes);
        LLVMFuzzerTestOneInput(data, bytes);
        for (int i = 0; i < HOTBED_TEST_FLIPS && bytes > 0; i++) {
            size_t at = hotbed_test_below(bytes);
            unsigned char old = data[at];
            data[at] ^= (unsigned char)(1U << hotbed_test_below(8));
            LLVMFuzzerTestOneInput(data, bytes);
            data[at] = old;
        }
        free(data);
        files++;
    }
    closedir(corpus);
    CHECK(files >= 3);
}

const hotbed_test hotbed_tests[] = {
    {TEST(the_corpus_does_no_harm)},
    {NULL, NULL},
};
