/* examples/train/plant.h - the planted model: clicks whose best possible AUC is known.
 *
 * A row is a function of (settings, row number). Each field draws its key by a power law. The label
 * is drawn with the probability given by a factorization machine whose parameters are functions of
 * (seed, field, key). So rows 0 .. n are training data, and rows n .. m are fresh rows of the same
 * model. Parameters get smaller with a key's rank, so most of the signal is in frequent keys. */
#pragma once

#include "examples/train/criteo.h"

typedef struct hotbed_plant_settings {
    uint64_t seed;
    double alpha;   /* exponent of the power law; > 0 */
    uint64_t vocab; /* keys of the largest field, 4 .. 2^31 */
} hotbed_plant_settings;

/* Draws ranks 1 .. n with probability proportional to rank^-alpha. */
typedef struct hotbed_plant_zipf {
    double alpha;
    double n;
    double h_first; /* see plant.c */
    double h_last;
    double accept;
} hotbed_plant_zipf;

typedef struct hotbed_plant {
    hotbed_plant_settings settings;
    hotbed_plant_zipf ranks[HOTBED_CRITEO_CATEGORIES];
    double gain; /* makes the spread of the logits the same for every seed */
    double bias; /* makes the click rate the same */
} hotbed_plant;

typedef struct hotbed_plant_row {
    bool missing[HOTBED_CRITEO_FIELDS];
    int64_t integers[HOTBED_CRITEO_INTEGERS];
    uint32_t categories[HOTBED_CRITEO_CATEGORIES];
    float logit; /* the planted model's logit */
    uint8_t label;
} hotbed_plant_row;

void hotbed_plant_init(hotbed_plant *plant, const hotbed_plant_settings *settings);
void hotbed_plant_draw(const hotbed_plant *plant, uint64_t row, hotbed_plant_row *out);

/* Write a row as a line with its newline; returns its length, at most HOTBED_PLANT_LINE. */
enum { HOTBED_PLANT_LINE = 640 };
size_t hotbed_plant_print(const hotbed_plant_row *row, char *line);
