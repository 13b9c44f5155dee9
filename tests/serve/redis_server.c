/* tests/serve/redis_server.c - starts a redis-server, and kills it. */
#define _DEFAULT_SOURCE /* usleep() */
#include "tests/serve/redis_server.h"

#include "tests/support/harness.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static bool answers(const redis_server *s) {
    redisContext *context = redisConnectUnix(s->socket);
    redisReply *reply =
        context == NULL || context->err != 0 ? NULL : redisCommand(context, "GET none");
    const bool there = reply != NULL && reply->type == REDIS_REPLY_NIL; /* not still loading */
    if (reply != NULL)
        freeReplyObject(reply);
    if (context != NULL)
        redisFree(context);
    return there;
}

void redis_server_start(redis_server *s, const char *policy) {
    s->process = fork();
    CHECK(s->process >= 0);
    if (s->process == 0) {
        if (freopen("/dev/null", "w", stdout) == NULL || freopen("/dev/null", "w", stderr) == NULL)
            _exit(127); /* a pipe of the test's output must end with the test */
        execl(
            HOTBED_TEST_REDIS_SERVER, "redis-server", "--port", "0", "--unixsocket", s->socket,
            "--save", "", "--appendonly", "no", "--maxmemory-policy", policy, "--dir", s->directory,
            (char *)NULL);
        _exit(127);
    }
    for (int i = 0; i < 30000; i++) {
        if (answers(s))
            return;
        CHECK_EQ(waitpid(s->process, NULL, WNOHANG), 0);
        usleep(1000);
    }
    CHECK(false);
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
    redisContext *context = redisConnectUnix(s->socket);
    CHECK(context != NULL && context->err == 0);
    va_start(arguments, format);
    redisReply *reply = redisvCommand(context, format, arguments);
    va_end(arguments);
    CHECK(reply != NULL && reply->type != REDIS_REPLY_ERROR);
    freeReplyObject(reply);
    redisFree(context);
}
