/* One attention forward through the C interface, with memory from the CUDA driver: no toolkit, only libcuda.so.1
 * at run time. Prints the output's difference from a plain computation on the CPU, or why there is no GPU.
 *
 *   cc -std=c11 -Iinclude examples/forward.c -L<folder> -lflash_attention -ldl -lm -o forward
 */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "flash_attention.h"

enum { BATCH = 2, HEADS = 4, KV_HEADS = 2, SEQLEN = 100, DIM = 32 };
enum { Q_ELEMENTS = BATCH * SEQLEN * HEADS * DIM, K_ELEMENTS = BATCH * SEQLEN * KV_HEADS * DIM };

/* The few driver functions that the example needs, found at run time. */
static struct {
  int (*init)(unsigned);
  int (*device_get)(int *, int);
  int (*retain)(void **, int);
  int (*set_current)(void *);
  int (*alloc)(unsigned long long *, size_t);
  int (*to_device)(unsigned long long, const void *, size_t);
  int (*to_host)(void *, unsigned long long, size_t);
} cu;

static int load_driver(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) return 0;
  const struct { const char *name; void *function; } functions[] = {
    {"cuInit", &cu.init}, {"cuDeviceGet", &cu.device_get}, {"cuDevicePrimaryCtxRetain", &cu.retain},
    {"cuCtxSetCurrent", &cu.set_current}, {"cuMemAlloc_v2", &cu.alloc}, {"cuMemcpyHtoD_v2", &cu.to_device},
    {"cuMemcpyDtoH_v2", &cu.to_host},
  };
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
    void *symbol = dlsym(library, functions[i].name);
    if (!symbol) return 0;
    *(void **)functions[i].function = symbol;
  }
  int device;
  void *context;
  return cu.init(0) == 0 && cu.device_get(&device, 0) == 0 && cu.retain(&context, device) == 0 &&
         cu.set_current(context) == 0;
}

/* A device copy of host memory. */
static void *upload(const void *host, size_t bytes) {
  unsigned long long device = 0;
  if (cu.alloc(&device, bytes) != 0 || cu.to_device(device, host, bytes) != 0) {
    fprintf(stderr, "no device memory\n");
    exit(1);
  }
  return (void *)device;
}

/* The largest difference from the definition, computed row by row in double precision. */
static double difference(const float *q, const float *k, const float *v, const float *o) {
  static double p[SEQLEN];
  double worst = 0;
  for (int b = 0; b < BATCH; b++)
    for (int h = 0; h < HEADS; h++)
      for (int i = 0; i < SEQLEN; i++) {
        const int kv = h / (HEADS / KV_HEADS);
        double sum = 0;
        for (int j = 0; j <= i; j++) {
          double s = 0;
          for (int d = 0; d < DIM; d++)
            s += (double)q[((b * SEQLEN + i) * HEADS + h) * DIM + d] * k[((b * SEQLEN + j) * KV_HEADS + kv) * DIM + d];
          sum += p[j] = exp(s / sqrt(DIM));
        }
        for (int d = 0; d < DIM; d++) {
          double expected = 0;
          for (int j = 0; j <= i; j++) expected += p[j] / sum * v[((b * SEQLEN + j) * KV_HEADS + kv) * DIM + d];
          worst = fmax(worst, fabs(expected - o[((b * SEQLEN + i) * HEADS + h) * DIM + d]));
        }
      }
  return worst;
}

int main(void) {
  printf("flash-attention %s\n", flash_attention_version());
  static float q[Q_ELEMENTS], k[K_ELEMENTS], v[K_ELEMENTS], o[Q_ELEMENTS];
  for (int i = 0; i < Q_ELEMENTS; i++) q[i] = sinf(1.3f * (float)i);
  for (int i = 0; i < K_ELEMENTS; i++) k[i] = sinf(0.7f * (float)i), v[i] = cosf(0.9f * (float)i);

  const int gpu = load_driver();
  flash_attention_forward_args args = FLASH_ATTENTION_FORWARD_ARGS_INIT;
  args.dtype = 2;
  args.batch = BATCH;
  args.seqlen_q = args.seqlen_k = SEQLEN;
  args.heads = HEADS;
  args.kv_heads = KV_HEADS;
  args.head_dim = args.head_dim_v = DIM;
  args.q_stride[0] = args.o_stride[0] = SEQLEN * HEADS * DIM;
  args.k_stride[0] = args.v_stride[0] = SEQLEN * KV_HEADS * DIM;
  args.q_stride[1] = args.o_stride[1] = HEADS * DIM;
  args.k_stride[1] = args.v_stride[1] = KV_HEADS * DIM;
  args.q_stride[2] = args.k_stride[2] = args.v_stride[2] = args.o_stride[2] = DIM;
  args.causal = 1;
  /* Without a driver the call is refused before it looks at memory, so host addresses do for the message. */
  args.q = gpu ? upload(q, sizeof q) : q;
  args.k = gpu ? upload(k, sizeof k) : k;
  args.v = gpu ? upload(v, sizeof v) : v;
  args.o = gpu ? upload(o, sizeof o) : o;

  const int32_t status = flash_attention_forward(&args, NULL);
  if (status != FLASH_ATTENTION_STATUS_OK) {
    printf("forward: status %d: %s\n", (int)status, flash_attention_last_error());
    return status == FLASH_ATTENTION_STATUS_UNAVAILABLE ? 0 : 1;
  }
  /* This copy waits for the default stream. */
  if (cu.to_host(o, (unsigned long long)args.o, sizeof o) != 0) {
    printf("forward: the GPU reported an error\n");
    return 1;
  }
  const double worst = difference(q, k, v, o);
  printf("forward: ok, largest difference from the CPU %.2g\n", worst);
  return worst < 1e-4 ? 0 : 1;
}
