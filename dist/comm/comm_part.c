/* dist/comm/comm_part.c - which bytes the parts of a batch send where, and whether two ranks agree. */
#include "dist/comm/comm.h"

#include "base/text.h"

#include <inttypes.h>
#include <string.h>

/* Where part p begins: packed, or as `offsets` say. */
static uint64_t offset_of(const uint64_t *offsets, const uint64_t *bytes, uint32_t p) {
    if (offsets != NULL)
        return offsets[p];
    uint64_t offset = 0;
    for (uint32_t i = 0; i < p; i++)
        offset += bytes[i];
    return offset;
}

hotbed_comm_span hotbed_comm_range(const hotbed_comm_part *part, uint32_t size, uint32_t p) {
    uint64_t floats = part->bytes / sizeof(float);
    uint64_t most = (floats + size - 1) / size; /* floats of one rank */
    uint64_t begin = p * most < floats ? p * most : floats;
    uint64_t end = begin + most < floats ? begin + most : floats;
    return (hotbed_comm_span){begin * sizeof(float), (end - begin) * sizeof(float)};
}

const uint8_t *hotbed_comm_sends(
    const hotbed_comm *comm, const hotbed_comm_part *part, uint32_t p, uint64_t *bytes) {
    hotbed_comm_span range;
    *bytes = part->bytes;
    switch (part->kind) {
    case HOTBED_PART_GATHER:
        return part->send;
    case HOTBED_PART_EQUAL:
        return part->send + p * part->bytes;
    case HOTBED_PART_COUNTS:
        *bytes = part->send_bytes[p];
        return part->send + offset_of(part->send_offsets, part->send_bytes, p);
    case HOTBED_PART_ROOT:
        if (comm->rank != part->root || p == part->root)
            *bytes = 0;
        return part->recv;
    case HOTBED_PART_SCATTER:
        range = hotbed_comm_range(part, comm->size, p);
        *bytes = range.bytes;
        return part->send + range.offset;
    case HOTBED_PART_COLLECT:
        break;
    }
    range = hotbed_comm_range(part, comm->size, comm->rank);
    *bytes = range.bytes;
    return part->recv + range.offset;
}

uint8_t *hotbed_comm_receives(
    const hotbed_comm *comm, const hotbed_comm_part *part, uint32_t p, uint64_t *bytes) {
    hotbed_comm_span range;
    if (part->own_stays && p == comm->rank)
        return (uint8_t *)(uintptr_t)hotbed_comm_sends(comm, part, p, bytes);
    *bytes = part->bytes;
    switch (part->kind) {
    case HOTBED_PART_GATHER:
    case HOTBED_PART_EQUAL:
        return part->recv + p * part->bytes;
    case HOTBED_PART_COUNTS:
        *bytes = part->recv_bytes[p];
        return part->recv + offset_of(part->recv_offsets, part->recv_bytes, p);
    case HOTBED_PART_ROOT:
        if (comm->rank == part->root || p != part->root)
            *bytes = 0;
        return part->recv;
    case HOTBED_PART_SCATTER:
        range = hotbed_comm_range(part, comm->size, comm->rank);
        *bytes = range.bytes;
        return part->recv + p * range.bytes;
    case HOTBED_PART_COLLECT:
        break;
    }
    range = hotbed_comm_range(part, comm->size, p);
    *bytes = range.bytes;
    return part->recv + range.offset;
}

hotbed_comm_title hotbed_comm_title_of(uint64_t run, const hotbed_comm_batch *batch) {
    hotbed_comm_title title;
    hotbed_writer w = {title.text, sizeof title.text, 0};
    hotbed_write(&w, "operation %" PRIu64, run);
    if (batch != NULL)
        hotbed_write(
            &w, ", %s with tag %u",
            hotbed_comm_operation_name((hotbed_comm_operation)batch->operation), batch->tag);
    return title;
}

static bool compare(
    hotbed_comm *comm, const hotbed_comm_batch *batch, uint32_t p,
    const hotbed_comm_header *theirs) {
    bool same_parts = batch->num_parts == theirs->num_parts;
    for (uint32_t i = 0; same_parts && i < batch->num_parts; i++)
        same_parts = (uint32_t)batch->parts[i].kind == theirs->kinds[i];
    if (!same_parts || batch->operation != theirs->operation || batch->tag != theirs->tag) {
        comm->tags[1] = theirs->tag;
        return hotbed_comm_record_fault(
            comm, HOTBED_COMM_MISMATCH, (int32_t)p, comm->runs,
            "operation %" PRIu64 ": rank %u does %s of %u parts with tag %u, rank %u does %s of %u "
            "parts with tag %u",
            comm->runs, comm->rank,
            hotbed_comm_operation_name((hotbed_comm_operation)batch->operation), batch->num_parts,
            batch->tag, p, hotbed_comm_operation_name((hotbed_comm_operation)theirs->operation),
            theirs->num_parts, theirs->tag);
    }
    for (uint32_t i = 0; i < batch->num_parts; i++) {
        uint64_t bytes;
        (void)hotbed_comm_receives(comm, &batch->parts[i], p, &bytes);
        if (bytes != theirs->bytes[i])
            return hotbed_comm_record_fault(
                comm, HOTBED_COMM_MISMATCH, (int32_t)p, comm->runs,
                "%s, part %u: rank %u sends %" PRIu64 " bytes, rank %u expects %" PRIu64,
                hotbed_comm_title_of(comm->runs, batch).text, i, p, theirs->bytes[i], comm->rank,
                bytes);
    }
    return true;
}

void hotbed_comm_header_of(
    const hotbed_comm *comm, const hotbed_comm_batch *batch, uint32_t p, hotbed_comm_header *out) {
    memset(out, 0, sizeof *out); /* clear the padding, which is sent too */
    out->run = comm->runs;
    out->operation = batch->operation;
    out->tag = batch->tag;
    out->num_parts = batch->num_parts;
    for (uint32_t i = 0; i < batch->num_parts; i++) {
        out->kinds[i] = (uint32_t)batch->parts[i].kind;
        (void)hotbed_comm_sends(comm, &batch->parts[i], p, &out->bytes[i]);
    }
}

bool hotbed_comm_check_header(
    hotbed_comm *comm, const hotbed_comm_batch *batch, uint32_t p,
    const hotbed_comm_header *theirs) {
    if (theirs->run == comm->runs)
        return compare(comm, batch, p, theirs);
    hotbed_comm_batch other = {.operation = theirs->operation, .tag = theirs->tag};
    comm->tags[1] = other.tag;
    return hotbed_comm_record_fault(
        comm, HOTBED_COMM_MISMATCH, (int32_t)p, comm->runs, "rank %u is at %s; rank %u is at %s", p,
        hotbed_comm_title_of(theirs->run, &other).text, comm->rank,
        hotbed_comm_title_of(comm->runs, batch).text);
}

void hotbed_comm_copy_own(const hotbed_comm *comm, const hotbed_comm_batch *batch) {
    for (uint32_t i = 0; i < batch->num_parts; i++) {
        uint64_t bytes;
        const uint8_t *from = hotbed_comm_sends(comm, &batch->parts[i], comm->rank, &bytes);
        uint8_t *to = hotbed_comm_receives(comm, &batch->parts[i], comm->rank, &bytes);
        if (bytes > 0 && to != from)
            memcpy(to, from, bytes);
    }
}
