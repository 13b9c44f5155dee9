/* tests/checkpoint/fuzz_manifest.c - libFuzzer entry: parses any bytes as a MANIFEST.
 *
 * Configure with clang, -DHOTBED_FUZZ=ON and a sanitizer, and run build/.../fuzz_manifest on
 * tests/checkpoint/corpus/manifest, with -dict=tests/checkpoint/manifest.dict.  test_fuzz_manifest replays
 * the corpus in every build. */
#include "base/stream.h"
#include "checkpoint/format/manifest.h"
#include "tests/checkpoint/manifest_text.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes); /* NOLINT: libFuzzer's name */

/* A text that the parser accepts is the text that the writer would write. */
static void check(const char *text, size_t bytes) {
    hotbed_manifest m;
    if (hotbed_manifest_parse("MANIFEST", text, bytes, &m) != HOTBED_OK)
        return;
    char *again = NULL;
    size_t again_bytes = 0;
    if (hotbed_manifest_print(&m, &again, &again_bytes) != HOTBED_OK || again_bytes != bytes ||
        memcmp(again, text, bytes) != 0)
        abort();
    hotbed_delete(again);
    hotbed_manifest_free(&m);
}

/* Parse the bytes as they are, and again with a correct last line: a fuzzer does not find digests. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) { /* NOLINT: libFuzzer's name */
    char *text = malloc(bytes + 64);
    if (text == NULL)
        return 0;
    if (bytes > 0)
        memcpy(text, data, bytes);
    check(text, bytes);
    check(text, manifest_text_sign(text, bytes));
    free(text);
    return 0;
}
