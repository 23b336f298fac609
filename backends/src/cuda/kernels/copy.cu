// The kernels that gather.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

__device__ inline u64 own() { return blockIdx.x * (u64)blockDim.x + threadIdx.x; }
__device__ inline u64 all() { return gridDim.x * (u64)blockDim.x; }

// A warp's share of a chunk: each lane has four units under way at once.
#define UNDER_WAY 4

// Chunk i of `out` becomes chunk indices[i] of `in`; what lies outside `in` is zero. `Unit` divides both
// addresses and the length of a chunk.
template <class Unit>
__device__ inline void gather(const u8 *in, u64 in_bytes, const u32 *indices, u64 chunks, u64 chunk_bytes, u8 *out,
                              u64 out_bytes) {
    const u64 tile_bytes = 32 * UNDER_WAY * sizeof(Unit);
    u64 tiles_each = (chunk_bytes + tile_bytes - 1) / tile_bytes;
    u64 last = in_bytes / chunk_bytes;
    u32 lane = threadIdx.x & 31;
    for (u64 tile = own() / 32; tile < chunks * tiles_each; tile += all() / 32) {
        u64 chunk = tile / tiles_each;
        u64 at = (tile - chunk * tiles_each) * tile_bytes + lane * sizeof(Unit);
        u64 index = indices[chunk];
        const u8 *from = in + (index > last ? in_bytes : index * chunk_bytes);
        u64 there = index > last ? 0 : in_bytes - index * chunk_bytes;
        if (there > chunk_bytes) there = chunk_bytes;
        u8 *to = out + chunk * chunk_bytes;
        u64 wanted = out_bytes - chunk * chunk_bytes;
        if (wanted > chunk_bytes) wanted = chunk_bytes;
        if (at + (3 * 32 + 1) * sizeof(Unit) <= there && at + (3 * 32 + 1) * sizeof(Unit) <= wanted) {
            Unit held[UNDER_WAY];
#pragma unroll
            for (u32 k = 0; k < UNDER_WAY; k++) held[k] = *(const Unit *)(from + at + k * 32 * sizeof(Unit));
#pragma unroll
            for (u32 k = 0; k < UNDER_WAY; k++) *(Unit *)(to + at + k * 32 * sizeof(Unit)) = held[k];
            continue;
        }
        for (u32 k = 0; k < UNDER_WAY; k++) {
            u64 first = at + k * 32 * sizeof(Unit);
            if (first + sizeof(Unit) <= there && first + sizeof(Unit) <= wanted) {
                *(Unit *)(to + first) = *(const Unit *)(from + first);
                continue;
            }
            for (u64 byte = first; byte < first + sizeof(Unit) && byte < wanted; byte++) {
                to[byte] = byte < there ? from[byte] : 0;
            }
        }
    }
}

#define GATHER(bytes, Unit)                                                                                    \
    extern "C" __global__ void gather_##bytes(const u8 *in, u64 in_bytes, const u32 *indices, u64 chunks,      \
                                              u64 chunk_bytes, u8 *out, u64 out_bytes) {                       \
        gather<Unit>(in, in_bytes, indices, chunks, chunk_bytes, out, out_bytes);                              \
    }

GATHER(16, uint4)
GATHER(8, u64)
GATHER(4, u32)
GATHER(2, u16)
GATHER(1, u8)
