/* Runs kernels of a compiled library without TVM's runtime: isa_driver LIBRARY SCRIPT DATA RESULTS.
 *
 * Script: "t CODE BITS NDIM EXTENT... OFFSET" makes the next tensor, read from DATA at OFFSET (filled with 0xFF, which
 * is NaN, if it is negative); "c SYMBOL N TENSOR..." calls a kernel; "d TENSOR" appends a tensor to RESULTS. What the
 * kernels ask of a runtime is here: parallel loops run their tasks one after another.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tvm/ffi/c_api.h>

#define LIMIT 4096
enum { TASKS = 2 };

typedef struct {
  void* sync_handle;
  int32_t num_task;
} Environment;
typedef int (*Task)(int, Environment*, void*);

static DLTensor tensors[LIMIT];
static int count;

static void stop(const char* what, const char* which) {
  fprintf(stderr, "%s %s\n", what, which);
  exit(1);
}

static void* aligned(size_t bytes) {
  void* memory = NULL;
  if (posix_memalign(&memory, 64, bytes ? bytes : 64)) stop("no memory for", "a buffer");
  return memory;
}

void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t number) {
  fprintf(stderr, "%s: ", kind);
  for (int i = 0; i < number; ++i) fprintf(stderr, "%s", parts[i] ? parts[i] : "");
  fprintf(stderr, "\n");
}

static void* allocate(int device, int id, uint64_t bytes, int code, int bits) { return aligned(bytes); }
static int release(int device, int id, void* memory) {
  free(memory);
  return 0;
}
static int launch(Task task, void* data, int number) {
  Environment environment = {NULL, number > 0 ? number : TASKS};
  for (int i = 0; i < environment.num_task; ++i)
    if (task(i, &environment, data)) return -1;
  return 0;
}

static void give(void* library, const char* name, void* function) {
  void** slot = (void**)dlsym(library, name);
  if (slot) *slot = function;
}

static size_t bytes_of(const DLTensor* t) {
  size_t n = (t->dtype.bits + 7) / 8;
  for (int i = 0; i < t->ndim; ++i) n *= (size_t)t->shape[i];
  return n;
}

int main(int argc, char** argv) {
  if (argc != 5) stop("usage:", "isa_driver LIBRARY SCRIPT DATA RESULTS");
  void* library = dlopen(argv[1], RTLD_NOW);
  if (!library) stop("cannot load", dlerror());
  give(library, "__TVMBackendAllocWorkspace", (void*)allocate);
  give(library, "__TVMBackendFreeWorkspace", (void*)release);
  give(library, "__TVMBackendParallelLaunch", (void*)launch);
  FILE *script = fopen(argv[2], "r"), *data = fopen(argv[3], "rb"), *results = fopen(argv[4], "wb");
  if (!script || !data || !results) stop("cannot open", "script, data or results");
  char what[4], symbol[512];
  while (fscanf(script, "%3s", what) == 1) {
    if (what[0] == 't') {
      int code, bits;
      long long offset;
      if (count == LIMIT) stop("too many", "tensors");
      DLTensor* t = &tensors[count++];
      memset(t, 0, sizeof *t);
      if (fscanf(script, "%d %d %d", &code, &bits, &t->ndim) != 3) stop("bad", "tensor");
      t->device.device_type = kDLCPU;
      t->dtype.code = (uint8_t)code;
      t->dtype.bits = (uint8_t)bits;
      t->dtype.lanes = 1;
      t->shape = (int64_t*)aligned(8 * (size_t)(t->ndim + 1));
      t->strides = (int64_t*)aligned(8 * (size_t)(t->ndim + 1));
      for (int i = 0; i < t->ndim; ++i) {
        long long extent;
        if (fscanf(script, "%lld", &extent) != 1) stop("bad", "extent");
        t->shape[i] = extent;
      }
      int64_t stride = 1;
      for (int i = t->ndim - 1; i >= 0; --i) {
        t->strides[i] = stride;
        stride *= t->shape[i];
      }
      if (fscanf(script, "%lld", &offset) != 1) stop("bad", "offset");
      t->data = aligned(bytes_of(t));
      memset(t->data, 0xFF, bytes_of(t));
      if (offset >= 0 && (fseek(data, (long)offset, SEEK_SET) || fread(t->data, 1, bytes_of(t), data) != bytes_of(t)))
        stop("short", "data");
    } else if (what[0] == 'c') {
      int n;
      TVMFFIAny arguments[256], result;
      memset(arguments, 0, sizeof arguments);
      memset(&result, 0, sizeof result);
      if (fscanf(script, "%511s %d", symbol, &n) != 2 || n > 256) stop("bad", "call");
      for (int i = 0; i < n; ++i) {
        int which;
        if (fscanf(script, "%d", &which) != 1 || which >= count) stop("bad", "argument");
        arguments[i].type_index = kTVMFFIDLTensorPtr;
        arguments[i].v_ptr = &tensors[which];
      }
      TVMFFISafeCallType kernel = (TVMFFISafeCallType)dlsym(library, symbol);
      if (!kernel) stop("no kernel", symbol);
      if (kernel(NULL, arguments, n, &result)) stop("failed:", symbol);
    } else {
      int which;
      if (fscanf(script, "%d", &which) != 1 || which >= count) stop("bad", "result");
      const DLTensor* t = &tensors[which];
      if (fwrite(t->data, 1, bytes_of(t), results) != bytes_of(t)) stop("cannot write", argv[4]);
    }
  }
  return fclose(results) != 0;
}
