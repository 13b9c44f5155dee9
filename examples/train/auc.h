/* examples/train/auc.h - exact area under the ROC curve. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Compute the probability that a random positive has a higher score than a random negative; ties
 * count half. Scores must not be NaN. The result is 0.5 if one class is empty. Returns false if
 * there is no memory for 16 n bytes. */
bool hotbed_auc(uint64_t n, const float *scores, const uint8_t *labels, double *auc);
