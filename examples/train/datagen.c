/* examples/train/datagen.c - hotbed-datagen: click logs in Criteo's format from a planted model.
 *
 * A row is a function of its number, so threads make parts of the log side by side, and the main
 * thread writes the parts in order. The log does not depend on the number of threads. */
#include "examples/train/auc.h"
#include "examples/train/log_reader.h"
#include "examples/train/model_core.h"
#include "examples/train/options.h"
#include "examples/train/plant.h"
#include "hotbed/version.h"

#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { EXIT_USAGE = 2, PART_ROWS = 2048, THREADS_MOST = 256 };

static const char usage_text[] =
    "usage: hotbed-datagen --rows N [options]\n"
    "Write a click log in Criteo's format (label, 13 integers, 26 categories, tab-separated). The\n"
    "labels are drawn from a planted factorization machine; also print the AUC of that model.\n"
    "\n"
    "  --rows N      rows to write\n"
    "  --skip N      begin at row N: fresh rows of the same model, for evaluation (default 0)\n"
    "  --seed S      seed of the model and the rows (default 1)\n"
    "  --alpha X     exponent of the keys' power law (default 1.05)\n"
    "  --vocab N     keys of the largest field, 4 to 2^31 (default 100000)\n"
    "  -o FILE       file to write (default: standard output)\n"
    "  --threads N   threads, 1 to 256 (default: one per core); the rows do not depend on N\n"
    "  --json FILE   write the properties of the planted model as JSON\n"
    "  --help, --version\n";

typedef struct settings {
    hotbed_plant_settings plant;
    uint64_t rows;
    uint64_t skip;
    uint64_t threads;
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
    char message[2048];
    va_start(arguments, format);
    (void)vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    (void)fprintf(stderr, "hotbed-datagen: %s\n", message); /* one write */
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

/* Flush the output. Returns the exit status. */
static int flush_output(void) {
    if (fflush(stdout) == 0 && ferror(stdout) == 0)
        return EXIT_SUCCESS;
    return fail(EXIT_USAGE, "cannot write to the standard output");
}

/* Returns -1 to go on, or the program's exit code. */
static int parse_options(int argc, char **argv, settings *s) {
    enum { ROWS = 256, SKIP, SEED, ALPHA, VOCAB, THREADS, JSON, HELP, VERSION };
    static const struct option options[] = {
        {"rows", required_argument, NULL, ROWS},   {"skip", required_argument, NULL, SKIP},
        {"seed", required_argument, NULL, SEED},   {"alpha", required_argument, NULL, ALPHA},
        {"vocab", required_argument, NULL, VOCAB}, {"threads", required_argument, NULL, THREADS},
        {"json", required_argument, NULL, JSON},   {"help", no_argument, NULL, HELP},
        {"version", no_argument, NULL, VERSION},   {NULL, 0, NULL, 0}};
    static char program[] = "hotbed-datagen"; /* begins messages of getopt_long() */
    bool has_rows = false;
    int option;
    int index = 0;
    argv[0] = program;
    while ((option = getopt_long(argc, argv, "o:", options, &index)) != -1) {
        if (option >= ROWS && hotbed_option_is_abbreviated(argv, options[index].name))
            return EXIT_USAGE;
        bool ok = true;
        const char *values = "0 to 18446744073709551615";
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
            values = "a number above 0 and up to 10";
            ok = parse_real(optarg, &s->plant.alpha) && s->plant.alpha > 0 && s->plant.alpha <= 10;
            break;
        case VOCAB:
            values = "4 to 2147483648";
            ok = parse_count(optarg, &s->plant.vocab) && s->plant.vocab >= 4 &&
                 s->plant.vocab <= (uint64_t)1 << 31;
            break;
        case THREADS:
            values = "1 to 256";
            ok = parse_count(optarg, &s->threads) && s->threads >= 1 && s->threads <= THREADS_MOST;
            break;
        case JSON:
            values = "a file";
            s->json = optarg;
            ok = optarg[0] != '\0';
            break;
        case 'o':
            s->output = optarg;
            break;
        case HELP:
            fputs(usage_text, stdout);
            return flush_output();
        case VERSION:
            puts("hotbed-datagen " HOTBED_VERSION);
            return flush_output();
        default:
            return EXIT_USAGE; /* getopt_long() has printed why */
        }
        if (!ok)
            return fail(
                EXIT_USAGE, "'%s' is not a value of --%s, which takes %s", optarg,
                options[index].name, values);
    }
    if (optind < argc)
        return fail(EXIT_USAGE, "unexpected '%s'; see --help", argv[optind]);
    if (!has_rows)
        return fail(EXIT_USAGE, "--rows is missing; see --help");
    return -1;
}

/* A part of the log: PART_ROWS rows, or fewer in the last part. */
typedef struct part {
    bool made; /* under the mutex */
    size_t length;
    double clicks;
    double loss;
    char *text;
} part;

typedef struct maker {
    const settings *s;
    const hotbed_plant *plant;
    float *logits; /* [rows] */
    uint8_t *labels;
    uint64_t num_parts;
    uint32_t num_buffers;
    part *buffers; /* part i is in buffers[i % num_buffers] */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint64_t claimed, written; /* counts of parts; under the mutex */
    bool stopping;
} maker;

static void make_part(const maker *m, uint64_t number, part *p) {
    uint64_t begin = number * PART_ROWS, end = begin + PART_ROWS;
    if (end > m->s->rows)
        end = m->s->rows;
    p->length = 0;
    p->clicks = 0;
    p->loss = 0;
    for (uint64_t i = begin; i < end; i++) {
        hotbed_plant_row row;
        hotbed_plant_draw(m->plant, m->s->skip + i, &row);
        m->logits[i] = row.logit;
        m->labels[i] = row.label;
        p->clicks += row.label;
        p->loss += hotbed_fm_logistic(row.logit, row.label).loss;
        p->length += hotbed_plant_print(&row, p->text + p->length);
    }
}

static void *make_parts(void *argument) {
    maker *m = argument;
    pthread_mutex_lock(&m->mutex);
    while (!m->stopping && m->claimed < m->num_parts) {
        if (m->claimed >= m->written + m->num_buffers) {
            pthread_cond_wait(&m->changed, &m->mutex);
            continue;
        }
        uint64_t number = m->claimed++;
        part *p = &m->buffers[number % m->num_buffers];
        pthread_mutex_unlock(&m->mutex);
        make_part(m, number, p);
        pthread_mutex_lock(&m->mutex);
        p->made = true;
        pthread_cond_broadcast(&m->changed);
    }
    pthread_mutex_unlock(&m->mutex);
    return NULL;
}

/* Write the parts in order, as soon as they are made. */
static bool write_parts(maker *m, FILE *file, summary *sum) {
    for (uint64_t i = 0; i < m->num_parts; i++) {
        part *p = &m->buffers[i % m->num_buffers];
        pthread_mutex_lock(&m->mutex);
        while (!p->made)
            pthread_cond_wait(&m->changed, &m->mutex);
        pthread_mutex_unlock(&m->mutex);
        if (fwrite(p->text, 1, p->length, file) != p->length)
            return false;
        sum->click_rate += p->clicks;
        sum->logloss += p->loss;
        pthread_mutex_lock(&m->mutex);
        p->made = false;
        m->written++;
        pthread_cond_broadcast(&m->changed);
        pthread_mutex_unlock(&m->mutex);
    }
    if (m->s->rows > 0) {
        sum->click_rate /= (double)m->s->rows;
        sum->logloss /= (double)m->s->rows;
    }
    return fflush(file) == 0;
}

static bool create_buffers(maker *m, uint32_t threads) {
    m->num_buffers = 2 * threads + 1;
    m->buffers = calloc(m->num_buffers, sizeof *m->buffers);
    for (uint32_t i = 0; m->buffers != NULL && i < m->num_buffers; i++)
        if ((m->buffers[i].text = malloc((size_t)PART_ROWS * HOTBED_PLANT_LINE)) == NULL)
            return false;
    return m->buffers != NULL;
}

/* Errors are in errno. */
static bool write_rows(
    const settings *s, const hotbed_plant *plant, FILE *file, float *logits, uint8_t *labels,
    summary *sum) {
    pthread_t threads[THREADS_MOST];
    uint32_t wanted = s->threads > 0 ? (uint32_t)s->threads : hotbed_log_reader_cores(),
             started = 0;
    wanted = wanted < THREADS_MOST ? wanted : THREADS_MOST;
    maker m = {
        .s = s,
        .plant = plant,
        .logits = logits,
        .labels = labels,
        .num_parts = s->rows / PART_ROWS + (s->rows % PART_ROWS != 0)};
    pthread_mutex_init(&m.mutex, NULL);
    pthread_cond_init(&m.changed, NULL);
    bool ok = create_buffers(&m, wanted);
    for (int error = 0; ok && started < wanted; started++)
        if ((error = pthread_create(&threads[started], NULL, make_parts, &m)) != 0) {
            errno = error;
            ok = false;
            break;
        }
    ok = ok && write_parts(&m, file, sum);
    int why = errno;
    pthread_mutex_lock(&m.mutex);
    m.stopping = true;
    pthread_cond_broadcast(&m.changed);
    pthread_mutex_unlock(&m.mutex);
    for (uint32_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    for (uint32_t i = 0; m.buffers != NULL && i < m.num_buffers; i++)
        free(m.buffers[i].text);
    free(m.buffers);
    pthread_cond_destroy(&m.changed);
    pthread_mutex_destroy(&m.mutex);
    errno = why;
    return ok;
}

static bool write_json(const settings *s, const summary *sum) {
    FILE *file = fopen(s->json, "we");
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
    FILE *file = s.output == NULL ? stdout : fopen(s.output, "wbe");
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
