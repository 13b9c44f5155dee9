/* tests/support/emulate.c - the tile emulator: each lane is a fibre.
 *
 * A scheduler runs each lane until its next tile call.  When all lanes of a tile wait at the same call, it computes the
 * call's result and lets them go on.
 *
 * makecontext() and swapcontext() start a fibre once; its later runs and all other switches are jumps, because
 * swapcontext() makes a system call, and under ASan clears the shadow of a whole stack.  A fibre that has ended waits
 * for the next run.
 */
#define _XOPEN_SOURCE 700
#include "tests/support/emulate.h"

#include "tests/support/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

enum { MAX_LANES = 32, STACK_BYTES = 512 << 10 };

typedef enum call_kind {
    CALL_NONE,
    CALL_BALLOT,
    CALL_SHUFFLE,
} call_kind;

typedef enum lane_state {
    LANE_READY,
    LANE_WAITING, /* at a tile call */
    LANE_ENDED,
} lane_state;

/* A fibre, or the scheduler, while another one runs. */
typedef void *place[5]; /* as __builtin_setjmp() wants it */

typedef struct fibre {
    place at;
    bool started; /* it goes on at `at` */
    ucontext_t context;
    unsigned char stack[STACK_BYTES];
} fibre;

typedef struct lane {
    fibre *fibre;
    lane_state state;
    call_kind call; /* the call in which the lane waits */
    uint32_t width;
    uint32_t source;
    uint64_t value; /* the lane's argument, then the call's result */
    uint64_t calls; /* made so far */
} lane;

/* The current run of this thread; NULL outside of a run. */
typedef struct run {
    place scheduler;
    lane lanes[MAX_LANES];
    uint32_t count;
    uint32_t current;
    void (*function)(void *arg);
    void *arg;
    bool interleaved; /* tiles switch at HOTBED_POINT()s */
    uint64_t left;    /* number of HOTBED_POINT()s until the next switch */
} run;

static _Thread_local run *active;
static _Thread_local fibre *fibres; /* [MAX_LANES], kept for the next run */
static _Thread_local char report[256];

static const char *call_name(call_kind call) {
    return call == CALL_BALLOT ? "ballot or sync" : call == CALL_SHUFFLE ? "shuffle" : "no call";
}

/* Under ASan, a call that does not return would clear the shadow of the stack that is left, and later errors there
 * would not be seen. */
#define JUMPS __attribute__((noinline, no_sanitize("address")))

JUMPS static void leave(place to) {
    __builtin_longjmp(to, 1);
}

/* Go on at `to`, until something jumps to `from`. */
JUMPS static void jump_now(place from, place to) {
    if (__builtin_setjmp(from) == 0)
        leave(to);
}

JUMPS static void start_now(place from, fibre *f) {
    ucontext_t unused;
    if (__builtin_setjmp(from) == 0)
        (void)swapcontext(&unused, &f->context);
}

/* volatile: the compiler must not conclude from the functions which registers and memory they leave alone. */
static void (*const volatile jump)(place from, place to) = jump_now;
static void (*const volatile start)(place from, fibre *f) = start_now;

static void lane_main(void) {
    for (;;) {
        run *r = active;
        lane *self = &r->lanes[r->current];
        r->function(r->arg);
        self->state = LANE_ENDED;
        jump(self->fibre->at, r->scheduler);
    }
}

/* Run a lane until its next call, its next switch at a HOTBED_POINT(), or its end. */
static void run_lane(run *r, uint32_t number) {
    fibre *f = r->lanes[number].fibre;
    r->current = number;
    if (f->started) {
        jump(r->scheduler, f->at);
        return;
    }
    f->started = true;
    CHECK(getcontext(&f->context) == 0);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK_BYTES;
    f->context.uc_link = NULL;
    makecontext(&f->context, lane_main, 0);
    start(r->scheduler, f);
}

/* Wait until all lanes of the tile have made this call.  Returns its result for this lane. */
static uint64_t wait_for_tile(call_kind call, uint32_t width, uint64_t value, uint32_t source) {
    run *r = active;
    lane *self = &r->lanes[r->current];
    if (width > r->count || (width & (width - 1)) != 0)
        hotbed_check_failed(
            __FILE__, __LINE__, "tile call of width %u among %u lanes", width, r->count);
    if (source >= width)
        hotbed_check_failed(__FILE__, __LINE__, "shuffle from lane %u of %u", source, width);
    self->call = call;
    self->width = width;
    self->value = value;
    self->source = source;
    self->state = LANE_WAITING;
    self->calls++;
    jump(self->fibre->at, r->scheduler);
    return self->value;
}

void hotbed_emulate_point(void) {
    run *r = active;
    if (r == NULL || !r->interleaved || --r->left > 0)
        return;
    jump(r->lanes[r->current].fibre->at, r->scheduler);
}

uint32_t hotbed_emulate_lane(void) {
    return active != NULL ? active->current : 0;
}

uint32_t hotbed_emulate_rank(uint32_t width) {
    return hotbed_emulate_lane() & (width - 1);
}

uint32_t hotbed_emulate_ballot(uint32_t width, bool predicate) {
    if (active == NULL || width == 1)
        return predicate ? 1 : 0;
    return (uint32_t)wait_for_tile(CALL_BALLOT, width, predicate, 0);
}

uint64_t hotbed_emulate_shuffle(uint32_t width, uint64_t value, uint32_t source) {
    if (active == NULL || width == 1)
        return value;
    return wait_for_tile(CALL_SHUFFLE, width, value, source);
}

/* If all lanes in [first, first + width) wait at the same call, complete it and return true. */
static bool serve_tile(run *r, uint32_t first, uint32_t width) {
    const lane *leader = &r->lanes[first];
    uint64_t values[MAX_LANES], votes = 0;
    for (uint32_t i = 0; i < width; i++) {
        const lane *l = &r->lanes[first + i];
        if (l->state != LANE_WAITING || l->call != leader->call || l->width != width)
            return false;
        values[i] = l->value;
        votes |= (l->value != 0 ? (uint64_t)1 : 0) << i;
    }
    for (uint32_t i = 0; i < width; i++) {
        lane *l = &r->lanes[first + i];
        l->value = l->call == CALL_BALLOT ? votes : values[l->source];
        l->state = LANE_READY;
    }
    return true;
}

/* Complete each call at which all lanes of a tile wait.  Returns whether there was one. */
static bool serve(run *r) {
    bool served = false;
    for (uint32_t i = 0; i < r->count;) {
        const lane *l = &r->lanes[i];
        uint32_t width = l->state == LANE_WAITING ? l->width : 1;
        if (l->state == LANE_WAITING && (i & (width - 1)) == 0 && serve_tile(r, i, width)) {
            served = true;
            i += width;
        } else {
            i++;
        }
    }
    return served;
}

/* Write to `report` which lane waits and which lane of its tile does not reach the same call. */
static void describe(const run *r) {
    uint32_t a = 0, b = 0;
    while (a < r->count && r->lanes[a].state != LANE_WAITING)
        a++;
    uint32_t first = a - a % r->lanes[a].width;
    for (b = first; b < first + r->lanes[a].width; b++) {
        const lane *l = &r->lanes[b];
        if (l->state != LANE_WAITING || l->call != r->lanes[a].call ||
            l->width != r->lanes[a].width)
            break;
    }
    const lane *x = &r->lanes[a], *y = &r->lanes[b];
    if (y->state == LANE_ENDED)
        (void)snprintf(
            report, sizeof report,
            "lane %u waits at its tile call %llu (%s, width %u), but lane %u has ended", a,
            (unsigned long long)x->calls, call_name(x->call), x->width, b);
    else
        (void)snprintf(
            report, sizeof report,
            "lanes %u and %u are at different tile calls: %s of width %u, %s of width %u", a, b,
            call_name(x->call), x->width, call_name(y->call), y->width);
}

/* Run each ready lane until its next call or its end.  Returns whether a lane was ready. */
static bool run_ready(run *r, bool falling) {
    bool any = false;
    for (uint32_t i = 0; i < r->count; i++) {
        uint32_t number = falling ? r->count - 1 - i : i;
        if (r->lanes[number].state != LANE_READY)
            continue;
        any = true;
        run_lane(r, number);
    }
    return any;
}

static bool all_ended(const run *r) {
    for (uint32_t i = 0; i < r->count; i++)
        if (r->lanes[i].state != LANE_ENDED)
            return false;
    return true;
}

static run *start_run(uint32_t lanes, void (*function)(void *arg), void *arg) {
    CHECK(active == NULL);
    CHECK(lanes >= 1 && lanes <= MAX_LANES && (lanes & (lanes - 1)) == 0);
    run *r = calloc(1, sizeof *r);
    CHECK(r != NULL);
    r->count = lanes;
    r->function = function;
    r->arg = arg;
    active = r;
    if (fibres == NULL) {
        fibres = malloc(MAX_LANES * sizeof *fibres);
        CHECK(fibres != NULL);
        for (uint32_t i = 0; i < MAX_LANES; i++)
            fibres[i].started = false;
    }
    for (uint32_t i = 0; i < lanes; i++)
        r->lanes[i].fibre = &fibres[i];
    return r;
}

static void end_run(run *r) {
    active = NULL;
    for (uint32_t i = 0; i < r->count; i++)
        if (r->lanes[i].state != LANE_ENDED)
            r->lanes[i].fibre->started = false; /* in the middle of a function: start it anew */
    free(r);
}

const char *hotbed_emulate_try(uint32_t lanes, void (*function)(void *arg), void *arg) {
    run *r = start_run(lanes, function, arg);
    const char *problem = NULL;
    for (bool falling = false; problem == NULL; falling = !falling) {
        (void)run_ready(r, falling);
        if (all_ended(r))
            break;
        if (!serve(r)) {
            describe(r);
            problem = report;
        }
    }
    end_run(r);
    return problem;
}

void hotbed_emulate_run(uint32_t lanes, void (*function)(void *arg), void *arg) {
    const char *problem = hotbed_emulate_try(lanes, function, arg);
    if (problem != NULL)
        hotbed_check_failed(__FILE__, __LINE__, "%s", problem);
}

/* Run the lanes [first, first + width) for r->left points, or until all have ended. */
static void run_tile(run *r, uint32_t first, uint32_t width) {
    while (r->left > 0) {
        bool any = false, ended = true;
        for (uint32_t i = first; i < first + width && r->left > 0; i++) {
            ended = ended && r->lanes[i].state == LANE_ENDED;
            if (r->lanes[i].state != LANE_READY)
                continue;
            any = true;
            run_lane(r, i);
        }
        if (any)
            continue;
        if (ended)
            return;
        if (!serve(r)) {
            describe(r);
            hotbed_check_failed(__FILE__, __LINE__, "%s", report);
        }
    }
}

void hotbed_emulate_interleaved(
    uint32_t lanes, uint32_t width, void (*function)(void *arg), void *arg, uint64_t *random) {
    CHECK(width >= 1 && (width & (width - 1)) == 0 && width <= lanes);
    run *r = start_run(lanes, function, arg);
    r->interleaved = true;
    const uint32_t tiles = lanes / width;
    for (uint32_t tile = 0; !all_ended(r); tile = (tile + 1) % tiles) {
        const uint64_t draw = hotbed_test_random_r(random);
        r->left = 1 + (draw >> 16) % ((uint64_t)1 << draw % (tile == 0 ? 13 : 9));
        run_tile(r, tile * width, width);
    }
    end_run(r);
}
