//! Casts between floats, and the digest, on the CPU.

use half::{bf16, f16};
use spoc_driver::{BuiltIn, Call, ElementKind, Error, ErrorKind, Result};

/// A format of 8-bit floats.
#[derive(Clone, Copy)]
struct Small {
    mantissa: u32,
    bias: i32,
    /// The code of the largest number; what is larger becomes it.
    top: u8,
    /// Whether the code after it is infinity; all others above are no numbers.
    has_infinity: bool,
}

/// The formats of the Open Compute Project's specification of 8-bit floats.
const E4M3: Small = Small { mantissa: 3, bias: 7, top: 0x7e, has_infinity: false };
const E5M2: Small = Small { mantissa: 2, bias: 15, top: 0x7b, has_infinity: true };

impl Small {
    /// The number of a code without sign, up to `top`: exact.
    fn magnitude(self, code: u8) -> f32 {
        let (exponent, rest) =
            (i32::from(code >> self.mantissa), f32::from(code & ((1 << self.mantissa) - 1)));
        let whole = f32::from(1_u8 << self.mantissa);
        let scale = |exponent: i32| (exponent as f32).exp2();
        match exponent {
            0 => rest / whole * scale(1 - self.bias),
            _ => (1.0 + rest / whole) * scale(exponent - self.bias),
        }
    }

    fn decode(self, code: u8) -> f32 {
        let magnitude = match code & 0x7f {
            code if code <= self.top => self.magnitude(code),
            code if self.has_infinity && code == self.top + 1 => f32::INFINITY,
            // Its payload, if it has one, lies at the top, below the quiet bit's place or in it.
            code => {
                let rest = if self.has_infinity { u32::from(code & 3) << 21 } else { 0 };
                f32::from_bits(0x7fc0_0000 | rest)
            }
        };
        f32::from_bits(magnitude.to_bits() | u32::from(code & 0x80) << 24)
    }

    /// To the nearest, ties to the even code.
    fn encode(self, value: f32) -> u8 {
        let sign = if value.is_sign_negative() { 0x80 } else { 0 };
        let magnitude = value.abs();
        if magnitude.is_nan() {
            return sign | 0x7f;
        }
        if magnitude >= self.magnitude(self.top) {
            return sign | self.top;
        }
        let (mut below, mut above) = (0, self.top);
        while above - below > 1 {
            let middle = below + (above - below) / 2;
            if self.magnitude(middle) <= magnitude { below = middle } else { above = middle }
        }
        // Exact in 64 bits.
        let [low, high] = [below, above].map(|code| f64::from(self.magnitude(code)));
        let (down, up) = (f64::from(magnitude) - low, high - f64::from(magnitude));
        let is_up = up < down || (up == down && below % 2 == 1);
        sign | if is_up { above } else { below }
    }
}

/// Runs a cast.
pub(crate) fn run(which: BuiltIn, call: &mut Call<'_>) -> Result<()> {
    let refuse = || Error::new(ErrorKind::WrongKind, "casting").with("expected", "f32, f16 or bf16");
    let numbers: Vec<f32> = match (which, call.kind(0)?) {
        (BuiltIn::FromE4m3, _) => call.read::<u8>(0)?.iter().map(|code| E4M3.decode(*code)).collect(),
        (BuiltIn::FromE5m2, _) => call.read::<u8>(0)?.iter().map(|code| E5M2.decode(*code)).collect(),
        (_, Some(ElementKind::F32)) => call.read::<f32>(0)?.to_vec(),
        (_, Some(ElementKind::F16)) => call.read::<f16>(0)?.iter().map(|half| half.to_f32()).collect(),
        (_, Some(ElementKind::Bf16)) => {
            call.read::<bf16>(0)?.iter().map(|half| f32::from_bits(u32::from(half.to_bits()) << 16)).collect()
        }
        _ => return Err(refuse()),
    };
    match (which, call.kind(1)?) {
        (BuiltIn::ToE4m3, _) => put(&numbers, call.write::<u8>(1)?, |number| E4M3.encode(number)),
        (BuiltIn::ToE5m2, _) => put(&numbers, call.write::<u8>(1)?, |number| E5M2.encode(number)),
        (_, Some(ElementKind::F32)) => put(&numbers, call.write::<f32>(1)?, |number| number),
        (_, Some(ElementKind::F16)) => put(&numbers, call.write::<f16>(1)?, f16::from_f32),
        (_, Some(ElementKind::Bf16)) => put(&numbers, call.write::<bf16>(1)?, bf16::from_f32),
        _ => return Err(refuse()),
    }
    Ok(())
}

fn put<T>(numbers: &[f32], out: &mut [T], cast: impl Fn(f32) -> T) {
    for (out, number) in out.iter_mut().zip(numbers) {
        *out = cast(*number);
    }
}

const SALTS: [u32; 4] = [0x2545_f491, 0x8d7c_6a35, 0xb529_7a4d, 0x68e3_1da4];

/// The finaliser of `MurmurHash3`, 32 bits.
fn mix(mut h: u32) -> u32 {
    h = (h ^ (h >> 16)).wrapping_mul(0x85eb_ca6b);
    h = (h ^ (h >> 13)).wrapping_mul(0xc2b2_ae35);
    h ^ (h >> 16)
}

/// Runs the digest.
pub(crate) fn digest(call: &mut Call<'_>) -> Result<()> {
    let (bytes, first, out) = (call.read_bytes(0)?, call.scalar::<u32>(1)?, call.write::<u32>(2)?);
    let mut sums = [0_u32; 4];
    let mut number = first;
    for part in bytes.chunks(4) {
        let mut word = [0; 4];
        word[..part.len()].copy_from_slice(part);
        let word = u32::from_le_bytes(word);
        for (sum, salt) in sums.iter_mut().zip(SALTS) {
            let place = number.wrapping_mul(0x9e37_79b1).wrapping_add(salt);
            *sum = sum.wrapping_add(mix(mix(word.wrapping_add(salt)) ^ place));
        }
        number = number.wrapping_add(1);
    }
    for (out, sum) in out.iter_mut().zip(sums) {
        *out = out.wrapping_add(sum);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_floats_have_their_published_numbers() {
        assert_eq!(E4M3.decode(0x7e), 448.0);
        assert_eq!(E4M3.decode(0x01), 2.0_f32.powi(-9));
        assert_eq!(E5M2.decode(0x7b), 57344.0);
        assert_eq!(E5M2.decode(0x01), 2.0_f32.powi(-16));
        assert_eq!(E5M2.decode(0xfc), f32::NEG_INFINITY);
        assert!(E4M3.decode(0xff).is_nan() && E5M2.decode(0x7d).is_nan());
        assert_eq!(E4M3.encode(1e9), 0x7e);
        assert_eq!(E4M3.encode(-0.0), 0x80);
    }

    #[test]
    fn codes_come_back() {
        for small in [E4M3, E5M2] {
            for code in (0..=small.top).chain(0x80..=0x80 | small.top) {
                assert_eq!(small.encode(small.decode(code)), code);
            }
        }
    }
}
