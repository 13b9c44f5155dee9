/* dist/comm/comm_rendezvous.c - find the address of the rendezvous: from the environment, or from rank 0
 * over another communicator. */
#include "dist/comm/comm_link.h"

#include "base/error.h"
#include "base/hash_core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The cookie of a rendezvous by environment: a hash of the word that the launcher gives all ranks of a
 * job, and no other job. Without a word all jobs have one cookie. */
static uint64_t read_cookie(void) {
    const char *word = getenv("HOTBED_JOB");
    if (word == NULL || *word == '\0')
        word = getenv("TORCHELASTIC_RUN_ID"); /* torchrun's --rdzv-id */
    return hotbed_fnv(HOTBED_FNV_FIRST, word, word == NULL ? 0 : strlen(word));
}

static hotbed_status read_number(const char *name, uint32_t least, uint32_t most, uint32_t *out) {
    const char *text = getenv(name);
    if (text == NULL || *text == '\0')
        return hotbed_fail_parameter(
            HOTBED_ERR_ARGUMENT, name,
            "the environment has no %s: a launcher such as torchrun sets RANK, WORLD_SIZE, "
            "MASTER_ADDR and MASTER_PORT",
            name);
    char *end = NULL;
    unsigned long value = strtoul(text, &end, 10);
    if (*end != '\0' || *text == '-' || value < least || value > most)
        return hotbed_fail_parameter(
            HOTBED_ERR_ARGUMENT, name, "the environment's %s, \"%s\", is no number in [%u, %u]",
            name, text, least, most);
    *out = (uint32_t)value;
    return HOTBED_OK;
}

static hotbed_status read_environment(uint32_t *rank, uint32_t *size, hotbed_link_place *place) {
    const char *host = getenv("MASTER_ADDR");
    HOTBED_TRY(read_number("WORLD_SIZE", 1, HOTBED_COMM_RANKS_MAX, size));
    HOTBED_TRY(read_number("RANK", 0, *size - 1, rank));
    HOTBED_TRY(read_number("MASTER_PORT", 1, 65535, &place->port));
    if (host == NULL || *host == '\0' || strlen(host) >= HOTBED_LINK_HOST_BYTES)
        return hotbed_fail_parameter(
            HOTBED_ERR_ARGUMENT, "MASTER_ADDR",
            "the environment has no MASTER_ADDR, or one of over %d bytes",
            HOTBED_LINK_HOST_BYTES - 1);
    (void)snprintf(place->hosts[0], HOTBED_LINK_HOST_BYTES, "%s", host);
    place->cookie = read_cookie();
    return HOTBED_OK;
}

hotbed_status hotbed_link_read(
    const hotbed_comm *bootstrap, uint32_t *rank, uint32_t *size, hotbed_link_place *place) {
    memset(place, 0, sizeof *place);
    if (bootstrap == NULL)
        return read_environment(rank, size, place);
    if (bootstrap->ops->transport == HOTBED_TRANSPORT_NCCL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "bootstrap is a communicator of NCCL itself");
    if (hotbed_comm_has_failed(bootstrap))
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "bootstrap has failed: %s", bootstrap->fault.text);
    *rank = bootstrap->rank;
    *size = bootstrap->size;
    return HOTBED_OK;
}

hotbed_status hotbed_link_find(
    hotbed_comm *bootstrap, uint32_t rank, hotbed_link_place *place, int *listener) {
    hotbed_link_place here;
    hotbed_status status = HOTBED_OK;
    if (rank == 0)
        status = hotbed_link_listen(place->port, listener, &here);
    if (bootstrap == NULL)
        return status;
    if (rank == 0 && status == HOTBED_OK)
        *place = here;
    if (bootstrap->ops->run != NULL) { /* else there is one rank */
        hotbed_comm_batch batch = hotbed_comm_batch_of(bootstrap, HOTBED_COMM_BROADCAST, 1);
        batch.parts[0] = (hotbed_comm_part){
            .kind = HOTBED_PART_ROOT,
            .bytes = sizeof *place,
            .recv = (uint8_t *)place,
        };
        if (!hotbed_comm_run_now(bootstrap, &batch))
            return hotbed_comm_fail(bootstrap);
    }
    HOTBED_TRY(status);
    if (place->port == 0)
        return hotbed_fail(HOTBED_ERR_COMM, "rank 0 cannot listen for the other ranks");
    return HOTBED_OK;
}
