/* examples/train/datagen.c - hotbed-datagen: click logs in Criteo's format from a planted model. */
#include "examples/train/auc.h"
#include "examples/train/model_core.h"
#include "examples/train/plant.h"
#include "hotbed/version.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { EXIT_USAGE = 2, CHUNK_BYTES = 1 << 18 };

static const char usage_text[] =
    "usage: hotbed-datagen --rows N [options]\n"
    "Write a click log in Criteo's format (label, 13 integers, 26 categories, tab-separated), "
    "whose\n"
    "labels are drawn from a planted factorisation machine, and say which AUC that model reaches.\n"
    "\n"
    "  --rows N      rows to write\n"
    "  --skip N      begin at row N: fresh rows of the same model, for evaluation (default 0)\n"
    "  --seed S      of the model and the rows (default 1)\n"
    "  --alpha X     exponent of the keys' power law (default 1.05)\n"
    "  --vocab N     keys of the largest field, 4 to 2^31 (default 100000)\n"
    "  -o FILE       where to write (default: standard output)\n"
    "  --json FILE   write what was planted as JSON\n"
    "  --help, --version\n";

typedef struct settings {
    hotbed_plant_settings plant;
    uint64_t rows;
    uint64_t skip;
    const char *output;
    const char *json;
} settings;

typedef struct summary {
    double auc;
    double logloss;
    double click_rate;
} summary;

static int fail(int code, const char *format, ...) {
    va_list arguments;
    fputs("hotbed-datagen: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    return code;
}

static bool parse_count(const char *text, uint64_t *value) {
    char *end;
    errno = 0;
    if (text[0] < '0' || text[0] > '9')
        return false;
    *value = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0';
}

static bool parse_real(const char *text, double *value) {
    char *end;
    *value = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*value);
}

/* -1 to go on, else the program's exit code. */
static int parse_options(int argc, char **argv, settings *s) {
    enum { ROWS = 256, SKIP, SEED, ALPHA, VOCAB, JSON, HELP, VERSION };
    static const struct option options[] = {
        {"rows", required_argument, NULL, ROWS},
        {"skip", required_argument, NULL, SKIP},
        {"seed", required_argument, NULL, SEED},
        {"alpha", required_argument, NULL, ALPHA},
        {"vocab", required_argument, NULL, VOCAB},
        {"json", required_argument, NULL, JSON},
        {"help", no_argument, NULL, HELP},
        {"version", no_argument, NULL, VERSION},
        {NULL, 0, NULL, 0}};
    bool has_rows = false;
    int option;
    int index = 0;
    while ((option = getopt_long(argc, argv, "o:", options, &index)) != -1) {
        bool ok = true;
        switch (option) {
        case ROWS:
            ok = has_rows = parse_count(optarg, &s->rows);
            break;
        case SKIP:
            ok = parse_count(optarg, &s->skip);
            break;
        case SEED:
            ok = parse_count(optarg, &s->plant.seed);
            break;
        case ALPHA:
            ok = parse_real(optarg, &s->plant.alpha) && s->plant.alpha > 0 && s->plant.alpha <= 10;
            break;
        case VOCAB:
            ok = parse_count(optarg, &s->plant.vocab) && s->plant.vocab >= 4 &&
                 s->plant.vocab <= (uint64_t)1 << 31;
            break;
        case JSON:
            s->json = optarg;
            break;
        case 'o':
            s->output = optarg;
            break;
        case HELP:
            fputs(usage_text, stdout);
            return EXIT_SUCCESS;
        case VERSION:
            puts("hotbed-datagen " HOTBED_VERSION);
            return EXIT_SUCCESS;
        default:
            return EXIT_USAGE; /* getopt_long() has said why */
        }
        if (!ok)
            return fail(EXIT_USAGE, "'%s' is not a value of --%s", optarg, options[index].name);
    }
    if (optind < argc)
        return fail(EXIT_USAGE, "unexpected '%s'; see --help", argv[optind]);
    if (!has_rows)
        return fail(EXIT_USAGE, "--rows is missing; see --help");
    return -1;
}

static bool write_rows(
    const settings *s, const hotbed_plant *plant, FILE *file, float *logits, uint8_t *labels,
    summary *sum) {
    static char chunk[CHUNK_BYTES];
    size_t used = 0;
    for (uint64_t i = 0; i < s->rows; i++) {
        hotbed_plant_row row;
        hotbed_plant_draw(plant, s->skip + i, &row);
        logits[i] = row.logit;
        labels[i] = row.label;
        sum->click_rate += row.label;
        sum->logloss += hotbed_fm_logistic(row.logit, row.label).loss;
        used += hotbed_plant_print(&row, chunk + used);
        if (used > CHUNK_BYTES - HOTBED_PLANT_LINE || i + 1 == s->rows) {
            if (fwrite(chunk, 1, used, file) != used)
                return false;
            used = 0;
        }
    }
    if (s->rows > 0) {
        sum->click_rate /= (double)s->rows;
        sum->logloss /= (double)s->rows;
    }
    return fflush(file) == 0;
}

static bool write_json(const settings *s, const summary *sum) {
    FILE *file = fopen(s->json, "w");
    if (file == NULL)
        return false;
    fprintf(
        file,
        "{\"rows\": %llu, \"skip\": %llu, \"seed\": %llu, \"alpha\": %.17g, \"vocab\": %llu, "
        "\"click_rate\": %.17g, \"auc\": %.17g, \"logloss\": %.17g}\n",
        (unsigned long long)s->rows, (unsigned long long)s->skip, (unsigned long long)s->plant.seed,
        s->plant.alpha, (unsigned long long)s->plant.vocab, sum->click_rate, sum->auc,
        sum->logloss);
    bool ok = ferror(file) == 0;
    return fclose(file) == 0 && ok;
}

int main(int argc, char **argv) {
    settings s = {.plant = {.seed = 1, .alpha = 1.05, .vocab = 100000}};
    summary sum = {0};
    int code = parse_options(argc, argv, &s);
    if (code >= 0)
        return code;
    if (s.rows > SIZE_MAX / sizeof(float) || s.skip > ((uint64_t)1 << 62) - s.rows)
        return fail(EXIT_USAGE, "--rows and --skip are too large");
    hotbed_plant plant;
    hotbed_plant_init(&plant, &s.plant);
    float *logits = malloc(s.rows * sizeof *logits + 1);
    uint8_t *labels = malloc(s.rows + 1);
    FILE *file = s.output == NULL ? stdout : fopen(s.output, "wb");
    code = EXIT_FAILURE;
    if (logits == NULL || labels == NULL)
        fail(code, "no memory for %llu rows", (unsigned long long)s.rows);
    else if (file == NULL)
        fail(code, "%s: %s", s.output, strerror(errno));
    else if (!write_rows(&s, &plant, file, logits, labels, &sum))
        fail(code, "%s: %s", s.output == NULL ? "standard output" : s.output, strerror(errno));
    else if (!hotbed_auc(s.rows, logits, labels, &sum.auc))
        fail(code, "no memory to sort %llu scores", (unsigned long long)s.rows);
    else if (s.json != NULL && !write_json(&s, &sum))
        fail(code, "%s: %s", s.json, strerror(errno));
    else
        code = EXIT_SUCCESS;
    if (code == EXIT_SUCCESS)
        fprintf(
            stderr,
            "hotbed-datagen: %llu rows, click rate %.4f; the planted model: AUC %.4f, logloss "
            "%.4f\n",
            (unsigned long long)s.rows, sum.click_rate, sum.auc, sum.logloss);
    if (file != NULL && file != stdout && fclose(file) != 0 && code == EXIT_SUCCESS)
        code = fail(EXIT_FAILURE, "%s: %s", s.output, strerror(errno));
    free(logits);
    free(labels);
    return code;
}
