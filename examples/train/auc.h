/* examples/train/auc.h - exact area under the ROC curve. */
#ifndef HOTBED_EXAMPLES_AUC_H
#define HOTBED_EXAMPLES_AUC_H

#include <stdbool.h>
#include <stdint.h>

/* Probability that a random positive has a higher score than a random negative, ties counted half.
 * Scores are not NaN.  0.5 when one class is empty.  False when there is no memory for 8 n bytes. */
bool hotbed_auc(uint64_t n, const float *scores, const uint8_t *labels, double *auc);

#endif
