/* A stand-in for libnvidia-ml.so.1, as far as sbctl.node.devices asks it.
   STAND_IN_DEVICES: how many devices; STAND_IN_FAILS: what nvmlInit returns; STAND_IN_SILENT: devices tell their name only.
   Of the first device: STAND_IN_LOST: it fell off its bus; STAND_IN_RECOVERY: the action that it needs; STAND_IN_ROWS: memory that failed. */
#include <stdio.h>
#include <stdlib.h>

typedef int Return;
typedef void *Device;
typedef struct {
    unsigned long long total, free, used;
} Memory;

typedef struct {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
} Process;

typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    unsigned type;
    Return result;
    union { double real; unsigned whole; unsigned long long large; } value;
} Field;

enum { OK = 0, BAD_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15, VERSION_MISMATCH = 18, RECOVERY_ACTION = 230 };

static int number(const char *name) {
    const char *text = getenv(name);
    return text ? atoi(text) : 0;
}

static Return told(void) { return number("STAND_IN_SILENT") ? NOT_SUPPORTED : OK; }

Return nvmlInit_v2(void) { return number("STAND_IN_FAILS"); }
Return nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
Return nvmlShutdown(void) { return OK; }

const char *nvmlErrorString(Return code) {
    switch (code) {
    case NOT_SUPPORTED: return "Not Supported";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case VERSION_MISMATCH: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

Return nvmlSystemGetDriverVersion(char *text, unsigned length) { snprintf(text, length, "580.65.06"); return OK; }
Return nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return OK; }
Return nvmlDeviceGetCount_v2(unsigned *count) { *count = number("STAND_IN_DEVICES"); return OK; }

Return nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device) {
    if ((int)index >= number("STAND_IN_DEVICES")) return BAD_ARGUMENT;
    if (index == 0 && number("STAND_IN_LOST")) return GPU_IS_LOST;
    *device = (Device)(long)(index + 1);
    return OK;
}

Return nvmlDeviceGetName(Device device, char *text, unsigned length) {
    (void)device;
    snprintf(text, length, "Stand-in device");
    return OK;
}

Return nvmlDeviceGetUUID(Device device, char *text, unsigned length) {
    snprintf(text, length, "GPU-00000000-0000-0000-0000-%012ld", (long)device);
    return told();
}

Return nvmlDeviceGetMemoryInfo(Device device, Memory *memory) {
    (void)device;
    memory->total = 150754820096ULL;
    memory->used = 1ULL << 30;
    memory->free = memory->total - memory->used;
    return told();
}

Return nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor) {
    (void)device;
    *major = 9;
    *minor = 0;
    return told();
}

Return nvmlDeviceGetFieldValues(Device device, int count, Field *fields) {
    if (told() != OK || count != 1 || fields[0].field != RECOVERY_ACTION) return NOT_SUPPORTED;
    fields[0].result = OK;
    fields[0].value.whole = (long)device == 1 ? (unsigned)number("STAND_IN_RECOVERY") : 0;
    return OK;
}

Return nvmlDeviceGetRemappedRows(Device device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    *corrected = *uncorrected = *pending = 0;
    *failed = (long)device == 1 && number("STAND_IN_ROWS");
    return told();
}

/* One process on each device, and one of which nothing is said. */
Return nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count, Process *found) {
    unsigned room = *count;
    if (told() != OK) return told();
    *count = 2;
    if (found == NULL || room < 2) return INSUFFICIENT_SIZE;
    found[0] = (Process){4000 + (unsigned)(long)device, 1ULL << 30, 0, 0};
    found[1] = (Process){4444, ~0ULL, 0, 0};
    return OK;
}
