// Small floats as the bits of an `f32` and back, by integer arithmetic: the same everywhere.

fn round_off(magnitude: u32, bits: u32) -> u32 {
    let rest = magnitude & ((1u << bits) - 1u);
    let half = 1u << (bits - 1u);
    let whole = magnitude >> bits;
    return select(whole, whole + 1u, rest > half || (rest == half && (whole & 1u) == 1u));
}

// With `mantissa` bits of mantissa, and exponents whose bias is `bias`; what is no number is `none`, what is too
// large `top`.
fn to_small(x: u32, mantissa: u32, bias: u32, top: u32, infinite: u32, none: u32) -> u32 {
    let magnitude = x & 0x7fffffffu;
    if magnitude > 0x7f800000u {
        return none;
    }
    if magnitude == 0x7f800000u {
        return infinite;
    }
    let exponent = magnitude >> 23u;
    // The lowest exponent of a normal number, in an f32's bias.
    let lowest = 128u - bias;
    var small = 0u;
    if exponent >= lowest {
        small = round_off(magnitude - ((lowest - 1u) << 23u), 23u - mantissa);
    } else {
        let bits = 23u - mantissa + lowest - exponent;
        if bits < 25u + 1u {
            small = round_off((magnitude & 0x7fffffu) | 0x800000u, bits);
        }
    }
    return select(small, infinite, small > top);
}

fn from_small(x: u32, mantissa: u32, bias: u32) -> u32 {
    // Adding and taking away a number with the exponent's place would need floats: shifted up instead.
    let exponent = x >> mantissa;
    let rest = x & ((1u << mantissa) - 1u);
    if exponent != 0u {
        return ((exponent + 127u - bias) << 23u) | (rest << (23u - mantissa));
    }
    if rest == 0u {
        return 0u;
    }
    let place = firstLeadingBit(rest);
    let above = mantissa - place;
    return ((128u - bias - above) << 23u) | ((rest << (23u - place)) & 0x7fffffu);
}

fn sign_of(x: u32, bits: u32) -> u32 {
    return (x & 0x80000000u) >> (32u - bits);
}

fn f32_to_f16(x: u32) -> u32 {
    let none = 0x7e00u | ((x >> 13u) & 0x3ffu);
    return sign_of(x, 16u) | to_small(x, 10u, 15u, 0x7bffu, 0x7c00u, none);
}

fn f16_to_f32(x: u32) -> u32 {
    let magnitude = x & 0x7fffu;
    let sign = (x & 0x8000u) << 16u;
    if magnitude > 0x7c00u {
        return sign | 0x7fc00000u | ((magnitude & 0x3ffu) << 13u);
    }
    return sign | select(from_small(magnitude, 10u, 15u), 0x7f800000u, magnitude == 0x7c00u);
}

fn f32_to_bf16(x: u32) -> u32 {
    if (x & 0x7fffffffu) > 0x7f800000u {
        return (x >> 16u) | 0x40u;
    }
    return (x >> 16u) + select(0u, 1u, (x & 0x8000u) != 0u && (x & 0x17fffu) != 0u);
}

fn bf16_to_f32(x: u32) -> u32 {
    return x << 16u;
}

fn f32_to_e4m3(x: u32) -> u32 {
    return sign_of(x, 8u) | to_small(x, 3u, 7u, 0x7eu, 0x7eu, 0x7fu);
}

fn e4m3_to_f32(x: u32) -> u32 {
    let sign = (x & 0x80u) << 24u;
    let magnitude = x & 0x7fu;
    return sign | select(from_small(magnitude, 3u, 7u), 0x7fc00000u, magnitude == 0x7fu);
}

fn f32_to_e5m2(x: u32) -> u32 {
    return sign_of(x, 8u) | to_small(x, 2u, 15u, 0x7bu, 0x7bu, 0x7fu);
}

fn e5m2_to_f32(x: u32) -> u32 {
    let sign = (x & 0x80u) << 24u;
    let magnitude = x & 0x7fu;
    if magnitude > 0x7cu {
        return sign | 0x7fc00000u | ((magnitude & 3u) << 21u);
    }
    return sign | select(from_small(magnitude, 2u, 15u), 0x7f800000u, magnitude == 0x7cu);
}
