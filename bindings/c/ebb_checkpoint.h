/* ebb_checkpoint.h: checkpoints, read and written. A part of ebb.h, which has it all and says what
 * holds for all of it. */
#ifndef EBB_CHECKPOINT_H
#define EBB_CHECKPOINT_H

#include "ebb.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* A checkpoint of any format that Ebb reads. Its index alone is in memory, and nothing that it
 * holds is executed. Any threads, several at once. */
typedef struct ebb_checkpoint ebb_checkpoint;
/* `path`: a folder or a file. */
EBB_API ebb_status ebb_checkpoint_open(const char* path, ebb_checkpoint** checkpoint) EBB_NOEXCEPT;
/* The weights of its model, as the model's load_state_dict() takes them: each parameter once, in
 * its most exact copy, buffers, and what is tied under each of its names. A checkpoint of its own,
 * of which each tensor's state is "param"; the other one may be closed before it. */
EBB_API ebb_status ebb_checkpoint_weights(ebb_checkpoint* checkpoint,
                                          ebb_checkpoint** weights) EBB_NOEXCEPT;
/* A JSON object, for ebb_free(): format, producer, step (null where it is not known), world,
 * partition, notes; tensors: [name, state, key (null where the format has none), dtype, shape,
 * number of chunks], by their numbers; unread: [key, name, state, what]; groups and values. */
EBB_API ebb_status ebb_checkpoint_about(ebb_checkpoint* checkpoint, char** json) EBB_NOEXCEPT;
/* Where a tensor lies: a JSON object whose "chunks" is a list of [file, offset, bytes, rank that
 * wrote it, first index by dimension, extents], for ebb_free(). */
EBB_API ebb_status ebb_checkpoint_chunks(ebb_checkpoint* checkpoint, uint32_t tensor,
                                         char** json) EBB_NOEXCEPT;
/* A box of a tensor, or all of it (`offsets` and `extents` NULL), and memory for exactly its
 * elements: row-major, dense, little-endian, in the dtype that about() says. */
typedef struct ebb_wanted {
  uint32_t tensor;
  const uint64_t* offsets;
  const uint64_t* extents;
  void* into;
  uint64_t bytes;
} ebb_wanted;
/* Reads all of them, in the order in which they lie in the files, several at once (`workers`; 0:
 * six), and checks what the format has checksums for. Behind an error the memory holds anything.
 * Each worker reads through at most 6 MiB beside it. */
EBB_API ebb_status ebb_checkpoint_read(ebb_checkpoint* checkpoint, const ebb_wanted* wanted,
                                       uint64_t count, uint32_t workers) EBB_NOEXCEPT;
EBB_API ebb_status ebb_checkpoint_close(ebb_checkpoint* checkpoint) EBB_NOEXCEPT;

/* A tensor that is saved, and what of it lies here. */
typedef struct ebb_saved {
  uint64_t size;
  const char* name;
  const char* state; /* "exp_avg", ...; NULL: "param", which formats call by its name alone */
  const uint64_t* shape;
  uint32_t ndim;
  int32_t dtype;           /* EBB_F32, ... or another of formats/core/dtype.h; 0: EBB_F32 */
  const uint64_t* offsets; /* a box of it; both NULL: all of it */
  const uint64_t* extents;
  const void* data; /* row-major, dense, little-endian; NULL: nothing of it lies here */
} ebb_saved;
typedef struct ebb_save {
  uint64_t size;
  const char* format; /* "dcp", "safetensors", ... */
  const char* path;   /* must not be there: it appears whole or not at all */
  const ebb_saved* tensors;
  uint32_t tensor_count;
  uint32_t workers; /* 0: two for each core */
  int64_t step;     /* 0: not known; else one more than it is */
} ebb_save;
/* [C] Writes a checkpoint of what lies in the ranks' memory: nothing is gathered. All ranks list
 * the same tensors; of each, a rank has its rows, as torch.chunk() cuts the first dimension, or
 * more. `ranks`: NULL: this process alone. `bytes`: NULL, or what this rank wrote. */
EBB_API ebb_status ebb_checkpoint_save(const ebb_save* save, ebb_ranks* ranks,
                                       uint64_t* bytes) EBB_NOEXCEPT;

#if defined(__cplusplus)
}
#endif
#endif /* EBB_CHECKPOINT_H */
