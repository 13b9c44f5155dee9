/* tests/serve/redis_server.c - starts a redis-server, and kills it. */
#define _DEFAULT_SOURCE /* usleep() */
#include "tests/serve/redis_server.h"

#include "tests/support/harness.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Returns NULL without a connection. */
static redisContext *connect_to(const redis_server *s) {
    redisContext *context = redisConnectUnix(s->socket);
    if (context != NULL && context->err == 0 && s->password != NULL) {
        redisReply *reply = redisCommand(context, "AUTH %s", s->password);
        if (reply != NULL)
            freeReplyObject(reply);
    }
    if (context == NULL || context->err == 0)
        return context;
    redisFree(context);
    return NULL;
}

/* Returns the answer, or NULL without one; the caller frees it. */
static redisReply *ask(const redis_server *s, const char *command) {
    redisContext *context = connect_to(s);
    redisReply *reply = context == NULL ? NULL : redisCommand(context, command);
    if (context != NULL)
        redisFree(context);
    return reply;
}

/* Whether it has loaded its snapshot. The cluster of a node may not work yet. */
static bool is_up(const redis_server *s) {
    redisReply *reply = ask(s, "PING");
    const bool up = reply != NULL && reply->type == REDIS_REPLY_STATUS;
    if (reply != NULL)
        freeReplyObject(reply);
    return up;
}

/* A server that is to be started, by a thread that lives as long as the program: Linux kills a child when the thread
 * ends that forked it. So a test that fails, or is killed, leaves no server. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pid_t program;              /* that has the thread; 0: none */
    const redis_server *server; /* NULL: none */
    const char *policy;
    pid_t process; /* of the last one */
} forker = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .changed = PTHREAD_COND_INITIALIZER,
};

static _Noreturn void become(const redis_server *s, const char *policy, pid_t parent) {
    char port[16], nodes[32];
    snprintf(port, sizeof port, "%u", s->port);
    snprintf(nodes, sizeof nodes, "nodes-%u.conf", s->port);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
        _exit(127);
    if (freopen("/dev/null", "w", stdout) == NULL || freopen("/dev/null", "w", stderr) == NULL)
        _exit(127); /* a pipe of the test's output must end with the test */
    execl(
        HOTBED_TEST_REDIS_SERVER, "redis-server", "--port", port, "--unixsocket", s->socket,
        "--save", "", "--appendonly", "no", "--maxmemory-policy", policy, "--dir", s->directory,
        "--cluster-enabled", s->port == 0 ? "no" : "yes", "--cluster-config-file", nodes, "--bind",
        "127.0.0.1", "--requirepass", s->password == NULL ? "" : s->password,
        s->renamed == NULL ? (char *)NULL : "--rename-command", s->renamed, "RENAMED",
        (char *)NULL);
    _exit(127);
}

static void *fork_servers(void *unused) {
    (void)unused;
    const pid_t parent = getpid();
    pthread_mutex_lock(&forker.lock);
    for (;;) {
        while (forker.server == NULL)
            pthread_cond_wait(&forker.changed, &forker.lock);
        forker.process = fork();
        if (forker.process == 0)
            become(forker.server, forker.policy, parent);
        forker.server = NULL;
        pthread_cond_broadcast(&forker.changed);
    }
    return NULL;
}

/* Returns false if it ends: the port is another program's. */
static bool start(redis_server *s, const char *policy) {
    pthread_mutex_lock(&forker.lock);
    if (forker.program != getpid()) {
        pthread_t thread;
        CHECK_EQ(pthread_create(&thread, NULL, fork_servers, NULL), 0);
        CHECK_EQ(pthread_detach(thread), 0);
        forker.program = getpid();
    }
    forker.server = s;
    forker.policy = policy;
    pthread_cond_broadcast(&forker.changed);
    while (forker.server != NULL)
        pthread_cond_wait(&forker.changed, &forker.lock);
    s->process = forker.process;
    pthread_mutex_unlock(&forker.lock);
    CHECK(s->process > 0);
    for (int i = 0; i < 30000; i++) {
        if (is_up(s))
            return true;
        if (waitpid(s->process, NULL, WNOHANG) != 0)
            return false;
        usleep(1000);
    }
    return false;
}

void redis_server_start(redis_server *s, const char *policy) {
    CHECK(start(s, policy));
}

static bool works(const redis_server *s) {
    redisReply *reply = ask(s, "CLUSTER INFO");
    const bool all = reply != NULL && reply->type == REDIS_REPLY_STRING &&
                     strstr(reply->str, "cluster_state:ok") != NULL &&
                     strstr(reply->str, "cluster_slots_assigned:16384") != NULL;
    if (reply != NULL)
        freeReplyObject(reply);
    return all;
}

void redis_server_start_cluster(redis_server nodes[2]) {
    for (int n = 0; n < 2; n++) {
        bool up = false;
        for (int i = 0; i < 100 && !up; i++) { /* with 10000 more it has the port of the bus */
            nodes[n].port = 10000 + (unsigned)((getpid() * 7 + n * 131 + i * 17) % 20000);
            up = start(&nodes[n], "noeviction");
        }
        CHECK(up);
        for (int first = n * 8192; first < (n + 1) * 8192; first += 8) /* Redis 5 has no ranges */
            redis_server_call(
                &nodes[n], "CLUSTER ADDSLOTS %d %d %d %d %d %d %d %d", first, first + 1, first + 2,
                first + 3, first + 4, first + 5, first + 6, first + 7);
    }
    redis_server_call(&nodes[1], "CLUSTER SET-CONFIG-EPOCH 2");
    redis_server_call(&nodes[0], "CLUSTER MEET 127.0.0.1 %u", nodes[1].port);
    for (int i = 0; i < 60000 && !(works(&nodes[0]) && works(&nodes[1])); i++)
        usleep(1000);
    CHECK(works(&nodes[0]) && works(&nodes[1]));
}

void redis_server_kill(redis_server *s) {
    if (s->process <= 0)
        return;
    CHECK_EQ(kill(s->process, SIGKILL), 0);
    CHECK_EQ(waitpid(s->process, NULL, 0), s->process);
    (void)unlink(s->socket);
    s->process = 0;
}

void redis_server_call(const redis_server *s, const char *format, ...) {
    va_list arguments;
    redisContext *context = connect_to(s);
    CHECK(context != NULL);
    va_start(arguments, format);
    redisReply *reply = redisvCommand(context, format, arguments);
    va_end(arguments);
    CHECK(reply != NULL && reply->type != REDIS_REPLY_ERROR);
    freeReplyObject(reply);
    redisFree(context);
}

long long redis_server_keys(const redis_server *s) {
    redisReply *reply = ask(s, "DBSIZE");
    CHECK(reply != NULL && reply->type == REDIS_REPLY_INTEGER);
    const long long keys = reply->integer;
    freeReplyObject(reply);
    return keys;
}
