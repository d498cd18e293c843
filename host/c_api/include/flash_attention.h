/* Flash attention: the C interface of libflash_attention.so.
 * Made from the Rust sources by cbindgen: `UPDATE_HEADER=1 cargo test -p flash-attention-c-api`. */

#ifndef FLASH_ATTENTION_H
#define FLASH_ATTENTION_H

#include <stdint.h>


/**
 * What a function of this library returns, as a plain 32-bit integer. Later versions may add codes: treat every
 * value but 0 as a failure.
 */
typedef enum flash_attention_status {
  /**
   * The work is in the stream.
   */
  FLASH_ATTENTION_STATUS_OK = 0,
  /**
   * An argument can never be right, or this library does not know it. Nothing was launched, the outputs are
   * untouched; the message names the argument, its value, the limit and the way out.
   */
  FLASH_ATTENTION_STATUS_INVALID = 1,
  /**
   * What the call needs is not here: a driver, a GPU, a current context, a compiled kernel for this GPU.
   */
  FLASH_ATTENTION_STATUS_UNAVAILABLE = 2,
  /**
   * The driver refused a call; the message has the driver function, its code and its text.
   */
  FLASH_ATTENTION_STATUS_DRIVER = 3,
  /**
   * A bug in this library, caught at the boundary. The outputs may be unwritten.
   */
  FLASH_ATTENTION_STATUS_INTERNAL = 4,
} flash_attention_status;

/**
 * One attention forward. Set `struct_size`, and start from `FLASH_ATTENTION_FORWARD_ARGS_INIT` where the compiler
 * allows, so that fields of later versions keep their defaults.
 *
 * Shapes: q `(batch, seqlen_q, heads, head_dim)`, k `(batch, seqlen_k, kv_heads, head_dim)`,
 * v `(batch, seqlen_k, kv_heads, head_dim_v)`, o `(batch, seqlen_q, heads, head_dim_v)`. Any order in memory: the
 * strides tell; only the last dimension has to be contiguous.
 */
typedef struct flash_attention_forward_args {
  /**
   * `sizeof(flash_attention_forward_args)` of the caller's header: it tells which fields there are. Fields that
   * a newer caller has and this library does not know must be 0.
   */
  uint32_t struct_size;
  /**
   * Element type of q, k, v and o: 0 f16, 1 bf16, 2 f32.
   */
  int32_t dtype;
  /**
   * Device pointer to the queries.
   */
  const void *q;
  /**
   * Device pointer to the keys.
   */
  const void *k;
  /**
   * Device pointer to the values.
   */
  const void *v;
  /**
   * Device pointer to the output.
   */
  void *o;
  /**
   * Device pointer to `(batch, heads, seqlen_q)` contiguous floats for the log-sum-exp of each row (natural
   * logarithm), or NULL.
   */
  float *lse;
  /**
   * Sequences.
   */
  int64_t batch;
  /**
   * Query rows of a sequence.
   */
  int64_t seqlen_q;
  /**
   * Key rows of a sequence.
   */
  int64_t seqlen_k;
  /**
   * Query heads.
   */
  int64_t heads;
  /**
   * Key and value heads; divides `heads`.
   */
  int64_t kv_heads;
  /**
   * Columns of q and k: a multiple of 8 up to 256 (f32: anything up to 256).
   */
  int64_t head_dim;
  /**
   * Columns of v and o.
   */
  int64_t head_dim_v;
  /**
   * Elements between neighbours in batch, sequence and head.
   */
  int64_t q_stride[3];
  /**
   * As `q_stride`.
   */
  int64_t k_stride[3];
  /**
   * As `q_stride`.
   */
  int64_t v_stride[3];
  /**
   * As `q_stride`.
   */
  int64_t o_stride[3];
  /**
   * Factor on `q k^T`; NaN for `1/sqrt(head_dim)`.
   */
  float scale;
  /**
   * 0 no causal mask; 1 aligned at the bottom right (the last query sees the last key); 2 at the top left.
   */
  int32_t causal;
  /**
   * Keys to the left of the diagonal that a query sees, -1 for all.
   */
  int32_t window_left;
  /**
   * Keys to the right of the diagonal that a query sees, -1 for all.
   */
  int32_t window_right;
  /**
   * Cap `c` on the scores, `c * tanh(s / c)`; 0 for none.
   */
  float softcap;
  /**
   * "tiled", "sm80", "sm90" or "standard"; NULL for the plan's choice, or that of the environment variable
   * `FLASH_ATTENTION_KERNEL`.
   */
  const char *kernel;
} flash_attention_forward_args;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Puts one attention forward into `stream`: `o = softmax(scale * q k^T + mask) v`, and `lse`, the natural logarithm
 * of each row's sum of exponentials.
 *
 * `stream` is a `CUstream` (`cudaStream_t`), NULL for the default stream. The caller's context has to be current
 * on this thread (PyTorch and the CUDA runtime see to that), and is so afterwards. Any thread may call, several at
 * once too.
 *
 * Returns 0 (`FLASH_ATTENTION_STATUS_OK`) or another value of `flash_attention_status`; on failure nothing was launched
 * and `flash_attention_last_error` tells why.
 *
 * Lifetimes: the call returns before the work is done. `*args` and the text `kernel` are not needed after it; the
 * tensors have to stay alive until the stream has run the work, and until then nobody writes q, k and v or touches o
 * and lse. What the library keeps for a context (kernels, 8.5 MB of counters, the workspace of "standard") lives as
 * long as the context, also if the library is unloaded.
 *
 * Cost: the first call of a kind in a context loads its kernel, and may allocate what is kept. Later ones load,
 * allocate and wait for nothing; but "standard" waits for its last call where it needs a larger workspace.
 *
 * Graphs: a call may be captured, also the first of its kind. The graph holds the addresses and everything else of
 * `*args`: the tensors have to stay where they are for as long as it may be launched, and each launch reads and
 * writes them anew. Of all instances of one graph, and of its copies, at most one may run at a time, because they share
 * the counter that hands out tiles; capture the call again for a second one. "standard" has to be called once,
 * uncaptured, with at least as many scores before it is captured (`FLASH_ATTENTION_STATUS_INVALID` otherwise), and
 * while such a graph runs, no other call of "standard" may run in the context, because they share the workspace.
 *
 * # Safety
 * `args` is NULL or points to `args->struct_size` readable bytes, `args->kernel` is NULL or a NUL-terminated text; the
 * tensors that the structure describes are memory of the current context, inputs readable and outputs writable, for as
 * long as is said above; `stream` is NULL or a stream of that context; graphs are used as is said above.
 */
int32_t flash_attention_forward(const struct flash_attention_forward_args *args,
                                void *stream);

/**
 * Why this thread's last call failed: one line of text, empty after a success and never NULL. Valid until this
 * thread's next call.
 */
const char *flash_attention_last_error(void);

/**
 * The library's version, such as "0.1.0". Lives as long as the library is loaded.
 */
const char *flash_attention_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FLASH_ATTENTION_H */

/* What a call starts from in C; needs <math.h> for NAN. */
#define FLASH_ATTENTION_FORWARD_ARGS_INIT \
  { .struct_size = sizeof(flash_attention_forward_args), .scale = NAN, .window_left = -1, .window_right = -1 }
