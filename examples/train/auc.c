/* examples/train/auc.c - exact area under the ROC curve. */
#include "examples/train/auc.h"

#include <stdlib.h>
#include <string.h>

/* A score as an unsigned number of the same order, with the label in the lowest bit. */
static uint64_t pack(float score, uint8_t label) {
    float sum = score + 0.0F; /* -0 and 0 are one score */
    uint32_t bits;
    memcpy(&bits, &sum, sizeof bits);
    bits = bits & 0x80000000U ? ~bits : bits | 0x80000000U;
    return (uint64_t)bits << 1 | (label != 0);
}

static int compare(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

bool hotbed_auc(uint64_t n, const float *scores, const uint8_t *labels, double *auc) {
    *auc = 0.5;
    if (n == 0)
        return true;
    uint64_t *packed = malloc(n * sizeof *packed);
    if (packed == NULL)
        return false;
    for (uint64_t i = 0; i < n; i++)
        packed[i] = pack(scores[i], labels[i]);
    qsort(packed, n, sizeof *packed, compare);
    uint64_t negatives = 0; /* below the run of ties at hand */
    uint64_t positives = 0;
    double wins = 0; /* in halves; exact up to 2^53 pairs */
    for (uint64_t i = 0; i < n;) {
        uint64_t score = packed[i] >> 1;
        uint64_t tied[2] = {0, 0};
        for (; i < n && packed[i] >> 1 == score; i++)
            tied[packed[i] & 1]++;
        wins += (double)tied[1] * (2.0 * (double)negatives + (double)tied[0]);
        negatives += tied[0];
        positives += tied[1];
    }
    free(packed);
    if (positives > 0 && negatives > 0)
        *auc = wins / 2.0 / ((double)positives * (double)negatives);
    return true;
}
