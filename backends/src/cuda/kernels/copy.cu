// The kernels that copy: gather, and the one that carries many small copies.

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

// Many copies, named by the launch itself: distances from a base, in words, and the bytes that both addresses are
// past a word in the two highest bits of the length.
#define PIECES_MAX 338

struct Pieces {
    u64 from;
    u64 to;
    u32 from_words[PIECES_MAX];
    u32 to_words[PIECES_MAX];
    u32 bytes[PIECES_MAX];
    u32 count;
};

// One block's copy of one piece. Both addresses are the same number of bytes away from a multiple of a unit.
template <class Unit>
__device__ inline void carry(const u8 *from, u8 *to, u32 bytes) {
    u32 head = (u32)((sizeof(Unit) - ((u64)to & (sizeof(Unit) - 1))) & (sizeof(Unit) - 1));
    if (head > bytes) head = bytes;
    u32 units = (bytes - head) / sizeof(Unit);
    const Unit *source = (const Unit *)(from + head);
    Unit *target = (Unit *)(to + head);
    u32 at = threadIdx.x, step = blockDim.x;
    for (; at + 3 * step < units; at += 4 * step) {
        Unit a = source[at], b = source[at + step], c = source[at + 2 * step], d = source[at + 3 * step];
        target[at] = a;
        target[at + step] = b;
        target[at + 2 * step] = c;
        target[at + 3 * step] = d;
    }
    for (; at < units; at += step) target[at] = source[at];
    for (u32 i = threadIdx.x; i < head; i += step) to[i] = from[i];
    for (u32 i = head + units * sizeof(Unit) + threadIdx.x; i < bytes; i += step) to[i] = from[i];
}

extern "C" __global__ void carry_pieces(const Pieces pieces) {
    for (u32 i = blockIdx.x; i < pieces.count; i += gridDim.x) {
        u32 past = pieces.bytes[i] >> 30, bytes = pieces.bytes[i] & 0x3fffffff;
        const u8 *from = (const u8 *)(pieces.from + 4 * (u64)pieces.from_words[i] + past);
        u8 *to = (u8 *)(pieces.to + 4 * (u64)pieces.to_words[i] + past);
        u64 apart = (u64)from ^ (u64)to;
        if ((apart & 15) == 0) carry<uint4>(from, to, bytes);
        else if ((apart & 7) == 0) carry<u64>(from, to, bytes);
        else carry<u32>(from, to, bytes);
    }
}
