/* tests/serve/redis_server.h - a redis-server of a test, on a Unix socket. */
#pragma once

#include <hiredis/hiredis.h>
#include <stdbool.h>
#include <sys/types.h>

typedef struct redis_server {
    char socket[128], directory[256]; /* of its snapshot */
    unsigned port;                    /* of a node of a cluster; 0: it is none, and has no port */
    const char *password;             /* NULL: it needs none */
    const char *renamed; /* a command that it does not have under its name; NULL: none */
    pid_t process;       /* 0: it does not run */
} redis_server;

/* Start a server, which reads the snapshot in its directory, if there is one, and wait until it answers. It ends with
 * this process at the latest. */
void redis_server_start(redis_server *server, const char *policy);

/* Start two nodes of a cluster, with half of the slots each, and wait until it works. */
void redis_server_start_cluster(redis_server nodes[2]);

/* Kill it (-9), if it runs. */
void redis_server_kill(redis_server *server);

/* Send a command from a connection of its own, and check that it is no error. */
void redis_server_call(const redis_server *server, const char *format, ...);

/* Number of its keys. */
long long redis_server_keys(const redis_server *server);
