/* base/host_pool.c - the thread pool that runs host bodies, shared by all streams.
 *
 * The worker thread of a stream offers a body with several ranges to the pool as a job, and works
 * on the job itself. One atomic counter assigns the ranges. Jobs of several streams run side by
 * side. A body with one range runs on the worker thread alone. Nothing is allocated after the
 * threads have started. The list of jobs is hidden from TSan (host_race.h): memory is ordered by
 * `published` and `finished` of each job. */
#define _GNU_SOURCE /* NOLINT(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp): affinity */
#include "base/host_pool.h"

#include "base/backend.h"
#include "base/host_race.h"
#include "base/thread.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

enum { THREADS_MAX = 1024 };

typedef struct job {
    hotbed_host_body body;
    const void *args;
    uint64_t n, grain, ranges;
    uint64_t next;      /* atomic: the next range to take */
    uint64_t published; /* atomic: publishes the worker thread's memory to the pool's threads */
    uint64_t finished; /* atomic: publishes the memory of the pool's threads to the worker thread */
    uint32_t users;    /* pool threads that work on the job; under the pool's lock */
    pthread_cond_t idle; /* users became 0 */
    struct job *after;
} job;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t work; /* a job was added, or stop was set */
    job *jobs;           /* jobs with ranges left, newest first */
    uint32_t holders;    /* number of streams */
    /* pool threads: HOTBED_THREADS - 1, because the stream's worker thread runs ranges too */
    uint32_t workers;
    bool stop;
    pthread_t threads[THREADS_MAX];
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER};

/* --- how many threads ----------------------------------------------------------------------- */

static unsigned usable_cores(void) {
    cpu_set_t cores;
    if (sched_getaffinity(0, sizeof cores, &cores) != 0)
        return 1;
    int count = CPU_COUNT(&cores);
    return count < 1 ? 1 : (unsigned)count;
}

/* The value of HOTBED_THREADS, or the number of usable cores. */
static hotbed_status wanted_threads(unsigned *out) {
    const char *text = getenv("HOTBED_THREADS");
    if (text == NULL || text[0] == '\0') {
        *out = usable_cores();
        return HOTBED_OK;
    }
    char *end = NULL;
    errno = 0;
    long count = strtol(text, &end, 10);
    if (errno != 0 || *end != '\0' || count < 1 || count > THREADS_MAX)
        return hotbed_fail_parameter(
            HOTBED_ERR_ARGUMENT, "HOTBED_THREADS",
            "HOTBED_THREADS is \"%s\", not a number in [1, %d]", text, (int)THREADS_MAX);
    *out = (unsigned)count;
    return HOTBED_OK;
}

unsigned hotbed_host_threads(void) {
    if (hotbed_forked())
        return 1;
    hotbed_race_lock(&pool.lock);
    unsigned threads = pool.workers + 1;
    bool running = pool.holders > 0;
    hotbed_race_unlock(&pool.lock);
    if (!running && wanted_threads(&threads) != HOTBED_OK)
        threads = usable_cores();
    return threads;
}

/* --- jobs ----------------------------------------------------------------------------------- */

static void run_ranges(job *j) {
    for (;;) {
        uint64_t range = hotbed_add_relaxed_u64(&j->next, 1);
        if (range >= j->ranges)
            return;
        uint64_t begin = range * j->grain;
        uint64_t end = range + 1 == j->ranges ? j->n : begin + j->grain;
        j->body(j->args, begin, end);
    }
}

/* Remove a job from the list; it may have been removed already. Called under the lock. */
static void unlist(const job *j) {
    for (job **link = &pool.jobs; *link != NULL; link = &(*link)->after) {
        if (*link == j) {
            *link = j->after;
            return;
        }
    }
}

/* Wait for a job and join it. NULL: the pool stops. */
static job *next_job(void) {
    hotbed_race_lock(&pool.lock);
    while (pool.jobs == NULL && !pool.stop)
        pthread_cond_wait(&pool.work, &pool.lock);
    job *j = pool.stop ? NULL : pool.jobs;
    if (j != NULL)
        j->users++;
    hotbed_race_unlock(&pool.lock);
    return j;
}

static void leave_job(job *j) {
    hotbed_race_lock(&pool.lock);
    unlist(j); /* no ranges are left */
    if (--j->users == 0)
        pthread_cond_signal(&j->idle);
    hotbed_race_unlock(&pool.lock);
}

static void *worker(void *unused) {
    for (job *j = next_job(); j != NULL; j = next_job()) {
        (void)hotbed_load_acquire_u64(&j->published); /* pairs with hotbed_pool_run() */
        run_ranges(j);
        hotbed_add_release_u64(&j->finished, 1); /* pairs with await_job() */
        leave_job(j);
    }
    return unused;
}

/* Add the job to the list and wake threads for it. False: the pool has no threads. */
static bool offer_job(job *j) {
    hotbed_race_lock(&pool.lock);
    uint64_t helpers = j->ranges - 1 < pool.workers ? j->ranges - 1 : pool.workers;
    if (helpers > 0) {
        pthread_cond_init(&j->idle, NULL);
        j->after = pool.jobs;
        pool.jobs = j;
        for (uint64_t i = 0; i < helpers; i++)
            pthread_cond_signal(&pool.work);
    }
    hotbed_race_unlock(&pool.lock);
    return helpers > 0;
}

/* Wait until no other thread works on the job. */
static void await_job(job *j) {
    hotbed_race_lock(&pool.lock);
    unlist(j);
    while (j->users > 0)
        pthread_cond_wait(&j->idle, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
    pthread_cond_destroy(&j->idle);
    hotbed_race_show();
    (void)hotbed_load_acquire_u64(&j->finished);
}

void hotbed_pool_run(uint64_t n, uint64_t grain, hotbed_host_body body, const void *args) {
    if (grain == 0 || grain >= n) {
        body(args, 0, n);
        return;
    }
    job j = {
        .body = body,
        .args = args,
        .n = n,
        .grain = grain,
        .ranges = n / grain + (n % grain != 0),
    };
    hotbed_store_release_u64(&j.published, 1);
    bool offered = offer_job(&j);
    run_ranges(&j);
    if (offered)
        await_job(&j);
}

/* --- threads -------------------------------------------------------------------------------- */

/* Held while threads start or stop, so that two streams never do it at once. */
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

static void set_pool(uint32_t workers, bool stop) {
    hotbed_race_lock(&pool.lock);
    pool.workers = workers;
    pool.stop = stop;
    pthread_cond_broadcast(&pool.work);
    hotbed_race_unlock(&pool.lock);
}

/* Join the first `count` threads. */
static void stop_threads(uint32_t count) {
    set_pool(0, true);
    for (uint32_t i = 0; i < count; i++)
        pthread_join(pool.threads[i], NULL);
    set_pool(0, false);
}

static hotbed_status start_threads(uint32_t count) {
    uint32_t started = 0;
    int error = 0;
    while (started < count && error == 0) {
        error = hotbed_thread_start(&pool.threads[started], worker, NULL);
        if (error == 0)
            started++;
    }
    if (error == 0) {
        set_pool(started, false);
        return HOTBED_OK;
    }
    stop_threads(started);
    return hotbed_fail_os(
        HOTBED_ERR_MEMORY, error, "thread %u of %u of the host backend cannot be started",
        started + 1, count);
}

/* Change the number of streams that hold the pool, and return it. Called under `turn`. */
static uint32_t hold_pool(int32_t change) {
    hotbed_race_lock(&pool.lock);
    pool.holders += (uint32_t)change;
    uint32_t holders = pool.holders;
    hotbed_race_unlock(&pool.lock);
    return holders;
}

hotbed_status hotbed_pool_acquire(void) {
    unsigned threads = 1;
    hotbed_status status = HOTBED_OK;
    pthread_mutex_lock(&turn);
    if (hold_pool(0) == 0) {
        status = wanted_threads(&threads);
        HOTBED_THEN(status, start_threads(threads - 1));
    }
    if (status == HOTBED_OK)
        (void)hold_pool(1);
    pthread_mutex_unlock(&turn);
    return status;
}

void hotbed_pool_release(void) {
    pthread_mutex_lock(&turn);
    if (hold_pool(-1) == 0)
        stop_threads(pool.workers); /* changed under `turn` only */
    pthread_mutex_unlock(&turn);
}
