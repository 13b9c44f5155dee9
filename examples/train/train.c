/* examples/train/train.c - hotbed-train: a click-through model on Criteo-format logs. */
#include "examples/train/trainer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void print_summary(const hotbed_trainer *t) {
    uint64_t rows = t->place.rows - t->first_rows;
    hotbed_train_say(
        "trained %llu rows in %.1f s (%.0f rows/s), %llu steps, mean loss %.5f",
        (unsigned long long)rows, t->seconds, t->seconds > 0 ? (double)rows / t->seconds : 0.0,
        (unsigned long long)(t->place.steps - t->first_step),
        t->place.rows > 0 ? t->place.loss / (double)t->place.rows : 0.0);
    if (t->options.eval != NULL)
        hotbed_train_say(
            "%s: %llu rows, AUC %.5f, logloss %.5f", t->options.eval,
            (unsigned long long)t->scores.rows, t->auc, t->logloss);
    if (t->bad_lines > 0)
        hotbed_train_say("%llu malformed lines left out", (unsigned long long)t->bad_lines);
}

/* Find out now, not after hours of training. */
static bool check_files(hotbed_trainer *t) {
    const hotbed_train_options *o = &t->options;
    const char *const inputs[] = {o->data, o->eval};
    const char *const outputs[] = {o->json, o->trace};
    for (int i = 0; i < 2; i++)
        if (inputs[i] != NULL && strcmp(inputs[i], "-") != 0 && access(inputs[i], R_OK) != 0)
            return hotbed_trainer_fail(t, "%s: %s", inputs[i], strerror(errno));
    for (int i = 0; i < 2; i++) {
        FILE *file = outputs[i] == NULL ? NULL : fopen(outputs[i], "a");
        if (file != NULL)
            fclose(file);
        else if (outputs[i] != NULL)
            return hotbed_trainer_fail(t, "%s: %s", outputs[i], strerror(errno));
    }
    return true;
}

static bool work(hotbed_trainer *t) {
    const hotbed_train_options *o = &t->options;
    if (o->load != NULL && !hotbed_trainer_load(t))
        return false;
    if (o->resume && !hotbed_trainer_resume(t))
        return false;
    if (o->save != NULL && !hotbed_trainer_prepare_save(t))
        return false;
    if (!o->quiet)
        hotbed_train_say(
            "%s backend, %u tables of %u elements, %s, rate %g, batches of %u",
            hotbed_backend_name(t->backend), (unsigned)HOTBED_CRITEO_FIELDS, o->dim + 1,
            hotbed_optimizer_name(o->optimizer), (double)t->place.learning_rate, o->batch);
    if (!hotbed_trainer_run(t) || (o->eval != NULL && !hotbed_trainer_eval(t)))
        return false;
    if (!o->quiet)
        print_summary(t);
    if (o->json != NULL && !hotbed_trainer_report(t, o->json))
        return false;
    if (o->trace != NULL && !hotbed_trace_write(t->trace, o->trace))
        return hotbed_trainer_fail(t, "%s: %s", o->trace, strerror(errno));
    return true;
}

int main(int argc, char **argv) {
    static hotbed_trainer trainer; /* large, and streams' calls point into it */
    hotbed_train_options options;
    int code = hotbed_train_options_parse(argc, argv, &options);
    if (code >= 0)
        return code;
    trainer.options = options;
    bool ok = check_files(&trainer) && hotbed_trainer_create(&trainer, &options) && work(&trainer);
    if (!ok)
        hotbed_train_say("%s", trainer.error);
    hotbed_trainer_destroy(&trainer);
    return ok ? HOTBED_EXIT_OK : HOTBED_EXIT_FAILED;
}
