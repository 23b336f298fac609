// The built-in kernels that compute. No headers are needed: half-precision numbers are told in bits.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct F16 {
    u16 bits;
};

struct Bf16 {
    u16 bits;
};

__device__ inline float wide(F16 value) {
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
    return result;
}

__device__ inline float wide(Bf16 value) {
    return __uint_as_float((u32)value.bits << 16);
}

// What is no number becomes the one quiet NaN.
__device__ inline F16 narrow(F16, float value) {
    F16 result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
    if (value != value) result.bits = 0x7e00;
    return result;
}

__device__ inline Bf16 narrow(Bf16, float value) {
    u32 bits = __float_as_uint(value);
    Bf16 result;
    // To the nearest, ties to even.
    result.bits = (u16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    if (value != value) result.bits = 0x7fc0;
    return result;
}

__device__ inline float settled(float value) {
    return value != value ? __uint_as_float(0x7fc00000u) : value;
}

__device__ inline double settled(double value) {
    return value != value ? __longlong_as_double(0x7ff8000000000000ll) : value;
}

// Integers wrap: they are added and multiplied without a sign.
__device__ inline u8 plus(u8 a, u8 b) { return (u8)(a + b); }
__device__ inline u16 plus(u16 a, u16 b) { return (u16)(a + b); }
__device__ inline u32 plus(u32 a, u32 b) { return a + b; }
__device__ inline u64 plus(u64 a, u64 b) { return a + b; }
__device__ inline float plus(float a, float b) { return settled(__fadd_rn(a, b)); }
__device__ inline double plus(double a, double b) { return settled(__dadd_rn(a, b)); }
__device__ inline F16 plus(F16 a, F16 b) { return narrow(a, __fadd_rn(wide(a), wide(b))); }
__device__ inline Bf16 plus(Bf16 a, Bf16 b) { return narrow(a, __fadd_rn(wide(a), wide(b))); }

__device__ inline u8 times(u8 a, u8 b) { return (u8)(a * b); }
__device__ inline u16 times(u16 a, u16 b) { return (u16)((u32)a * b); }
__device__ inline u32 times(u32 a, u32 b) { return a * b; }
__device__ inline u64 times(u64 a, u64 b) { return a * b; }
__device__ inline float times(float a, float b) { return settled(__fmul_rn(a, b)); }
__device__ inline double times(double a, double b) { return settled(__dmul_rn(a, b)); }
__device__ inline F16 times(F16 a, F16 b) { return narrow(a, __fmul_rn(wide(a), wide(b))); }
__device__ inline Bf16 times(Bf16 a, Bf16 b) { return narrow(a, __fmul_rn(wide(a), wide(b))); }

__device__ inline u64 own() { return blockIdx.x * (u64)blockDim.x + threadIdx.x; }
__device__ inline u64 all() { return gridDim.x * (u64)blockDim.x; }

// Sixteen bytes as elements.
template <class T>
union Pack {
    uint4 whole;
    T each[16 / sizeof(T)];
    __device__ Pack() {}
};

template <class T>
__device__ inline void add(const T *a, const T *b, T *out, u64 n) {
    const u64 each = 16 / sizeof(T);
    u64 packs = (((u64)a | (u64)b | (u64)out) & 15) == 0 ? n / each : 0;
    for (u64 i = own(); i < packs; i += all()) {
        Pack<T> x, y;
        x.whole = ((const uint4 *)a)[i];
        y.whole = ((const uint4 *)b)[i];
        for (u32 k = 0; k < each; k++) x.each[k] = plus(x.each[k], y.each[k]);
        ((uint4 *)out)[i] = x.whole;
    }
    for (u64 i = packs * each + own(); i < n; i += all()) out[i] = plus(a[i], b[i]);
}

template <class T>
__device__ inline void scale(const T *in, T factor, T *out, u64 n) {
    const u64 each = 16 / sizeof(T);
    u64 packs = (((u64)in | (u64)out) & 15) == 0 ? n / each : 0;
    for (u64 i = own(); i < packs; i += all()) {
        Pack<T> x;
        x.whole = ((const uint4 *)in)[i];
        for (u32 k = 0; k < each; k++) x.each[k] = times(x.each[k], factor);
        ((uint4 *)out)[i] = x.whole;
    }
    for (u64 i = packs * each + own(); i < n; i += all()) out[i] = times(in[i], factor);
}

template <class T>
__device__ inline void fill(T *out, u64 n, T value) {
    const u64 each = 16 / sizeof(T);
    // Elements before the first multiple of sixteen bytes, packs from there, and the rest.
    u64 head = ((16 - ((u64)out & 15)) & 15) / sizeof(T);
    if (head > n) head = n;
    u64 packs = (n - head) / each;
    Pack<T> x;
    for (u32 k = 0; k < each; k++) x.each[k] = value;
    for (u64 i = own(); i < packs; i += all()) ((uint4 *)(out + head))[i] = x.whole;
    for (u64 i = own(); i < head; i += all()) out[i] = value;
    for (u64 i = head + packs * each + own(); i < n; i += all()) out[i] = value;
}

#define NUMBERS(name, T)                                                                          \
    extern "C" __global__ void add_##name(const T *a, const T *b, T *out, u64 n) { add(a, b, out, n); }  \
    extern "C" __global__ void scale_##name(const T *in, T factor, T *out, u64 n) {              \
        scale(in, factor, out, n);                                                                \
    }                                                                                             \
    extern "C" __global__ void fill_##name(T *out, u64 n, T value) { fill(out, n, value); }

NUMBERS(u8, u8)
NUMBERS(u16, u16)
NUMBERS(u32, u32)
NUMBERS(u64, u64)
NUMBERS(f16, F16)
NUMBERS(bf16, Bf16)
NUMBERS(f32, float)
NUMBERS(f64, double)
