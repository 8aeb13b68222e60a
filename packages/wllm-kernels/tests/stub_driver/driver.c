// A CUDA driver without a GPU: says what the test tells it to say, and remembers what it was asked to do.
// All of its state is the structure `stub`, which the test reads and writes; stub_driver/__init__.py has its twin.

#include <string.h>
#ifdef _WIN32
#include <windows.h>
#define EXPORT __declspec(dllexport)
#define SLEEP(milliseconds) Sleep(milliseconds)
#else
#include <unistd.h>
#define EXPORT __attribute__((visibility("default")))
#define SLEEP(milliseconds) usleep(1000 * (milliseconds))
#endif

enum { MAX_FUNCTIONS = 1024, PARAMETER_BYTES = 256 };
enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, NOT_FOUND = 500, STREAM_CAPTURE_UNSUPPORTED = 900 };

EXPORT struct {
  // What it says.
  int init_result, version, capability[4], max_shared_bytes, load_result, launch_result, load_milliseconds;
  int time_limit;              // of a kernel
  int capturing;               // a graph is captured: code can be loaded by a thread in relaxed mode only
  char missing_kernel[64];     // no library has this one
  int parameter_bytes;         // of the next launch
  // What it was asked.
  int loads, functions, contexts, launches;
  char image[64];              // the first bytes of the last library
  int shared_bytes_allowed;    // by the last call
  unsigned grid[3], threads[3], shared_bytes;
  unsigned long long stream, context, function;
  int overlaps;                // the launch has the attribute of programmatic stream serialization, and no other
  unsigned char parameters[PARAMETER_BYTES];
} stub;

static char function_names[MAX_FUNCTIONS][64];
static __thread unsigned long long contexts[8];
static __thread int depth, capture_mode;

EXPORT int cuInit(unsigned flags) { return stub.init_result; }
EXPORT int cuDriverGetVersion(int* version) { *version = stub.version; return 0; }
EXPORT int cuGetErrorName(int result, const char** name) {
  *name = result == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_OF_STUB";
  return 0;
}

// As many as have a capability.
EXPORT int cuDeviceGetCount(int* count) {
  for (*count = 0; *count < 4 && stub.capability[*count]; ++*count) {}
  return 0;
}
EXPORT int cuDeviceGet(int* device, int index) { *device = 40 + index; return 0; }
EXPORT int cuDeviceGetName(char* name, int size, int device) {
  strncpy(name, "Stub GPU", (size_t)size);
  return 0;
}
EXPORT int cuDeviceGetAttribute(int* value, int attribute, int device) {
  int capability = stub.capability[device - 40];
  switch (attribute) {
    case 16: *value = 30; return 0;
    case 17: *value = stub.time_limit; return 0;
    case 75: *value = capability / 10; return 0;
    case 76: *value = capability % 10; return 0;
    case 97: *value = stub.max_shared_bytes; return 0;
    default: return INVALID_VALUE;
  }
}

EXPORT int cuDevicePrimaryCtxRetain(unsigned long long* context, int device) {
  stub.contexts++;
  *context = 1000 + device;
  return 0;
}
EXPORT int cuCtxPushCurrent_v2(unsigned long long context) { contexts[++depth] = context; return 0; }
EXPORT int cuCtxPopCurrent_v2(unsigned long long* context) { *context = contexts[depth--]; return 0; }
// For the test: what torch does when it first uses a GPU in a thread.
EXPORT void make_current(unsigned long long context) { contexts[depth] = context; }
EXPORT int context_depth(void) { return depth; }
EXPORT int cuThreadExchangeStreamCaptureMode(int* mode) {
  int old = capture_mode;
  capture_mode = *mode;
  *mode = old;
  return 0;
}

#ifndef WITHOUT_LIBRARIES
EXPORT int cuLibraryLoadData(void** library, const char* code, void* a, void* b, unsigned c, void* d, void* e,
                             unsigned f) {
  if (stub.capturing && capture_mode != 2) return STREAM_CAPTURE_UNSUPPORTED;
  SLEEP(stub.load_milliseconds);
  stub.loads++;
  strncpy(stub.image, code, sizeof stub.image - 1);
  *library = (void*)(unsigned long long)(2000 + stub.loads);
  return stub.load_result;
}
EXPORT int cuLibraryGetKernel(unsigned long long* kernel, void* library, const char* name) {
  if (strcmp(name, stub.missing_kernel) == 0) return NOT_FOUND;
  if (stub.functions == MAX_FUNCTIONS) return OUT_OF_MEMORY;
  int number = stub.functions++;
  strncpy(function_names[number], name, sizeof function_names[number] - 1);
  *kernel = 3000 + number;
  return 0;
}
EXPORT int cuKernelGetFunction(unsigned long long* function, unsigned long long kernel) {
  if (!contexts[depth]) return INVALID_CONTEXT;
  *function = kernel + 1000;
  return 0;
}
#endif
EXPORT const char* function_name(unsigned long long function) { return function_names[function - 4000]; }
EXPORT int cuFuncGetAttribute(int* value, int attribute, unsigned long long function) {
  *value = 32;
  return attribute == 4 ? 0 : INVALID_VALUE;
}
EXPORT int cuFuncSetAttribute(unsigned long long function, int attribute, int value) {
  if (attribute != 8 || value > stub.max_shared_bytes) return INVALID_VALUE;
  stub.shared_bytes_allowed = value;
  return 0;
}

// As in cuda.h.
enum AttributeNumber { PROGRAMMATIC_STREAM_SERIALIZATION = 6 };
struct Attribute {
  enum AttributeNumber number;
  char pad[8 - sizeof(enum AttributeNumber)];
  union {
    char pad[64];
    int programmatic_stream_serialization_allowed;
  } value;
};
struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z, x, y, z, shared_bytes;
  void* stream;
  struct Attribute* attributes;
  unsigned num_attributes;
};

EXPORT int cuLaunchKernelEx(const struct LaunchConfig* config, unsigned long long function, void** parameters,
                            void** extra) {
  if (stub.launch_result) return stub.launch_result;
  if (!contexts[depth]) return INVALID_CONTEXT;
  stub.grid[0] = config->grid_x, stub.grid[1] = config->grid_y, stub.grid[2] = config->grid_z;
  stub.threads[0] = config->x, stub.threads[1] = config->y, stub.threads[2] = config->z;
  stub.shared_bytes = config->shared_bytes, stub.stream = (unsigned long long)config->stream;
  stub.function = function;
  if (config->num_attributes > 1) return INVALID_VALUE;
  stub.overlaps = 0;
  if (config->num_attributes) {
    const struct Attribute* attribute = config->attributes;
    if (attribute->number != PROGRAMMATIC_STREAM_SERIALIZATION) return INVALID_VALUE;
    stub.overlaps = attribute->value.programmatic_stream_serialization_allowed;
  }
  stub.context = contexts[depth];
  if (stub.parameter_bytes > PARAMETER_BYTES) return INVALID_VALUE;
  memcpy(stub.parameters, parameters[0], (size_t)stub.parameter_bytes);
  __atomic_fetch_add(&stub.launches, 1, __ATOMIC_SEQ_CST);
  return extra == 0 ? 0 : INVALID_VALUE;
}
