// The kernel that carries many small copies. Made twice: PIECES_MAX and ENTRY stand before the text.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

// Many copies, named by the launch itself: distances from a base, in words, and the bytes that both addresses are
// past a word in the two highest bits of the length.
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

extern "C" __global__ void ENTRY(const Pieces pieces) {
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
