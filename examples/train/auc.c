/* examples/train/auc.c - exact area under the ROC curve. */
#include "examples/train/auc.h"

#include <stdlib.h>
#include <string.h>

/* Pack a score as an unsigned number of the same order, with the label in the lowest bit. */
static uint64_t pack(float score, uint8_t label) {
    float sum = score + 0.0F; /* -0 and 0 are the same score */
    uint32_t bits;
    memcpy(&bits, &sum, sizeof bits);
    bits = bits & 0x80000000U ? ~bits : bits | 0x80000000U;
    return (uint64_t)bits << 1 | (label != 0);
}

/* Sort by the scores, which are in bits 1 to 32: 11 bits at a time, the lowest first. */
static void sort(uint64_t n, uint64_t *packed, uint64_t *spare) {
    enum { DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS };
    uint64_t *from = packed, *to = spare;
    for (unsigned shift = 1; shift < 33; shift += DIGIT_BITS) {
        uint64_t starts[DIGITS + 1] = {0};
        for (uint64_t i = 0; i < n; i++)
            starts[(from[i] >> shift & (DIGITS - 1)) + 1]++;
        for (unsigned d = 1; d <= DIGITS; d++)
            starts[d] += starts[d - 1];
        for (uint64_t i = 0; i < n; i++)
            to[starts[from[i] >> shift & (DIGITS - 1)]++] = from[i];
        uint64_t *sorted = to;
        to = from;
        from = sorted;
    }
    memcpy(packed, from, n * sizeof *packed); /* after three passes the sorted array is `spare` */
}

bool hotbed_auc(uint64_t n, const float *scores, const uint8_t *labels, double *auc) {
    *auc = 0.5;
    if (n == 0)
        return true;
    if (n > SIZE_MAX / (2 * sizeof(uint64_t)))
        return false;
    uint64_t *packed = malloc(2 * n * sizeof *packed);
    if (packed == NULL)
        return false;
    for (uint64_t i = 0; i < n; i++)
        packed[i] = pack(scores[i], labels[i]);
    sort(n, packed, packed + n);
    uint64_t negatives = 0; /* negatives below the current run of ties */
    uint64_t positives = 0;
    double wins = 0; /* counted in halves; exact up to 2^53 pairs */
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
