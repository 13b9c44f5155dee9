/* examples/train/plant.c - the planted model: clicks whose best possible AUC is known. */
#include "examples/train/plant.h"

#include "examples/train/model_core.h"

#include <math.h>
#include <stdio.h>

enum {
    FACTORS = 4,
    FACTOR_FIELDS = 8, /* categorical fields that interact */
    PILOT_ROWS = 8192, /* rows from which gain and bias are determined */
    MISSING_RANK = 0,  /* stands for an empty field */
};

static const double logit_spread = 1.35; /* standard deviation of the logits */
static const double click_rate = 0.25;   /* as in Criteo's Kaggle set */
static const uint64_t pilot_first = (uint64_t)1 << 63;

/* The finalizer of splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31);
}

static uint64_t hash3(uint64_t a, uint64_t b, uint64_t c) {
    return mix(mix(mix(a + 0x9e3779b97f4a7c15U) ^ b) + 0x9e3779b97f4a7c15U * c);
}

typedef struct draws {
    uint64_t state;
} draws;

static uint64_t draw_bits(draws *d) {
    d->state += 0x9e3779b97f4a7c15U;
    return mix(d->state);
}

static double draw_unit(draws *d) {
    return (double)(draw_bits(d) >> 11) * 0x1p-53;
}

/* Draw a nearly normal number from 64 bits: the sum of four uniform numbers. */
static double normal(uint64_t bits) {
    double sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (double)((bits >> (16 * i)) & 0xffffU) + 0.5;
    return (sum * 0x1p-16 - 2.0) * 1.7320508075688772;
}

/* --- ranks: rejection-inversion (Hoermann and Derflinger 1996), no table at any vocabulary --------- */

static double power_integral(double alpha, double x) {
    double log_x = log(x);
    double t = (1.0 - alpha) * log_x;
    return fabs(t) < 1e-9 ? log_x : expm1(t) / (1.0 - alpha);
}

static double power_inverse(double alpha, double h) {
    double t = (1.0 - alpha) * h;
    if (fabs(t) < 1e-9)
        return exp(h);
    return exp(log1p(t < -1.0 ? -1.0 : t) / (1.0 - alpha));
}

static void zipf_init(hotbed_plant_zipf *z, double alpha, uint64_t n) {
    z->alpha = alpha;
    z->n = (double)n;
    z->h_first = power_integral(alpha, 1.5) - 1.0;
    z->h_last = power_integral(alpha, (double)n + 0.5);
    z->accept = 2.0 - power_inverse(alpha, power_integral(alpha, 2.5) - pow(2.0, -alpha));
}

static uint32_t zipf_draw(const hotbed_plant_zipf *z, draws *d) {
    for (;;) {
        double h = z->h_last + draw_unit(d) * (z->h_first - z->h_last);
        double x = power_inverse(z->alpha, h);
        double rank = floor(x + 0.5);
        rank = rank < 1.0 ? 1.0 : rank > z->n ? z->n : rank;
        if (rank - x <= z->accept ||
            h >= power_integral(z->alpha, rank + 0.5) - pow(rank, -z->alpha))
            return (uint32_t)rank;
    }
}

/* --- fields ---------------------------------------------------------------------------------------- */

/* Sizes from 4 keys to the whole vocabulary, evenly spaced on a log scale, in a mixed order. */
static uint64_t field_size(uint64_t vocab, uint32_t category) {
    double part =
        (double)((category * 7 + 3) % HOTBED_CRITEO_CATEGORIES) / (HOTBED_CRITEO_CATEGORIES - 1);
    return (uint64_t)(4.0 * pow((double)vocab / 4.0, part) + 0.5);
}

/* About half of the fields are always present; the others are missing in up to 45 % of the rows. */
static double missing_rate(uint32_t field) {
    double u = (double)(hash3(1, field, 0) >> 40) * 0x1p-24;
    return u < 0.5 ? 0.0 : 0.9 * (u - 0.5);
}

/* Bijective on 32 bits, so that two ranks of a category never share a key. */
static uint32_t category_key(uint32_t category, uint32_t rank) {
    uint32_t x = rank + category * 0x9e3779b1U;
    x = (x ^ (x >> 16)) * 0x85ebca6bU;
    x = (x ^ (x >> 13)) * 0xc2b2ae35U;
    return x ^ (x >> 16);
}

static bool interacts(uint32_t category) {
    return category % 3 == 1 && category / 3 < FACTOR_FIELDS;
}

static double linear(const hotbed_plant *plant, uint32_t category, uint32_t rank) {
    uint32_t field = HOTBED_CRITEO_INTEGERS + category;
    double width = 0.5 + (double)(hash3(plant->settings.seed, field, 1) >> 40) * 0x1p-24;
    return width * normal(hash3(plant->settings.seed ^ 0x6c696e, field, rank)) /
           sqrt(1.0 + rank / 32.0);
}

/* Effect of an integer field: proportional to its bucket number, which grows as the logarithm. */
static double integer_effect(const hotbed_plant *plant, uint32_t field, bool missing, int64_t v) {
    if (missing)
        return 0.5 * normal(hash3(plant->settings.seed ^ 0x6d6973, field, 0));
    return 0.06 * normal(hash3(plant->settings.seed ^ 0x696e74, field, 0)) *
           (double)hotbed_criteo_bucket(v);
}

/* The logit before gain and bias are applied. */
static double raw_logit(
    const hotbed_plant *plant, const hotbed_plant_row *row,
    const uint32_t ranks[HOTBED_CRITEO_CATEGORIES]) {
    double logit = 0;
    double sum[FACTORS] = {0};
    double square[FACTORS] = {0};
    for (uint32_t i = 0; i < HOTBED_CRITEO_INTEGERS; i++)
        logit += integer_effect(plant, i, row->missing[i], row->integers[i]);
    for (uint32_t c = 0; c < HOTBED_CRITEO_CATEGORIES; c++) {
        logit += linear(plant, c, ranks[c]);
        if (!interacts(c))
            continue;
        for (uint32_t k = 0; k < FACTORS; k++) {
            double v = 0.27 *
                       normal(hash3(plant->settings.seed ^ 0x66616374, c * FACTORS + k, ranks[c])) /
                       sqrt(sqrt(1.0 + ranks[c] / 32.0));
            sum[k] += v;
            square[k] += v * v;
        }
    }
    for (uint32_t k = 0; k < FACTORS; k++)
        logit += 0.5 * (sum[k] * sum[k] - square[k]);
    return logit;
}

/* Draw the keys of a row, and return its raw logit. */
static double draw_keys(const hotbed_plant *plant, draws *d, hotbed_plant_row *out) {
    uint32_t ranks[HOTBED_CRITEO_CATEGORIES];
    for (uint32_t i = 0; i < HOTBED_CRITEO_INTEGERS; i++) {
        double centre = (double)(hash3(2, i, 0) >> 40) * 0x1p-24 * 6.0;
        double value = floor(exp(centre + 1.2 * normal(draw_bits(d))));
        out->missing[i] = draw_unit(d) < missing_rate(i);
        out->integers[i] = (int64_t)value - (i == 1 ? 3 : 0); /* Criteo's i02 has negative values */
    }
    for (uint32_t c = 0; c < HOTBED_CRITEO_CATEGORIES; c++) {
        uint32_t field = HOTBED_CRITEO_INTEGERS + c;
        uint32_t rank = zipf_draw(&plant->ranks[c], d);
        out->missing[field] = draw_unit(d) < missing_rate(field);
        out->categories[c] = category_key(c, rank);
        ranks[c] = out->missing[field] ? MISSING_RANK : rank;
    }
    return raw_logit(plant, out, ranks);
}

static draws begin_row(const hotbed_plant *plant, uint64_t row) {
    draws d = {hash3(plant->settings.seed, row, 3)};
    return d;
}

void hotbed_plant_init(hotbed_plant *plant, const hotbed_plant_settings *settings) {
    double raw[PILOT_ROWS];
    double mean = 0;
    double variance = 0;
    plant->settings = *settings;
    for (uint32_t c = 0; c < HOTBED_CRITEO_CATEGORIES; c++)
        zipf_init(&plant->ranks[c], settings->alpha, field_size(settings->vocab, c));
    for (uint32_t i = 0; i < PILOT_ROWS; i++) {
        hotbed_plant_row row;
        draws d = begin_row(plant, pilot_first + i);
        raw[i] = draw_keys(plant, &d, &row);
        mean += raw[i] / PILOT_ROWS;
    }
    for (uint32_t i = 0; i < PILOT_ROWS; i++)
        variance += (raw[i] - mean) * (raw[i] - mean) / PILOT_ROWS;
    plant->gain = variance > 0 ? logit_spread / sqrt(variance) : 1;
    double low = -40.0 - mean * plant->gain;
    double high = 40.0 - mean * plant->gain;
    for (int step = 0; step < 60; step++) {
        double rate = 0;
        plant->bias = 0.5 * (low + high);
        for (uint32_t i = 0; i < PILOT_ROWS; i++)
            rate += 1.0 / (1.0 + exp(-(plant->bias + plant->gain * raw[i]))) / PILOT_ROWS;
        if (rate < click_rate)
            low = plant->bias;
        else
            high = plant->bias;
    }
}

void hotbed_plant_draw(const hotbed_plant *plant, uint64_t row, hotbed_plant_row *out) {
    draws d = begin_row(plant, row);
    double raw = draw_keys(plant, &d, out);
    out->logit = (float)(plant->bias + plant->gain * raw);
    out->label = draw_unit(&d) < (double)hotbed_fm_logistic(out->logit, 0).error;
}

/* --- text ------------------------------------------------------------------------------------------ */

static char *print_integer(char *p, int64_t value) {
    char digits[20];
    int n = 0;
    uint64_t size = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    if (value < 0)
        *p++ = '-';
    do
        digits[n++] = (char)('0' + size % 10);
    while ((size /= 10) > 0);
    while (n > 0)
        *p++ = digits[--n];
    return p;
}

size_t hotbed_plant_print(const hotbed_plant_row *row, char *line) {
    static const char hex[] = "0123456789abcdef";
    char *p = line;
    *p++ = (char)('0' + row->label);
    for (uint32_t f = 0; f < HOTBED_CRITEO_FIELDS; f++) {
        *p++ = '\t';
        if (row->missing[f])
            continue;
        if (f < HOTBED_CRITEO_INTEGERS) {
            p = print_integer(p, row->integers[f]);
            continue;
        }
        uint32_t key = row->categories[f - HOTBED_CRITEO_INTEGERS];
        for (int shift = 28; shift >= 0; shift -= 4)
            *p++ = hex[(key >> shift) & 15U];
    }
    *p++ = '\n';
    return (size_t)(p - line);
}
