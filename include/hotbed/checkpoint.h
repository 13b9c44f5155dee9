/* hotbed/checkpoint.h - save a model's storages in HDF5 files, and load them, on any number of ranks.
 *
 * Experimental: hotbed_checkpoint_begin(), hotbed_checkpoint_put(), hotbed_checkpoint_commit(),
 * hotbed_checkpoint_abort(), hotbed_checkpoint_arena_create(), hotbed_checkpoint_arena_destroy(),
 * hotbed_checkpoint_snapshot_bytes(), hotbed_checkpoint_snapshot_put(). Stable: all other calls.
 *
 * Programs that train or serve tables need it to stop and go on later. A checkpoint is a directory.
 * It has the tables of any number of storages, and blobs: named bytes of the caller, for example
 * the dense part of the model. It is written under a temporary name, and renamed when it is complete
 * and on disk, so a name that exists is a complete checkpoint of all of them. Inside, one HDF5 file per rank
 * holds that rank's rows in canonical order (logical bucket, then key). MANIFEST, which is written last, lists
 * every extent with its digest. docs/formats.md describes the bytes; h5py and h5dump read the files directly.
 *
 * Save a storage of one rank, then what changed since, and load both:
 *
 *     hotbed_checkpoint_options options = {.size = sizeof options};
 *     status = hotbed_checkpoint_mark_create(&options.mark);
 *     options.step = 1000;
 *     status = hotbed_checkpoint_save("run/1000", &storage, 1, &options, stream);
 *     options.step = 2000;
 *     options.parent = "run/1000";
 *     status = hotbed_checkpoint_save("run/2000", &storage, 1, &options, stream);
 *
 *     const char *increments[] = {"run/2000"};
 *     hotbed_checkpoint_load_options load = {
 *         .size = sizeof load, .num_increments = 1, .increments = increments};
 *     status = hotbed_checkpoint_load("run/1000", &storage, 1, &load, NULL, stream);
 *
 * Several ranks save together if all of them call hotbed_checkpoint_save() with a communicator. All
 * ranks must see the directory in their file system. Ranks that communicate by other means save in
 * steps:
 *   rank 0       hotbed_checkpoint_begin(), then sends the id to all ranks
 *   every rank   hotbed_checkpoint_put(), then sends its status to rank 0
 *   rank 0       hotbed_checkpoint_commit(), or hotbed_checkpoint_abort() if a rank failed
 * Any number of ranks can then load the checkpoint, each its share of the rows.
 *
 * Saving uses libhdf5 to lay out HDF5's metadata in memory. The program may use libhdf5 too: its
 * settings and open files are not affected. If libhdf5 was built without thread safety, the program
 * must not call it while another of its threads saves. */
#ifndef HOTBED_CHECKPOINT_H
#define HOTBED_CHECKPOINT_H

#include "hotbed/comm.h"
#include "hotbed/route.h"
#include "hotbed/storage.h"

HOTBED_BEGIN_DECLS

/* The rows of a rank: the keys that the tables' routes assign to it. {0}: a single rank, which has
 * all rows.
 *
 * With several ranks, STATIC tables are routed CONTINUOUS or ROUND_ROBIN with the table's rows, have
 * a capacity of hotbed_route_rows() rows or more, and store local ids (hotbed_route_local()); the files contain
 * the keys. HASH tables store keys, whatever the rule. They must not contain a key that the route assigns to
 * another rank, because loaders would not look for it in this rank's shard. Frozen: it has no size field, since
 * it is a member of options. */
typedef struct hotbed_checkpoint_share {
    uint32_t rank;
    uint32_t world; /* 0 means 1 */
    /* [tables of all storages, in order], each for `world` ranks; NULL: one rank. */
    const hotbed_route *routes;
} hotbed_checkpoint_share;

/* The keys and digests of the rows of the last checkpoint, so that the next one can be an
 * increment: 24 bytes of host memory for each row of the rank. Opaque; owned by the caller; used by
 * one call at a time. Changes are found by comparing each row's digest, so every eviction strategy,
 * every mode and every way to change a row is covered.
 *
 * If a save or a snapshot's write fails, the mark does not change: the next increment holds
 * everything since the same parent. A mark does not learn whether the commit after a put succeeds.
 * After a put it therefore also keeps the state of the checkpoint before, which doubles its memory,
 * and either of the two can be the parent of the next increment. If two full puts in a row are not
 * committed, the mark describes no checkpoint that exists: save a full one next. */
typedef struct hotbed_checkpoint_mark hotbed_checkpoint_mark;

/* Create an empty mark.
 * Errors: ARGUMENT, MEMORY, UNSUPPORTED. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_checkpoint_mark_create(hotbed_checkpoint_mark **out);
HOTBED_API void hotbed_checkpoint_mark_destroy(hotbed_checkpoint_mark *mark); /* NULL is allowed */

/* Opaque; see hotbed_checkpoint_arena_create(). */
typedef struct hotbed_checkpoint_arena hotbed_checkpoint_arena;

/* Bytes of the caller, for example the dense model or the reader's position, that are stored and
 * returned unchanged. Frozen: it has no size field, since it is an element of an array. */
typedef struct hotbed_checkpoint_blob {
    const char *name; /* as a table's name; no two of a checkpoint are equal */
    const void *data; /* [bytes] host memory */
    uint64_t bytes;
} hotbed_checkpoint_blob;

/* Options of a save or a snapshot. 0 is the default of every field but `size`. */
typedef struct hotbed_checkpoint_options {
    uint32_t size;                       /* sizeof(hotbed_checkpoint_options) */
    uint32_t num_blobs;                  /* at most 1024 */
    uint64_t step;                       /* recorded: the caller's count of training steps */
    const hotbed_checkpoint_blob *blobs; /* [num_blobs]; rank 0's are stored */
    /* [storages] names of the storages, as names of tables: information for people and tools. NULL:
     * "0", "1" and so on. */
    const char *const *names;
    hotbed_checkpoint_share share;
    hotbed_checkpoint_mark *mark; /* remembers what is saved; NULL: no mark is kept */
    /* Path of the checkpoint that `mark` describes: save an increment, which has the rows that
     * changed since then and the keys that are gone; NULL: save everything. */
    const char *parent;
    /* All ranks of this communicator save together, each with its rank and their number in `share`;
     * NULL: one rank saves. */
    hotbed_comm *comm;
    /* Snapshots: memory for the image; NULL: memory of the snapshot's own. */
    hotbed_checkpoint_arena *arena;
    /* Saves with a mark: of tables with track_changes, the mark remembers a position
     * (hotbed/changes.h) instead of a digest of each row. An increment then has the rows that were
     * written since the parent; a score alone is no change. If the storage no longer knows which keys
     * have left since, or over an external store which rows were changed, the save fails with STATE:
     * save a full checkpoint. Not for snapshots. */
    uint64_t touched; /* 0 or 1 */
} hotbed_checkpoint_options;

/* Write the storages to the new directory `path`, all or none. With options->parent, write only what
 * changed since then.
 *
 * Rows are written as the stream's work so far has left them. Tickets may hold pins, for example of
 * the next batch: new keys of its prefetch are then saved with their initial rows, and scores as the
 * prefetch has set them.
 *
 * With a communicator, all ranks pass the same path: its last part is compared, and what is before
 * it must lead to the same directory. Step, parent, names, tables, seeds and optimizers must be the
 * same, too; of the blobs, rank 0's are saved.
 *
 * Synchronous: returns when the checkpoint is on disk under its name. On any error nothing named
 * `path` exists, and the storages are unchanged. (One exception: if the new name cannot be synced to
 * disk and cannot be removed either; the error text then says so.)
 *
 *   storages  in  [num_storages], of the stream's backend and device. The names of all their tables
 *                 are distinct.
 *
 * Errors: ARGUMENT (also: `options` is NULL; `path` is in a checkpoint; a rank's path has another
 * last part than rank 0's, with both paths), STATE (`path` exists; the mark does not describe the
 * parent, or the parent has other tables, ranks or routes; a table has a key that its route assigns
 * to another rank, with table, key and both ranks; ranks differ in step, parent, tables, seed or
 * optimizer; the stream records a graph), IO (for example no space, with path and
 * reason; the directory that will contain `path` does not exist), CORRUPT (the parent), MEMORY, UNSUPPORTED (a
 * build without HDF5). With a communicator all ranks fail if one does, with its error text, and COMM is
 * possible (a rank is gone). A fault of an earlier call stays latched on the stream; the save does not fail for
 * it. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_checkpoint_save(
    const char *path, hotbed_storage *const *storages, uint32_t num_storages,
    const hotbed_checkpoint_options *options, hotbed_stream *stream);

/* Identifies one save by several ranks. Plain numbers, which can be sent as bytes. Frozen: it has
 * no size field. */
typedef struct hotbed_checkpoint_id {
    uint64_t low, high;
} hotbed_checkpoint_id;

/* Begin a save by several ranks. Synchronous, like the next three functions.
 * Errors: ARGUMENT, STATE (`path` exists), IO, MEMORY, UNSUPPORTED. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_checkpoint_begin(const char *path, hotbed_checkpoint_id *id);

/* Write the rows of this rank's storages; options->share names the rank. Ranks may call it at the
 * same time. Names, tables, steps, parents, seeds and optimizers must be the same on all ranks. Of `path`,
 * only the directory that contains it is used. Synchronous.
 * Errors: as hotbed_checkpoint_save(). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_checkpoint_put(
    const char *path, hotbed_checkpoint_id id, hotbed_storage *const *storages,
    uint32_t num_storages, const hotbed_checkpoint_options *options, hotbed_stream *stream);

/* Complete the checkpoint and give it its name, after all `world` ranks have put their rows. On any
 * error the name does not exist, and the files that the ranks wrote are removed, also if more or
 * fewer than `world` ranks wrote. Synchronous.
 * Errors: ARGUMENT, STATE (a rank has put nothing; ranks put different tables or steps, or belong
 * to another world; `path` exists now), IO (also if something else has removed files that were
 * written), CORRUPT, MEMORY, UNSUPPORTED. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_checkpoint_commit(const char *path, hotbed_checkpoint_id id, uint32_t world);

/* Remove what the ranks have written, as far as possible. No rank may still be writing. */
HOTBED_API void hotbed_checkpoint_abort(const char *path, hotbed_checkpoint_id id);

/* --- snapshots -------------------------------------------------------------------------------- */

/* A copy of a rank's storages at one point in time. Opaque; owned by the caller. */
typedef struct hotbed_checkpoint_snapshot hotbed_checkpoint_snapshot;

/* Create memory for snapshot images. It is allocated and touched once, and used by one snapshot
 * after the other. Training then waits only for
 *   device memory   a copy on the device, at the speed of its memory, for rows that are all in
 *                   device memory (HBM_DIRECT). The write copies the image to the host on a stream
 *                   of its own, beside training; from then on the next snapshot can use the device
 *                   memory.
 *   pinned memory   one copy over the link, for everything that does not fit into device memory.
 *                   The image in device memory is also copied there. Rows of an external store are
 *                   not.
 *
 * The columns of the tables (keys, weights, each state, ...) are placed in order, each as a whole,
 * in the memory that is left. A column that does not fit goes to host memory of the snapshot's own,
 * as without an arena, and so does a column whose part of the arena is used by another snapshot; a
 * snapshot never fails for this reason. hotbed_checkpoint_snapshot_bytes() reports how much is
 * needed.
 *
 * An arena serves snapshots of any storage on the stream's backend and device, and must outlive
 * them. Synchronous.
 *
 *   device_bytes  in  0: none
 *   pinned_bytes  in  0: none
 *
 * Errors: ARGUMENT, MEMORY (with the bytes asked for), DEVICE, STATE (the stream records a graph),
 * UNSUPPORTED. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_checkpoint_arena_create(
    uint64_t device_bytes, uint64_t pinned_bytes, hotbed_stream *stream,
    hotbed_checkpoint_arena **out);
HOTBED_API void hotbed_checkpoint_arena_destroy(
    hotbed_checkpoint_arena *arena); /* NULL is allowed */

/* Take a snapshot of the storages: copy all rows, scores, counts and state to options->arena, or to
 * as much host memory as they need.
 *
 * Synchronous. The caller orders it like a save, and may train on when it returns: training waits
 * for this copy, not for the disk. options->mark and options->parent are used when the snapshot is
 * written, not before. The mark must exist until then, and must describe the parent then; the
 * parent may still be in the process of being written now. With a parent, the snapshot is an
 * increment: the rows that changed between the parent and the snapshot, and the keys that were
 * erased or evicted. A snapshot that is destroyed without being written leaves the mark unchanged.
 * options->comm must be NULL.
 * With an arena it uses the stream's workspace: half a byte per slot of the largest table, at most
 * 32 MiB. The first call on a stream allocates.
 * Errors: ARGUMENT (an arena of another backend or device; a communicator), STATE (rows entered or
 * left a table during the call), MEMORY, DEVICE, UNSUPPORTED. A fault of an
 * earlier call stays latched on the stream; the snapshot does not fail for it. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_checkpoint_snapshot_take(
    hotbed_storage *const *storages, uint32_t num_storages,
    const hotbed_checkpoint_options *options, hotbed_stream *stream,
    hotbed_checkpoint_snapshot **out);
HOTBED_API void hotbed_checkpoint_snapshot_destroy(
    hotbed_checkpoint_snapshot *snapshot); /* NULL is allowed */

/* Return the size of the image in memory of `kind`, in bytes; each column is rounded up to a
 * multiple of 256. DEVICE and PINNED count memory of the arena, PAGEABLE the columns that did not
 * fit there. Must not be called while the snapshot is written. */
HOTBED_API uint64_t hotbed_checkpoint_snapshot_bytes(
    const hotbed_checkpoint_snapshot *snapshot, hotbed_memory_kind kind);

/* Write a snapshot to disk: the first function like hotbed_checkpoint_save(), the second, for one
 * of several ranks, like hotbed_checkpoint_put(). Synchronous. Needs neither storages nor stream, so
 * any thread may call it, one at a time. A snapshot can be written again, but an increment only
 * after a failure, because a successful write updates the mark.
 * Errors: as those functions. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_checkpoint_snapshot_write(hotbed_checkpoint_snapshot *snapshot, const char *path);
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_checkpoint_snapshot_put(
    hotbed_checkpoint_snapshot *snapshot, const char *path, hotbed_checkpoint_id id);

/* --- loading ---------------------------------------------------------------------------------- */

/* Options of a load. 0 is the default of every field but `size`. */
typedef struct hotbed_checkpoint_load_options {
    uint32_t size; /* sizeof(hotbed_checkpoint_load_options) */
    uint32_t num_increments;
    /* [num_increments] paths, in order: the first is the increment after `path`, each other one the
     * increment after the one before. */
    const char *const *increments;
    hotbed_checkpoint_share share;
    /* All its ranks load together, and `share` has its rank and size; NULL: this rank alone. The
     * paths must lead to the same checkpoint and increments on all ranks; a copy is the same. */
    hotbed_comm *comm;
    /* Set to the rows that were loaded, so that the next save can be an increment of the last path.
     * It becomes empty if not all rows of the checkpoint were loaded as they are, or if its tables,
     * ranks or routes differ from the storages'. NULL: none. */
    hotbed_checkpoint_mark *mark;
} hotbed_checkpoint_load_options;

/* The result of a load for a table. */
typedef enum hotbed_checkpoint_taken {
    HOTBED_TAKEN = 0,
    HOTBED_TAKEN_NEW = 1,     /* the checkpoint does not have the table, which keeps its rows */
    HOTBED_TAKEN_DROPPED = 2, /* no storage has the table */
    HOTBED_TAKEN_KIND = 3,    /* one is HASH, the other STATIC: the table keeps its rows */
    HOTBED_TAKEN_DIM = 4,     /* dims differ: the table keeps its rows */
} hotbed_checkpoint_taken;

/* A table of a load. Frozen: it has no size field, since it is an element of an array. */
typedef struct hotbed_checkpoint_table {
    char name[64];
    hotbed_checkpoint_taken taken;
    uint32_t dim;   /* in the checkpoint; TAKEN_NEW: in the storage */
    uint64_t saved; /* rows in the checkpoint */
    uint64_t
        loaded; /* of them in the storages of all ranks; without a communicator, of this rank */
    /* State of the storage that the table was saved from; TAKEN_NEW: 0. After 0 steps, as in a
     * conversion of another format, nobody may have chosen the learning rate. */
    uint64_t optimizer_steps;
    float learning_rate;
    uint32_t reserved;
} hotbed_checkpoint_table;

/* The result of a load. Set the first three fields. */
typedef struct hotbed_checkpoint_report {
    uint32_t size;                   /* in: sizeof(hotbed_checkpoint_report) */
    uint32_t capacity;               /* in: of `tables` */
    hotbed_checkpoint_table *tables; /* in: [capacity], filled; may be NULL if capacity is 0 */
    uint64_t step;                   /* out: of the last checkpoint that was loaded */
    /* out: tables of the checkpoint, in its order, and then new ones. Tables beyond `capacity` are
     * not described. */
    uint32_t num_tables;
    uint32_t num_lossy; /* out: tables of the checkpoint of which rows were not loaded */
    uint32_t marked;    /* out: 1 if the load has set the mark, so that an increment can follow */
    uint32_t reserved;
} hotbed_checkpoint_report;

/* Load the checkpoint at `path`, and its increments if `options` lists any, into the storages.
 * Each table gets the rows of the table of its name, whichever storage that was saved from: pooling,
 * routes and ranks may differ. The digest of every block is checked before its rows are used. Keys
 * that the tables had are removed first. Synchronous.
 *
 * The tables may have other capacities, eviction, scores, dtype and backend than the saved ones;
 * values are rounded to the nearest, and a row with a value that the type does not have (1e6 in F16, NaN in
 * INT8) is ARGUMENT, with table, key and value. A STATIC table may have fewer or more rows: it loads the rows
 * that both have, and further ones keep their initial values. Key type and kind of optimizer must be the
 * same. A storage without optimizer loads every checkpoint, without the optimizer's states. Times of
 * TIMESTAMP_LFU tables are loaded only into such tables; if the checkpoint has none, rows get the
 * times of new rows. Scores keep their values, also where they now mean something else. A storage
 * gets the clock, the learning rate and the count of optimizer steps of the storage that its first
 * table was saved from; if its tables come from several ones, the highest clock and time.
 *
 * With a report, what cannot be loaded is left out and reported by table: a table that only one of
 * checkpoint and storages has, one of another kind or dim, rows of a STATIC table that has become
 * smaller. Tables that get no rows are unchanged. Without a report all this is STATE. The error has
 * the table and, if the "dim", "dtype", "state_dtype" or "optimizer" differs, this as its parameter
 * with the saved value. A checkpoint that has none of the tables is STATE always. If `path` is an
 * increment, the error has the parameter "increments".
 *
 * The storages keep their seeds. If a storage was trained with another one, and hash tables have
 * random initializers or admission, new keys get other rows than in the run that saved it; then
 * hotbed_storage_warning() returns a text with both seeds.
 *
 * A table with max_capacity first grows so far that the rows fill less than growth_load of it. If
 * not all rows fit, a table that evicts keeps rows with high scores, as hotbed_storage_offer_rows()
 * chooses them, and a table that does not evict fails with FULL, which says how many rows the largest
 * table of the checkpoint has. The rows of a full table fit into a table of the same size, as
 * hotbed_storage_offer_rows() fills it. A table that has grown in many steps has more slots than max_capacity
 * needs; a table that does not evict grows beyond max_capacity for such rows, by 1,280 keys at most.
 *
 * If the checkpoint has the same number of ranks and the same routes, each rank reads its own
 * shard. Otherwise, with a communicator, each rank reads a share, cut where blocks of the files
 * begin, and the ranks send each other the rows, so each byte is read once. Without a communicator,
 * each rank reads the rows of static tables that it needs, and all rows of hash tables, and drops
 * the rows of other ranks. An increment that is missing, listed twice, or belongs to another
 * checkpoint is refused before anything changes.
 *
 *   storages  in   [num_storages], of the stream's backend and device
 *   options   in   NULL: no increments, and this rank alone
 *   report    out  NULL: everything must fit. With a communicator, NULL on all ranks or on none.
 *
 * Errors: ARGUMENT (`share`: rank not below world, routes of other worlds, a static table whose
 * route numbers no rows; a value that the type of its table does not have), IO (the directory `path` does not
 * exist; it cannot be read), CORRUPT (a file is missing, truncated or damaged, with extent and block; a key is
 * in the wrong shard), STATE (`path` is an increment; the increments do not follow each other; a rank of the
 * communicator loads another checkpoint than rank 0; key types or kinds of optimizer differ; without a report,
 * a table is missing or has another shape, with both values; tickets hold pins; the stream records a graph),
 * FULL, MEMORY, UNSUPPORTED, and the fault of an earlier call on the stream; nothing was loaded then. After an
 * error in the middle of the rows, the tables are empty. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_checkpoint_load(
    const char *path, hotbed_storage *const *storages, uint32_t num_storages,
    const hotbed_checkpoint_load_options *options, hotbed_checkpoint_report *report,
    hotbed_stream *stream);

/* Read a blob of the checkpoint or increment at `path`, and check its digest. Synchronous.
 *
 *   data   out     host buffer of *bytes; NULL: return the size only
 *   bytes  in/out  in: size of `data`; out: bytes of the blob
 *
 * Errors: ARGUMENT (there is no blob `name`; `data` is too small, with the bytes needed), IO,
 * CORRUPT, MEMORY, UNSUPPORTED. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_checkpoint_read_blob(const char *path, const char *name, void *data, uint64_t *bytes);

/* A checkpoint that hotbed_checkpoint_latest() does not use. Frozen. */
typedef struct hotbed_checkpoint_skipped {
    char *path;
    char *why;
    /* CORRUPT: its own files are damaged or missing; STATE: an increment whose parent is missing or
     * damaged, or a link to nowhere */
    hotbed_status status;
} hotbed_checkpoint_skipped;

/* The newest whole checkpoint of a directory. */
typedef struct hotbed_checkpoint_found {
    uint32_t size;      /* set by the caller: sizeof(hotbed_checkpoint_found) */
    uint32_t num_paths; /* 0: there is none */
    /* [num_paths] a full checkpoint, and the increments that lead to the newest one, in order */
    char **paths;
    /* [num_skipped] newer checkpoints that are not whole, and damaged ones and links to nowhere,
     * whose age is unknown */
    hotbed_checkpoint_skipped *skipped;
    uint32_t num_skipped;
} hotbed_checkpoint_found;

/* Find the newest whole checkpoint of a directory, to resume from it. A checkpoint is whole if it
 * and the checkpoints before it in its chain exist in the directory and pass `hotbed-ckpt verify --quick`, which
 * reads no rows. If a checkpoint before it exists several times, one whole copy is enough. The newest one has
 * the highest step, then the latest time. Unfinished saves and names that end in ".damaged" are ignored. With
 * several ranks one calls it, and sends the paths to the others. Synchronous.
 *
 *   found  out  the caller frees its texts with hotbed_checkpoint_found_free()
 *
 * Errors: ARGUMENT (`directory` is a checkpoint itself), IO (a directory or file cannot be read),
 * UNSUPPORTED (a checkpoint has a newer format; a build without HDF5), MEMORY. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_checkpoint_latest(const char *directory, hotbed_checkpoint_found *found);
HOTBED_API void hotbed_checkpoint_found_free(hotbed_checkpoint_found *found); /* NULL is allowed */

/* Read every byte of the checkpoint or increment at `path` and check it, as `hotbed-ckpt verify`
 * does: digests, the order of keys, counts, metadata, and the index. Needs no storage. Synchronous.
 * Errors: ARGUMENT, IO, CORRUPT (with the file and what is wrong), MEMORY, UNSUPPORTED (another
 * version of the format; a build without HDF5). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_checkpoint_check(const char *path);

HOTBED_END_DECLS
#endif
