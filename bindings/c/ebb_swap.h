/* ebb_swap.h: a trainer's own state, paged. A part of ebb.h, which has it all and says what holds
 * for all of it. */
#ifndef EBB_SWAP_H
#define EBB_SWAP_H

#include "ebb.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* For trainers whose optimizer is not one of the engine's: buffers of state of any type, in a
 * budget of memory and in a store on disk, which is a checkpoint that the tools read. One thread
 * drives it, as an engine. */
typedef struct ebb_swap ebb_swap;

/* What this rank keeps of a state of a tensor: `elems` elements of the row-major `shape` from
 * `first` on, perhaps none. All ranks name the same tensors, and together keep each element once.
 */
typedef struct ebb_swap_part {
  uint64_t size;
  const char* tensor;
  const char* state; /* "exp_avg", ...: any name */
  const uint64_t* shape;
  uint32_t ndim;
  int32_t dtype;   /* EBB_F32, ...; 0: EBB_F32 */
  uint32_t buffer; /* parts of one buffer are acquired together; 0, then the same or one more */
  uint64_t first, elems;
} ebb_swap_part;

typedef struct ebb_swap_config {
  uint64_t size;
  const char* directory;      /* the swap directory: one for all ranks, or one each */
  const char* const* sources; /* directories of a run of another number of ranks */
  const ebb_swap_part* parts; /* the same tensors in the same order on all ranks */
  uint32_t source_count, part_count;
  uint64_t budget_bytes; /* for the state that is in memory */
  uint64_t tile_bytes;   /* 0: 1 MiB; the same on all ranks */
  uint32_t slots;        /* 0: 3; with 2 a snapshot waits for its commit */
  uint32_t threads;      /* that take checksums and copy; 0: 1 */
  /* NULL, or called for each buffer of a store that is new, inside of ebb_swap_open(), on its
   * thread: fills what the store begins with; the parts are zeros. It calls nothing of Ebb's.
   * Another answer than EBB_DONE ends the opening: EBB_CANCELLED. */
  ebb_status (*fill)(void* self, uint32_t buffer, void* const* parts);
  void* self; /* what `fill` gets */
} ebb_swap_config;

/* [C] Resumes the directory's store, or makes one: with the content of the store that is there,
 * where that is of other ranks or tiles; else with what `fill` makes. */
EBB_API ebb_status ebb_swap_open(const ebb_swap_config* config, ebb_ranks* ranks,
                                 ebb_swap** swap) EBB_NOEXCEPT;
/* A hint that the buffer will be acquired, after those that were hinted at before. More than
 * "useful_bytes_ahead" of ebb_swap_about() are in the way of what stays in memory. */
EBB_API ebb_status ebb_swap_prefetch(ebb_swap* swap, uint32_t buffer) EBB_NOEXCEPT;
/* Its last released content, in memory until it is released: `parts`: a place for each of its
 * parts, NULL for one of no elements. Any number may read it at once, or one modify it (`modify`).
 * EBB_NO_MEMORY where what the caller holds is in the way: it names them. */
EBB_API ebb_status ebb_swap_acquire(ebb_swap* swap, uint32_t buffer, int32_t modify, void** parts,
                                    uint64_t* lease) EBB_NOEXCEPT;
/* `keep`: 1: what the bytes are now is its content; 0: nothing was changed, or is to be forgotten.
 */
EBB_API ebb_status ebb_swap_release(ebb_swap* swap, uint64_t lease, int32_t keep) EBB_NOEXCEPT;
/* Waits until all that was released is written; what a crash leaves is the last snapshot's. */
EBB_API ebb_status ebb_swap_flush(ebb_swap* swap) EBB_NOEXCEPT;
/* What could not be written is tried again. */
EBB_API ebb_status ebb_swap_go_on(ebb_swap* swap) EBB_NOEXCEPT;
/* [C] Makes a generation of what was released, at `step`, durable behind the caller. `begun` (may
 * be NULL): 0: the one before is still being written. `step` counts up wherever something was
 * changed. */
EBB_API ebb_status ebb_swap_snapshot(ebb_swap* swap, uint64_t step, int32_t* begun) EBB_NOEXCEPT;
/* [C] Waits for it; its number, 0 if there was none. */
EBB_API ebb_status ebb_swap_wait_snapshot(ebb_swap* swap, uint64_t* generation) EBB_NOEXCEPT;
/* As of an engine. */
EBB_API ebb_status ebb_swap_set_blob(ebb_swap* swap, const char* key, const void* bytes,
                                     uint64_t size) EBB_NOEXCEPT;
EBB_API ebb_status ebb_swap_blob(ebb_swap* swap, const char* key, void* bytes,
                                 uint64_t* size) EBB_NOEXCEPT;
/* As JSON: step (of the last snapshot), origin, store, useful_bytes_ahead; counters: acquires,
 * stalls, pager_read_bytes, pager_written_bytes, ... */
EBB_API ebb_status ebb_swap_about(ebb_swap* swap, char** json) EBB_NOEXCEPT;
/* What no snapshot has committed is lost. */
EBB_API ebb_status ebb_swap_close(ebb_swap* swap) EBB_NOEXCEPT;

#if defined(__cplusplus)
}
#endif
#endif /* EBB_SWAP_H */
