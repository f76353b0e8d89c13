/* ebb.h: Ebb from C, and from whatever calls C. C11 and C++17.
 *
 * Ranks connect; an engine per rank keeps the optimizer state of a model in a swap directory,
 * within a budget of memory; gradients go in, a Muon or AdamW step is made, weights come out.
 *
 * Contract. Every function answers an ebb_status, aborts on no argument, throws nothing, prints
 * nothing, installs no signal handler, and calls nothing of the caller's but an ebb_transport and
 * what fills a new ebb_swap.
 * Texts are UTF-8 and end with a zero. What a pointer leads to is the caller's and is read before
 * the call returns, but where "borrowed" is said; texts that a function gives are freed with
 * ebb_free().
 *
 * Structs begin with their size, sizeof(the struct): a shorter one is an older caller's, and what
 * it lacks is what zeros mean; a longer one is a newer caller's, refused (EBB_UNSUPPORTED) unless
 * what this library does not know is zeros. The structs of an array have one size. So begin with
 * zeros: ebb_model model = {sizeof model};
 *
 * Handles are not addresses. NULL and closed ones are refused (EBB_USAGE), as are those of another
 * process (EBB_STATE): in a child made by fork() a handle of its parent can be closed, and no more.
 *
 * Calls marked [C] are collective: all ranks make them, in the same order. An error of one rank is
 * an error of all. One thread at a time drives an engine; another one's call beside it is refused
 * (EBB_STATE). ebb_engine_gradients() and ebb_engine_wait_parameter() are for any thread. Whoever
 * calls from an interpreter lets go of its lock around all calls: many wait. */
#ifndef EBB_H
#define EBB_H

#include <stdint.h>

#if defined(__cplusplus)
#define EBB_NOEXCEPT noexcept
extern "C" {
#else
#define EBB_NOEXCEPT
#endif
#if defined(EBB_BUILDING)
#define EBB_API __attribute__((visibility("default")))
#else
#define EBB_API
#endif

/* Counts up with every change that an older caller would not survive. Functions are added, and
 * fields behind those that structs have, without that. */
#define EBB_ABI 1
EBB_API uint32_t ebb_abi(void) EBB_NOEXCEPT; /* of the library that was loaded */
EBB_API const char* ebb_version(void) EBB_NOEXCEPT;

/* --- answers ---------------------------------------------------------------------------------- */

typedef int32_t ebb_status;
enum {
  EBB_DONE = 0,
  EBB_USAGE = -1,       /* the caller asked for something impossible; nothing was touched */
  EBB_IO = -2,          /* the operating system refused */
  EBB_NO_SPACE = -3,    /* on a disk */
  EBB_NO_MEMORY = -4,   /* a budget or an allocation is too small */
  EBB_CORRUPT = -5,     /* bytes contradict their checksum or their own structure */
  EBB_INCOMPLETE = -6,  /* a part is missing */
  EBB_UNSUPPORTED = -7, /* valid, but not by this version */
  EBB_LIMIT = -8,       /* a stated limit was exceeded */
  EBB_BUSY = -9,        /* held by somebody else; try later */
  EBB_MOVED = -10,      /* its writer replaced it while it was read; read it again */
  EBB_STATE = -11,      /* not now: an earlier failure or the order of calls forbids it */
  EBB_LAYOUT = -12,     /* two descriptions of the same state disagree */
  EBB_PEER = -13,       /* another rank failed, or is gone */
  EBB_CANCELLED = -14,
  EBB_INTERNAL = -100 /* a defect of Ebb's */
};

/* Why this thread's last call answered what is not EBB_DONE, until its next one; never NULL. Texts
 * that there are none of are "", numbers that are not known -1. */
typedef struct ebb_error {
  uint64_t size;
  ebb_status code;
  const char* message; /* one sentence: what, where, why */
  const char* hint;    /* what to do */
  const char* file;
  const char* tensor;
  int64_t offset; /* in the file */
  int64_t rank;
  int64_t step;
} ebb_error;
EBB_API const ebb_error* ebb_last_error(void) EBB_NOEXCEPT;

EBB_API void ebb_free(void* text) EBB_NOEXCEPT;
/* What was found on this machine, as JSON: version, abi, io_backend and why, plugin (the path of
 * the one beside this library, "" if there is none; it is not loaded), presets (a list: name,
 * source, and all settings as a group has them), formats. */
EBB_API ebb_status ebb_about(char** json) EBB_NOEXCEPT;

/* Where ebb-hdf5-reader lies, which reads HDF5 files: for this process, where that is neither the
 * library's folder nor ../bin beside it. */
EBB_API ebb_status ebb_programs_in(const char* folder) EBB_NOEXCEPT;

/* --- ranks ------------------------------------------------------------------------------------ */

typedef struct ebb_listener ebb_listener;
typedef struct ebb_ranks ebb_ranks;

/* Listens, so that the other ranks can connect. `host`: a name or an address of this machine by
 * which those of other machines reach it; NULL: all ranks are on this one. `address`: one line of
 * text for all other ranks, which the caller passes on (all_gather_object, MPI, a file), and a
 * secret between them. */
EBB_API ebb_status ebb_listener_open(const char* host, ebb_listener** listener,
                                     char** address) EBB_NOEXCEPT;
EBB_API ebb_status ebb_listener_close(ebb_listener* listener) EBB_NOEXCEPT;

/* [C] Connects with all ranks: `addresses` has theirs, by rank, this one's too. The listener is
 * closed, whatever is answered. `limit_ms`: how long a rank may keep the others waiting, here and
 * in every call; the same on all; 0: without end. EBB_PEER names who did not come. */
EBB_API ebb_status ebb_ranks_connect(ebb_listener* listener, uint32_t rank, uint32_t world,
                                     const char* const* addresses, uint32_t limit_ms,
                                     ebb_ranks** ranks) EBB_NOEXCEPT;
/* Messages between ranks, as the caller carries them: a fabric's library, a launcher's own. Its
 * functions are called from any thread, several at once, and in no order; they wait for no other
 * rank, call nothing of Ebb's, and answer EBB_DONE, or an error, which is final. */
typedef struct ebb_transport {
  uint64_t size;
  void* self; /* what the functions get */
  uint32_t rank, world;
  uint32_t tags; /* those below this number can be used: 8 at least, 2 more an engine */
  /* Takes a message, of which it keeps a copy. What one rank sends another with one tag arrives in
   * that order, whole, each once. */
  ebb_status (*send)(void* self, uint32_t to, uint32_t tag, const void* message, uint64_t bytes);
  /* How many messages with this tag to each rank have not gone yet: `counts` has `world` places.
   * What has gone arrives without further calls on this rank. */
  ebb_status (*unsent)(void* self, uint32_t tag, uint64_t* counts);
  /* The next message with this tag that has come, of any rank: `from`; `world`: there is none.
   * `bytes`: room in, its size out. One for which there is no room stays, and is asked for again.
   */
  ebb_status (*receive)(void* self, uint32_t tag, uint32_t* from, void* into, uint64_t* bytes);
  /* NULL; else called once, when nothing uses it any more. Not in a child made by fork(). */
  void (*close)(void* self);
} ebb_transport;
/* [C] Ranks over it, which is closed, too, where this fails for other reasons than what it lacks.
 * `limit_ms` as in ebb_ranks_connect(). */
EBB_API ebb_status ebb_ranks_transport(const ebb_transport* transport, uint32_t limit_ms,
                                       ebb_ranks** ranks) EBB_NOEXCEPT;
/* A world of one. */
EBB_API ebb_status ebb_ranks_alone(ebb_ranks** ranks) EBB_NOEXCEPT;
/* [C] The smallest of the ranks' numbers: for the caller's own decisions. */
EBB_API ebb_status ebb_ranks_agree(ebb_ranks* ranks, int64_t mine, int64_t* smallest) EBB_NOEXCEPT;
/* This rank gives up: every present and future call that needs it answers EBB_PEER, on all ranks.
 */
EBB_API ebb_status ebb_ranks_abort(ebb_ranks* ranks) EBB_NOEXCEPT;
/* Engines that were opened with them keep what they need. */
EBB_API ebb_status ebb_ranks_close(ebb_ranks* ranks) EBB_NOEXCEPT;

/* --- a device that computes ------------------------------------------------------------------- */

typedef struct ebb_device ebb_device;

/* Loads a plugin and opens a device through it: the `index`-th that it sees; for CUDA as the
 * process counts them. `plugin`: a path, or a name for the loader; NULL: the one beside this
 * library. EBB_IO: it, or a library that it needs, is missing. EBB_UNSUPPORTED: it is no plugin, or
 * of another version; or there is no driver, or no such device. It is opened anew by each call. */
EBB_API ebb_status ebb_device_open(const char* plugin, int32_t index,
                                   ebb_device** device) EBB_NOEXCEPT;
/* "NVIDIA H200 0". */
EBB_API ebb_status ebb_device_name(ebb_device* device, char** name) EBB_NOEXCEPT;
/* Engines that were opened with it keep it. In a forked child nothing is asked of the device. */
EBB_API ebb_status ebb_device_close(ebb_device* device) EBB_NOEXCEPT;

/* --- what is trained -------------------------------------------------------------------------- */

enum {
  EBB_F32 = 1,
  EBB_BF16 = 2,
  EBB_F16 = 3,
  EBB_F64 = 4,
  EBB_I64 = 5,
  EBB_I32 = 6,
  EBB_I16 = 7,
  EBB_I8 = 8,
  EBB_U16 = 11,
  EBB_U8 = 12,
  EBB_BOOL = 13
};

/* Elements in the caller's memory. `device`: -1: the host's; else the index of the model's device.
 * `stream`: NULL: they are there, and nobody uses what the call writes; else one of that device's
 * (a cudaStream_t; of CUDA's default stream cudaStreamLegacy, (void*)1), and both hold behind what
 * it was given before the call. A gradient's is not waited for by ebb_engine_gradients(), all
 * others are by their call. Without a device they are -1 and NULL; others are refused
 * (EBB_UNSUPPORTED). */
typedef struct ebb_buffer {
  void* data;
  uint64_t elems;
  int32_t dtype;
  int32_t device;
  void* stream;
} ebb_buffer;

/* As a store names them: {"lr", "0.02"}. */
typedef struct ebb_setting {
  const char* key;
  const char* value;
} ebb_setting;

typedef struct ebb_group {
  uint64_t size;
  const char* optimizer; /* "muon" or "adamw" */
  const char* preset;    /* of Muon: "keller", "torch", "moonlight", ...; NULL: "keller" in fp32 */
  const ebb_setting* settings;
  uint32_t setting_count;
} ebb_group;

/* How a tensor is cut over ranks. */
enum {
  EBB_REPLICATED = 0,      /* every rank has all of it */
  EBB_ZERO12 = 1,          /* DeepSpeed's stages 1 and 2: one flat partition */
  EBB_ZERO12_BOUNDARY = 2, /* the same, no tensor is split */
  EBB_ZERO3 = 3,           /* each tensor evenly */
  EBB_ROWS = 4,            /* FSDP2: rows of the first dimension, as torch.chunk does */
  EBB_LAYER_WISE = 5,      /* whole, at an owner */
  EBB_UNEVEN_ROWS = 6      /* rows as said */
};
typedef struct ebb_layout {
  uint64_t size;
  int32_t policy;
  uint32_t shard_world; /* so many shards; 0: all ranks, or, over axes, their product */
  uint32_t replicas;    /* so many copies of each; 0: 1. A rank is copy * shard_world + shard. */
  uint64_t align_elems; /* of EBB_ZERO12: partitions start on a multiple; 0: 1 */
  /* Of the parameters that are cut so, in their order: a shard each (EBB_LAYER_WISE); how many rows
   * each shard has, shard_world numbers each (EBB_UNEVEN_ROWS). */
  const uint32_t* owners;
  const uint64_t* rows;
  uint32_t owner_count, row_count;
} ebb_layout;

/* A world as a grid: the last axis is the fastest. */
typedef struct ebb_axis {
  const char* name;
  uint32_t ranks;
} ebb_axis;
/* A place on an axis, or a dimension that is cut over one. */
typedef struct ebb_on_axis {
  const char* axis;
  uint32_t number;
} ebb_on_axis;
/* How parameters that name it are cut, over some of the axes. */
typedef struct ebb_partition {
  uint64_t size;
  const char* name;
  const ebb_layout *gradients, *weights;
  const char* const* shards; /* axes that they are cut over; the last is the fastest */
  const char* const* copies; /* axes at each place of which they are the same */
  uint32_t shard_count, copy_count;
} ebb_partition;

typedef struct ebb_param {
  uint64_t size;
  const char* name; /* what its state is stored under */
  const uint64_t* shape;
  uint32_t ndim;
  uint32_t group;
  int32_t gradient_dtype, weight_dtype; /* EBB_F32, EBB_BF16; 0: EBB_F32 */
  const char* partition;                /* NULL: cut as the model says, over all ranks */
  const ebb_on_axis* at;                /* its places on the axes that its partition leaves out */
  const ebb_on_axis* cuts; /* or which cut it before that does, in turn: a dimension each, unevenly
                              where it does not divide, as torch.chunk() */
  uint32_t at_count, cut_count;
} ebb_param;

enum { EBB_AT_OWNERS = 0, EBB_ON_SHARDS = 1 };                 /* placement of Muon's state */
enum { EBB_REDUCED = 0, EBB_ADDED = 1, EBB_PARTIAL_SUMS = 2 }; /* what a gradient is */

typedef struct ebb_model {
  uint64_t size;
  const ebb_param* params; /* in the order of the forward pass */
  const ebb_group* groups;
  uint32_t param_count, group_count;
  const ebb_layout *gradients, *weights;
  const ebb_axis* axes;
  const ebb_partition* partitions;
  uint32_t axis_count, partition_count;
  int32_t placement, hand_in;
  /* All that this rank's engine allocates and that grows with the model. */
  uint64_t budget_bytes;
  uint64_t tile_bytes;  /* 0: 4 MiB; the same on all ranks, as the next four */
  uint64_t chunk_bytes; /* 0: 256 MiB */
  uint64_t early_gradient_bytes;
  uint64_t stream_above_bytes; /* 0: nothing is streamed */
  uint32_t slots;              /* 0: 3 */
  uint32_t threads;            /* that compute, on this rank; 0: 1 */
  const ebb_setting* dtypes;   /* {"momentum_buffer", "BF16"}; what is not named is fp32.
                                  {"master", "none"}: the bound weights, in fp32, are the masters */
  const ebb_setting* tiers;    /* {"exp_avg", "nvme"}: nvme, host, device */
  uint32_t dtype_count, tier_count;
  int32_t drop_unknown; /* 1: state of parameters that the model has not may be dropped */
  /* What makes the steps of all groups, from state that lies as `tiers` says; NULL: the host. */
  ebb_device* device;
  /* Of its memory: updates, what Newton-Schulz needs, tiles on their way, tiles of the tier
   * "device". 0: no limit. What the plan says, and a device has not: EBB_NO_MEMORY, at open. */
  uint64_t device_budget_bytes;
  /* 1: there, not in the host's memory, the caller has all of its gradients; its weights. */
  int32_t gradients_on_device, weights_on_device;
} ebb_model;

/* Bytes of this rank; step_... and newton_schulz_flops are one step's. */
typedef struct ebb_plan {
  uint64_t size;
  uint64_t state_bytes;        /* all that steps page */
  uint64_t memory_bytes;       /* within the budget */
  uint64_t ranks_bytes;        /* beside it: on the way between processes, at most */
  uint64_t least_budget_bytes; /* of this model and chunk size */
  uint64_t disk_bytes;
  uint64_t streamed_matrices; /* a count */
  uint64_t step_read_bytes, step_written_bytes, step_sent_bytes;
  double newton_schulz_flops;
  uint64_t device_bytes; /* of the device's memory, beside memory_bytes */
} ebb_plan;
/* What an engine of this model will take and move, as one rank of a world; of one rank, with
 * ebb_ranks_alone(). Fails where opening one would. Allocates nothing that grows with the elements
 * of the model. */
EBB_API ebb_status ebb_model_plan(const ebb_model* model, uint32_t rank, uint32_t world,
                                  ebb_plan* plan) EBB_NOEXCEPT;
/* What a rank holds of a parameter, as gradients or as weights: boxes, in the order of its buffer's
 * elements, of ndim offsets and ndim extents each. `boxes`: room in, how many there are out. */
enum { EBB_GRADIENTS = 0, EBB_WEIGHTS = 1 };
EBB_API ebb_status ebb_model_pieces(const ebb_model* model, uint32_t rank, uint32_t world,
                                    int32_t which, uint32_t param, uint64_t* offsets,
                                    uint64_t* extents, uint32_t* boxes) EBB_NOEXCEPT;

/* --- the engine ------------------------------------------------------------------------------- */

typedef struct ebb_engine ebb_engine;

enum { EBB_STORE_OR_GIVEN = 0, EBB_STORE = 1, EBB_GIVEN = 2 }; /* what an engine begins from */
enum { EBB_KEPT_UNTIL_COMMITTED = 0, EBB_DROPPED_FIRST = 1 };  /* the old store, of EBB_GIVEN */

typedef struct ebb_start {
  uint64_t size;
  const char* directory;      /* the swap directory: one for all ranks, or one each */
  const char* const* sources; /* directories of a run of another number of ranks */
  uint32_t source_count;
  int32_t begin, old_store;
  const char* checkpoint; /* NULL, or one to begin from, of any format that Ebb reads */
  /* NULL, or the store that is meant: 32 hex digits, "store_id" of ebb_engine_about(). */
  const char* expected_store;
  int64_t expected_generation, expected_step; /* 0: any; else one more than what is expected */
  /* A buffer a parameter, borrowed until the engine is closed: where new weights go, in the pieces
   * of its layout; of nothing, elems 0. When a step is done they are there, on a device too.
   * Without a store or checkpoint the state begins from them; otherwise they are overwritten with
   * its weights. */
  const ebb_buffer* weights;
} ebb_start;

/* [C] */
EBB_API ebb_status ebb_engine_open(const ebb_model* model, ebb_ranks* ranks, const ebb_start* start,
                                   ebb_engine** engine) EBB_NOEXCEPT;
/* Waits for I/O. Steps that no snapshot has are lost. In a forked child: lets go, waits for
 * nothing. */
EBB_API ebb_status ebb_engine_close(ebb_engine* engine) EBB_NOEXCEPT;

/* Weights that lie elsewhere now. Borrowed. */
EBB_API ebb_status ebb_engine_bind(ebb_engine* engine, const uint32_t* params,
                                   const ebb_buffer* weights, uint32_t count) EBB_NOEXCEPT;
/* [C] Fills the bound weights from the state. Of those on a device, here and in the next: nobody
 * uses them meanwhile, whatever was asked of them before has been done. */
EBB_API ebb_status ebb_engine_install_weights(ebb_engine* engine) EBB_NOEXCEPT;
/* [C] Takes what the caller wrote to the weights of these parameters into the state. */
EBB_API ebb_status ebb_engine_take_weights(ebb_engine* engine, const uint32_t* params,
                                           uint32_t count) EBB_NOEXCEPT;

/* What is handed in of a parameter: its gradient, behind which nobody reads its weights any more;
 * that there is none, and what a step does then; one of several (EBB_ADDED). */
enum { EBB_GRADIENT = 0, EBB_NONE_UNTOUCHED = 1, EBB_NONE_ZERO = 2, EBB_ADD = 3 };
/* `kinds`: NULL: all are gradients. Buffers are borrowed until the step is done, those of EBB_ADD
 * until the call returns. Those before one that is refused are handed in. */
EBB_API ebb_status ebb_engine_gradients(ebb_engine* engine, const uint32_t* params,
                                        const ebb_buffer* gradients, const uint8_t* kinds,
                                        uint32_t count) EBB_NOEXCEPT;

/* A setting of a group from the next step on: "lr", "weight_decay", "beta", "beta1", "beta2",
 * "eps". */
EBB_API ebb_status ebb_engine_set(ebb_engine* engine, uint32_t group, const char* key,
                                  double value) EBB_NOEXCEPT;

typedef struct ebb_step_args {
  uint64_t size;
  double inv_scale; /* gradients are multiplied by it; 0: 1 */
  double max_norm;  /* 0: no clipping */
} ebb_step_args;
typedef struct ebb_step_result {
  uint64_t size;
  double norm; /* of the whole gradient, unscaled, before clipping; NaN if it is not finite */
  double clip;
  uint64_t step;   /* how many have been made */
  int32_t skipped; /* 1: a gradient was not finite on some rank; no bit of state moved */
} ebb_step_result;
/* [C] `args`: NULL: all zeros. `result` may be NULL here and below. After EBB_IO or EBB_NO_SPACE in
 * the middle of it the step is stopped on all ranks: ebb_engine_continue(), ebb_engine_abandon() or
 * ebb_engine_save_to(). */
EBB_API ebb_status ebb_engine_step(ebb_engine* engine, const ebb_step_args* args,
                                   ebb_step_result* result) EBB_NOEXCEPT;
/* [C] The same in two calls: what the step will do; how it ended. */
EBB_API ebb_status ebb_engine_begin_step(ebb_engine* engine, const ebb_step_args* args,
                                         ebb_step_result* result) EBB_NOEXCEPT;
EBB_API ebb_status ebb_engine_wait_step(ebb_engine* engine, ebb_step_result* result) EBB_NOEXCEPT;
/* `ended`: 1: no step is in flight on this rank any more, so that ebb_engine_wait_step() does not
 * wait; found out `limit_ms` from now at the latest, for who has signals to answer meanwhile. */
EBB_API ebb_status ebb_engine_step_ended(ebb_engine* engine, uint32_t limit_ms,
                                         int32_t* ended) EBB_NOEXCEPT;
/* Until the new weights of a parameter are there. */
EBB_API ebb_status ebb_engine_wait_parameter(ebb_engine* engine, uint32_t param) EBB_NOEXCEPT;
/* [C] Goes on with a step that was stopped. */
EBB_API ebb_status ebb_engine_continue(ebb_engine* engine, ebb_step_result* result) EBB_NOEXCEPT;
/* [C] Goes back to the last committed generation. */
EBB_API ebb_status ebb_engine_abandon(ebb_engine* engine) EBB_NOEXCEPT;
/* [C] Takes the state to another swap directory, which must hold none. */
EBB_API ebb_status ebb_engine_save_to(ebb_engine* engine, const char* directory) EBB_NOEXCEPT;

/* [C] States by their names ("master", "momentum_buffer", "exp_avg", "exp_avg_sq"), between steps:
 * each rank what it holds of these parameters as weights, in fp32. `into`: `count` buffers for each
 * state, one state after the other; what holds several of them is read once. Masters in halves
 * ("U16") are whole here: EBB_STATE where somebody wrote to a bound weight, which is one half. */
EBB_API ebb_status ebb_engine_read_states(ebb_engine* engine, const char* const* states,
                                          uint32_t state_count, const uint32_t* params,
                                          const ebb_buffer* into, uint32_t count) EBB_NOEXCEPT;
/* [C] `taken`: how many steps these parameters have taken then; -1: as they have. Of masters in
 * halves the bound weights are written, too: copies alike; EBB_UNSUPPORTED for what is not finite.
 */
EBB_API ebb_status ebb_engine_write_states(ebb_engine* engine, const char* const* states,
                                           uint32_t state_count, const uint32_t* params,
                                           const ebb_buffer* from, uint32_t count,
                                           int64_t taken) EBB_NOEXCEPT;

/* [C] Marks the present state as a generation, durable behind the next steps; `begun` (may be
 * NULL): 0: one is still under way. */
EBB_API ebb_status ebb_engine_snapshot(ebb_engine* engine, int32_t* begun) EBB_NOEXCEPT;
/* [C] Waits for it; its number, 0 if there was none. */
EBB_API ebb_status ebb_engine_wait_snapshot(ebb_engine* engine, uint64_t* generation) EBB_NOEXCEPT;
/* What is committed. Local. The error of the last snapshot, if it was abandoned. */
EBB_API ebb_status ebb_engine_committed(ebb_engine* engine, uint64_t* generation,
                                        uint64_t* step) EBB_NOEXCEPT;

/* What the caller wants back after a resume, stored with every generation; size 0: takes it away.
 */
EBB_API ebb_status ebb_engine_set_blob(ebb_engine* engine, const char* key, const void* bytes,
                                       uint64_t size) EBB_NOEXCEPT;
/* `size`: room in, bytes out; 0 where there is none of that name. Fills what there is room for. */
EBB_API ebb_status ebb_engine_blob(ebb_engine* engine, const char* key, void* bytes,
                                   uint64_t* size) EBB_NOEXCEPT;

/* Local. As JSON: step, origin, store, store_id, committed_generation, committed_step, blobs
 * (their keys), how many steps the parameters have taken that took more or fewer, groups with all
 * their settings; counters. */
EBB_API ebb_status ebb_engine_about(ebb_engine* engine, char** json) EBB_NOEXCEPT;
EBB_API ebb_status ebb_engine_stats(ebb_engine* engine, char** json) EBB_NOEXCEPT;

/* Begins this rank's timeline, and forgets the one before. The newest 262,144 spans are kept, 16
 * MiB at most. */
EBB_API ebb_status ebb_engine_begin_trace(ebb_engine* engine) EBB_NOEXCEPT;
/* Ends it, and gives it as Chrome trace JSON, which Perfetto shows. */
EBB_API ebb_status ebb_engine_end_trace(ebb_engine* engine, char** json) EBB_NOEXCEPT;

/* --- a generation in another format ----------------------------------------------------------- */

typedef struct ebb_pinned ebb_pinned;

/* The committed generation, whose bytes stay on this rank until it is closed, while training goes
 * on and behind the engine's end. All ranks pin it, and until it is written: each has its own part.
 * Local. EBB_STATE: there is none. With two slots no snapshot can be begun meanwhile. */
EBB_API ebb_status ebb_engine_pin(ebb_engine* engine, ebb_pinned** pinned) EBB_NOEXCEPT;
/* Writes all ranks' parts, as ckpt-convert does: `format`: "dcp", "safetensors", ...; for `world`
 * ranks; to `path`, which must not be there: it appears whole or not at all. One rank calls it,
 * from any thread; it blocks. `workers`: 1 beside a training; 0: two for each core. `bytes`: NULL,
 * or what was written. */
EBB_API ebb_status ebb_pinned_write(ebb_pinned* pinned, const char* format, uint32_t world,
                                    const char* path, uint32_t workers,
                                    uint64_t* bytes) EBB_NOEXCEPT;
EBB_API ebb_status ebb_pinned_close(ebb_pinned* pinned) EBB_NOEXCEPT;

#if defined(__cplusplus)
}
#endif

#include "ebb_checkpoint.h"
#include "ebb_swap.h"
#endif /* EBB_H */
