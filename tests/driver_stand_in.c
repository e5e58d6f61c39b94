/* Stands in for the libraries of HIP and of CUDA's driver: "code objects" are shared libraries for this CPU, whose
   kernels are functions of (addresses of the arguments, workgroup, thread). Every call checks what it is given. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef void (*Kernel)(void **, unsigned, unsigned);
enum { INVALID = 1, NO_MEMORY = 2, NO_BINARY = 209, NOT_FOUND = 500 };

static int started, living;
static __thread int here; /* the device, or the context, is a thread's own */

static int start(unsigned flags) { started = flags == 0; return started ? 0 : INVALID; }
static int count(int *n) { *n = 2; return started ? 0 : INVALID; }
static int get(int *device, int number) { *device = number; return number < 2 ? 0 : INVALID; }
static int name(char *text, int size, int device) { snprintf(text, size, "stand-in %d", device); return 0; }

static int load(void **module, const void *image) {
  const Elf64_Ehdr *head = image;
  if (!here || memcmp(head->e_ident, ELFMAG, SELFMAG)) return NO_BINARY;
  char path[] = "/tmp/stand-in-XXXXXX";
  int file = mkstemp(path);
  size_t size = head->e_shoff + (size_t)head->e_shnum * head->e_shentsize;
  if (file < 0 || write(file, image, size) != (ssize_t)size) return NO_MEMORY;
  close(file);
  *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  unlink(path);
  return *module ? 0 : NO_BINARY;
}
static int unload(void *module) { return dlclose(module) ? INVALID : 0; }
static int function(void **found, void *module, const char *what) {
  *found = dlsym(module, what);
  return *found ? 0 : NOT_FOUND;
}
static int allocate(void **buffer, size_t size) {
  if (!here) return INVALID;
  if (!size || size > (size_t)1 << 32) return NO_MEMORY;
  *buffer = malloc(size);
  living++;
  return *buffer ? 0 : NO_MEMORY;
}
static int release(void *buffer) { free(buffer); living--; return 0; }
static int copy(void *to, const void *from, size_t size) { memcpy(to, from, size); return 0; }
int stand_in_living(void) { return living; }

static int run(void *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, void **at) {
  if (!here || !gx || !bx || gy * gz * by * bz != 1) return INVALID;
  for (unsigned block = 0; block < gx; block++)
    for (unsigned thread = 0; thread < bx; thread++) ((Kernel)kernel)(at, block, thread);
  return 0;
}
static int create(void **event, unsigned flags) {
  *event = calloc(1, sizeof(struct timespec));
  return flags ? INVALID : 0;
}
static int record(void *event, void *stream) { return stream ? INVALID : clock_gettime(CLOCK_MONOTONIC, event); }
static int elapsed(float *milliseconds, struct timespec *begin, struct timespec *end) {
  *milliseconds = 1e3f * (end->tv_sec - begin->tv_sec) + 1e-6f * (end->tv_nsec - begin->tv_nsec);
  return 0;
}

/* HIP: arguments in one block of memory, marked by 1, its size by 2, the list's end by 3. */
int hipInit(unsigned flags) { return start(flags); }
int hipGetDeviceCount(int *n) { return count(n); }
int hipDeviceGet(int *device, int number) { return get(device, number); }
int hipDeviceGetName(char *text, int size, int device) { return name(text, size, device); }
int hipSetDevice(int device) { here = device < 2; return here ? 0 : INVALID; }
/* Memory and launches are of the thread's device too. */
int hipModuleLoadData(void **module, const void *image) { return load(module, image); }
int hipModuleUnload(void *module) { return unload(module); }
int hipModuleGetFunction(void **found, void *module, const char *what) { return function(found, module, what); }
int hipMalloc(void **buffer, size_t size) { return allocate(buffer, size); }
int hipFree(void *buffer) { return release(buffer); }
int hipMemcpyHtoD(void *to, const void *from, size_t size) { return copy(to, from, size); }
int hipMemcpyDtoH(void *to, const void *from, size_t size) { return copy(to, from, size); }
int hipModuleLaunchKernel(void *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void *stream, void **arguments, void **extra) {
  if (shared || stream || arguments || !extra) return INVALID;
  if ((uintptr_t)extra[0] != 1 || (uintptr_t)extra[2] != 2 || (uintptr_t)extra[4] != 3) return INVALID;
  if (*(size_t *)extra[3] != 2 * sizeof(void *)) return INVALID;
  return run(kernel, gx, gy, gz, bx, by, bz, extra[1]);
}
int hipEventCreateWithFlags(void **event, unsigned flags) { return create(event, flags); }
int hipEventRecord(void *event, void *stream) { return record(event, stream); }
int hipEventSynchronize(void *event) { return event ? 0 : INVALID; }
int hipEventElapsedTime(float *ms, void *begin, void *end) { return elapsed(ms, begin, end); }
int hipEventDestroy(void *event) { free(event); return 0; }
int hipDeviceSynchronize(void) { return 0; }

/* CUDA: addresses of the arguments, one by one; everything needs a context. */
int cuInit(unsigned flags) { return start(flags); }
int cuDeviceGetCount(int *n) { return count(n); }
int cuDeviceGet(int *device, int number) { return get(device, number); }
int cuDeviceGetName(char *text, int size, int device) { return name(text, size, device); }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &started; return device < 2 ? 0 : INVALID; }
int cuCtxSetCurrent(void *context) { here = context == &started; return here ? 0 : INVALID; }
int cuModuleLoadData(void **module, const void *image) { return load(module, image); }
int cuModuleUnload(void *module) { return unload(module); }
int cuModuleGetFunction(void **found, void *module, const char *what) { return function(found, module, what); }
int cuMemAlloc_v2(void **buffer, size_t size) { return allocate(buffer, size); }
int cuMemFree_v2(void *buffer) { return release(buffer); }
int cuMemcpyHtoD_v2(void *to, const void *from, size_t size) { return copy(to, from, size); }
int cuMemcpyDtoH_v2(void *to, const void *from, size_t size) { return copy(to, from, size); }
int cuLaunchKernel(void *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **arguments, void **extra) {
  if (shared || stream || extra || !arguments) return INVALID;
  void *at[2] = {*(void **)arguments[0], *(void **)arguments[1]};
  return run(kernel, gx, gy, gz, bx, by, bz, at);
}
int cuEventCreate(void **event, unsigned flags) { return create(event, flags); }
int cuEventRecord(void *event, void *stream) { return record(event, stream); }
int cuEventSynchronize(void *event) { return event ? 0 : INVALID; }
int cuEventElapsedTime(float *ms, void *begin, void *end) { return elapsed(ms, begin, end); }
int cuEventDestroy_v2(void *event) { free(event); return 0; }
int cuCtxSynchronize(void) { return 0; }
