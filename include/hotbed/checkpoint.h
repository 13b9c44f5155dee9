/* hotbed/checkpoint.h - save storages in HDF5, and load them, on any number of ranks.
 *
 * A checkpoint is a directory.  It is written under a temporary name and renamed when it is complete and
 * on disk, so a name that exists is a whole checkpoint.  Inside, one HDF5 file a rank holds that rank's
 * rows in canonical order (logical bucket, then key), and MANIFEST, written last, names every extent with
 * its digest.  docs/formats.md has the bytes; h5py and h5dump read the files as they are.
 *
 * One rank saves with hotbed_checkpoint_save(); several do when they all call it with a communicator.  The
 * directory is on a file system that all of them see.  Ranks that talk through something else save in steps:
 *   rank 0       hotbed_checkpoint_begin()      and tells all ranks the id
 *   every rank   hotbed_checkpoint_put()        and tells rank 0 its status
 *   rank 0       hotbed_checkpoint_commit(), or hotbed_checkpoint_abort() when one has failed
 * Any number of ranks then loads it, each its share.
 */
#ifndef HOTBED_CHECKPOINT_H
#define HOTBED_CHECKPOINT_H

#include "hotbed/comm.h"
#include "hotbed/route.h"
#include "hotbed/storage.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which rows a rank has: those that the tables' routes give it.  {0} is all of them: one rank.
 *
 * STATIC tables of several ranks are routed CONTINUOUS, have room for hotbed_route_rows() rows or more, and
 * keep local ids (hotbed_route_local()); files have the keys.  HASH tables keep keys, whatever the rule. */
typedef struct hotbed_checkpoint_share {
    uint32_t rank;
    uint32_t world;             /* 0: 1 */
    const hotbed_route *routes; /* [tables of the storage], all of `world` ranks; NULL: one rank */
} hotbed_checkpoint_share;

/* What the last checkpoint had, so that the next can be an increment: 24 bytes of host memory for each row
 * of the rank.  Opaque; owned by the caller; for one call at a time.  Every strategy, mode and way to change rows is
 * seen, since each row's digest is compared.
 *
 * A save, or a snapshot's write, that fails leaves it: the next increment has everything since the same parent.  Whether
 * the commit that follows a put succeeds it does not learn, so it then keeps what the checkpoint before had too, as many
 * bytes again, and the next increment may be after either of the two. */
typedef struct hotbed_checkpoint_mark hotbed_checkpoint_mark;

/* Errors: ARGUMENT, MEMORY, UNSUPPORTED. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_checkpoint_mark_create(hotbed_checkpoint_mark **out);
HOTBED_API void hotbed_checkpoint_mark_destroy(hotbed_checkpoint_mark *mark); /* NULL is allowed */

typedef struct hotbed_checkpoint_arena
    hotbed_checkpoint_arena; /* opaque; see hotbed_checkpoint_arena_create() */

/* Call hotbed_checkpoint_options_init(), then set fields. */
typedef struct hotbed_checkpoint_options {
    uint32_t size; /* set by init */
    uint64_t step; /* recorded; the caller's count of training steps */
    const void
        *extra; /* [extra_bytes] host bytes of the caller's own: the dense model, the reader's
                        * place; kept and given back as they are */
    uint64_t extra_bytes; /* at most 1 GiB; rank 0's are kept */
    hotbed_checkpoint_share share;
    hotbed_checkpoint_mark *mark; /* remembers what is saved; NULL: nothing does */
    const char *parent; /* path of the checkpoint that `mark` is of: save an increment, what changed
                         * since then and what keys are gone; NULL: everything */
    hotbed_comm *comm;  /* all its ranks save together; `share` has its rank and size.  NULL: one */
    hotbed_checkpoint_arena *arena; /* snapshots: memory for the image; NULL: the snapshot's own */
} hotbed_checkpoint_options;

static inline void hotbed_checkpoint_options_init(hotbed_checkpoint_options *options) {
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
}

/* Write the storage to the new directory `path`; what changed in it since options->parent, where that is
 * set.  Synchronous: returns when it is on disk under its
 * name.  On any error nothing named `path` exists, and the storage is unchanged.  (One exception: when the
 * name cannot be put on disk, and cannot be taken back either; the text then says so.)
 * Errors: ARGUMENT, STATE (`path` exists; tickets hold pins; the mark is not of the parent), IO (no space, with
 * path and reason), CORRUPT (the parent), MEMORY, UNSUPPORTED (a build without HDF5).  With a communicator all
 * ranks fail when one does, with its text, and COMM (a rank is gone). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_checkpoint_save(
    const char *path, hotbed_storage *storage, const hotbed_checkpoint_options *options,
    hotbed_stream *stream);

/* What the ranks of one save have in common.  Plain numbers, to be sent as they are. */
typedef struct hotbed_checkpoint_id {
    uint64_t low, high;
} hotbed_checkpoint_id;

/* Begin a save by several ranks.  Synchronous, as the next three.
 * Errors: ARGUMENT, STATE (`path` exists), IO, MEMORY, UNSUPPORTED. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_checkpoint_begin(const char *path, hotbed_checkpoint_id *id);

/* Write the rows of this rank's storage; options->share says which rank it is.  Ranks may do so at the
 * same time.  Their tables, steps, seeds and optimisers are the same.  Errors: as
 * hotbed_checkpoint_save(). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_checkpoint_put(
    const char *path, hotbed_checkpoint_id id, hotbed_storage *storage,
    const hotbed_checkpoint_options *options, hotbed_stream *stream);

/* All `world` ranks have put theirs: give the checkpoint its name.  On any error it has none, and what was
 * written is removed.  Errors: ARGUMENT, STATE (ranks put different tables or steps, or `path` exists
 * now), IO, CORRUPT, MEMORY, UNSUPPORTED. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_checkpoint_commit(const char *path, hotbed_checkpoint_id id, uint32_t world);

/* Remove what the ranks have written, as far as that can be done; none of them writes any more. */
HOTBED_API void hotbed_checkpoint_abort(const char *path, hotbed_checkpoint_id id, uint32_t world);

/* --- snapshots ---------------------------------------------------------------------------------------- */

/* One cut of a rank's storage.  Opaque; owned by the caller. */
typedef struct hotbed_checkpoint_snapshot hotbed_checkpoint_snapshot;

/* Memory for images that is allocated and touched once, and goes from one snapshot to the next.  What training waits
 * for is then
 *   device memory   a copy on the device, at the speed of its memory.  Rows that are all in device memory
 *                   (HBM_DIRECT) go there.  The write brings the image to the host, on a stream of its own
 *                   beside training, and from then on the next snapshot may have the device memory.
 *   pinned memory   a copy over the link, in one go.  What has no place in device memory goes there, also when it is
 *                   brought from there; not rows of an external store.
 * Columns (keys, weights, each state, ...) of the tables go, in order, to what is left of it, each as a whole;
 * what finds no place is in host memory of the snapshot's own, as without an arena, and so is what would go to a part
 * that another snapshot has: none fails for that.  hotbed_checkpoint_snapshot_bytes() says what a
 * storage would need.
 *
 * For snapshots of any storages on the stream's backend and device; it outlives them.  Synchronous.
 *
 *   device_bytes  in  0: none
 *   pinned_bytes  in  0: none
 *
 * Errors: ARGUMENT, MEMORY (with the bytes asked for), DEVICE, STATE (the stream records a graph), UNSUPPORTED. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_checkpoint_arena_create(
    uint64_t device_bytes, uint64_t pinned_bytes, hotbed_stream *stream,
    hotbed_checkpoint_arena **out);
HOTBED_API void hotbed_checkpoint_arena_destroy(
    hotbed_checkpoint_arena *arena); /* NULL is allowed */

/* Copy all rows, scores, counts and state to options->arena, or to host memory, as much as they are.  Synchronous; the
 * caller orders it as a save, and trains on as soon as it returns: what training waits for is this copy, not the disk.
 * options->mark and parent are used when it is written, not before: the mark, which stays until then, has to be of the
 * parent then, which may still be written now.  With a parent the snapshot is an increment: what changed from the parent
 * to the cut, and keys that were erased or evicted.  A snapshot that is destroyed and not written leaves the mark as it
 * was.  options->comm is not for snapshots.
 * With an arena it uses the stream's workspace, half a byte a slot of the largest table, at most 32 MiB: the first
 * call on a stream allocates.
 * Errors: ARGUMENT (an arena of another backend or device), STATE (tickets hold pins; rows came to a table or left it
 * meanwhile), MEMORY, DEVICE, UNSUPPORTED. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_checkpoint_snapshot_take(
    hotbed_storage *storage, const hotbed_checkpoint_options *options, hotbed_stream *stream,
    hotbed_checkpoint_snapshot **out);
HOTBED_API void hotbed_checkpoint_snapshot_destroy(
    hotbed_checkpoint_snapshot *snapshot); /* NULL is allowed */

/* Bytes of its image in memory of `kind`, 256 for each begun 256 of a column: DEVICE and PINNED are those of the arena,
 * PAGEABLE what found no place there.  Not while it is written. */
HOTBED_API uint64_t hotbed_checkpoint_snapshot_bytes(
    const hotbed_checkpoint_snapshot *snapshot, hotbed_memory_kind kind);

/* Write it as hotbed_checkpoint_save() would have; needs neither storage nor stream, so any thread may do it,
 * one at a time.  Or, as one of several ranks, as hotbed_checkpoint_put().  Synchronous.  It can be written again, an
 * increment only after a failure: the mark is then of what was written.
 * Errors: theirs. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_checkpoint_snapshot_write(hotbed_checkpoint_snapshot *snapshot, const char *path);
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_checkpoint_snapshot_put(
    hotbed_checkpoint_snapshot *snapshot, const char *path, hotbed_checkpoint_id id);

/* --- loading ------------------------------------------------------------------------------------------ */

/* Fill the storage's tables from the checkpoint at `path`, tables matched by name, every block's digest
 * checked before its rows are used.  Keys that the storage had are removed first.  Synchronous.
 * The storage may have other capacities, eviction, scores and backend than the one that was saved; dim, dtype,
 * key type and kind of optimiser must be the same.  Times of TIMESTAMP_LFU tables go to such tables only, which
 * without them have those of new rows.  A table that evicts keeps the rows of the highest scores
 * when not all fit; one that does not is FULL.  A table that evicts comes to be full to its last slot, with 3 % more
 * rows than its capacity: one of that size then has no place for each of them, since they come in another order
 * (it kept 98.8 % of a million, which is more than its capacity; with 5 % more capacity 99.94 %).
 *
 *   step         out  may be NULL
 *   extra        out  host buffer of extra_bytes; may be NULL
 *   extra_bytes  in/out  in: room in `extra`; out: bytes saved.  May be NULL
 *
 * Errors: ARGUMENT (room too small, with the bytes needed), IO, CORRUPT (file, extent, block), STATE
 * (table missing or of another shape, with both values; tickets hold pins), FULL, MEMORY, UNSUPPORTED.
 * After an error in the middle of the rows, the storage's tables are empty. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_checkpoint_load(
    const char *path, hotbed_storage *storage, uint64_t *step, void *extra, uint64_t *extra_bytes,
    hotbed_stream *stream);

/* How to load.  Call hotbed_checkpoint_load_options_init(), then set fields. */
typedef struct hotbed_checkpoint_load_options {
    uint32_t size; /* set by init */
    uint32_t num_increments;
    const char *const
        *increments; /* [num_increments] paths: the first is the increment after `path`,
                                    * each other one that after the one before */
    hotbed_checkpoint_share share;
    hotbed_comm *
        comm; /* all its ranks load together; `share` has its rank and size; NULL: this rank alone */
} hotbed_checkpoint_load_options;

static inline void hotbed_checkpoint_load_options_init(hotbed_checkpoint_load_options *options) {
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
}

/* The same, with the increments after the checkpoint, and for the rows of one rank.  Where the checkpoint has
 * as many ranks and the same routes, a rank reads its own shard.  Else the ranks of a communicator read a share each,
 * cut where blocks of the files begin, and send each other the rows, so that each byte is read once; without one each
 * reads the rows of static tables that it needs, and all of hash tables, of which it drops what is not its own.  An increment that is missing, there
 * twice, or not of this checkpoint, is refused before anything changes.
 * Errors: the same, STATE (`path` is an increment; the increments do not follow each other), and ARGUMENT
 * (`share`: rank not below world, routes of other worlds, a static table that is not CONTINUOUS). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_checkpoint_load_with(
    const char *path, hotbed_storage *storage, const hotbed_checkpoint_load_options *options,
    uint64_t *step, void *extra, uint64_t *extra_bytes, hotbed_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
