//! Operations that no dialect has as the kernels mean them.

/// Halves as `f32`s of the same value, by integer arithmetic: the same on every device, with or without halves
/// of its own.
const HALVES: &str = r"
DEVICE u32 to_half(f32 x) {
    u32 b = BITS_F32(x), s = (b >> 16) & 0x8000u, a = b & 0x7fffffffu, q, r, h;
    if (a >= 0x7f800000u) return s | (a > 0x7f800000u ? 0x7e00u | ((a >> 13) & 0x3ffu) : 0x7c00u);
    if (a >= 0x47800000u) return s | 0x7c00u;
    if (a < 0x33000000u) return s;
    if (a < 0x38800000u) {
        u32 m = (a & 0x7fffffu) | 0x800000u, n = 126u - (a >> 23);
        q = m >> n; r = m & ((1u << n) - 1u); h = 1u << (n - 1u);
    } else {
        q = (a - 0x38000000u) >> 13; r = a & 0x1fffu; h = 0x1000u;
    }
    if (r > h || (r == h && (q & 1u))) q++;
    return s | q;
}
DEVICE f32 from_half(u32 x) {
    u32 s = (x & 0x8000u) << 16, e = (x >> 10) & 31u, m = x & 0x3ffu;
    if (e == 31u) return AS_F32(s | 0x7f800000u | (m << 13) | (m ? 0x400000u : 0u));
    if (e == 0u) return AS_F32(BITS_F32((f32)m * 5.9604644775390625e-8f) | s);
    return AS_F32(s | ((e + 112u) << 23) | (m << 13));
}
DEVICE f32 round_half(f32 x) { return from_half(to_half(x)); }
";

/// Integers, once a width.
const INTEGERS: &str = r"
DEVICE uW udivW(uW a, uW b) { return b == 0 ? a : a / b; }
DEVICE uW uremW(uW a, uW b) { return b == 0 ? 0 : a % b; }
DEVICE iW idivW(iW a, iW b) { return b == 0 ? a : b == -1 ? (iW)(0 - (uW)a) : a / b; }
DEVICE iW iremW(iW a, iW b) { return b == 0 || b == -1 ? 0 : a % b; }
DEVICE uW reverseW(uW x) {
    uW r = 0;
    for (int i = 0; i < W; i++) { r = (r << 1) | (x & 1); x >>= 1; }
    return r;
}
DEVICE u32 trailingW(uW x) { return x == 0 ? Wu : (Wu - 1u) - CLZW(x & (0 - x)); }
";

pub(super) fn text(uses_wide: bool) -> String {
    let mut text = HALVES.to_owned();
    text.push_str(&INTEGERS.replace('W', "32"));
    if uses_wide {
        text.push_str(&INTEGERS.replace('W', "64"));
    }
    text
}
