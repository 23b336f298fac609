//! Element types of GGUF tensors: how many elements a block holds and how many bytes it takes.

use std::fmt;

macro_rules! ggml_types {
    ($($(#[$doc:meta])* $variant:ident $id:literal $name:literal $elements:literal $bytes:literal;)*) => {
        /// Element type of a GGUF tensor. Numbers, names and block sizes are those of ggml.
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum GgmlType { $($(#[$doc])* $variant,)* }

        impl GgmlType {
            /// Every type, by rising number.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The type of this number in a file; `None` for a removed or unknown one.
            #[must_use]
            pub const fn from_id(id: u32) -> Option<Self> {
                match id { $($id => Some(Self::$variant),)* _ => None }
            }

            /// Number in the file.
            #[must_use]
            pub const fn id(self) -> u32 {
                match self { $(Self::$variant => $id,)* }
            }

            /// Name, such as `Q4_K`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Elements of one block; 1 for plain types. The first dimension is a multiple of it.
            #[must_use]
            pub const fn block_elements(self) -> u64 {
                match self { $(Self::$variant => $elements,)* }
            }

            /// Bytes of one block.
            #[must_use]
            pub const fn block_bytes(self) -> u64 {
                match self { $(Self::$variant => $bytes,)* }
            }
        }
    };
}

ggml_types! {
    /// IEEE single precision.
    F32 0 "F32" 1 4;
    /// IEEE half precision.
    F16 1 "F16" 1 2;
    /// 4 bits, scale.
    Q4_0 2 "Q4_0" 32 18;
    /// 4 bits, scale and minimum.
    Q4_1 3 "Q4_1" 32 20;
    /// 5 bits, scale.
    Q5_0 6 "Q5_0" 32 22;
    /// 5 bits, scale and minimum.
    Q5_1 7 "Q5_1" 32 24;
    /// 8 bits, scale.
    Q8_0 8 "Q8_0" 32 34;
    /// 8 bits, scale and sum. The `gguf` Python package says 40 bytes, ggml itself 36.
    Q8_1 9 "Q8_1" 32 36;
    /// 2-bit k-quant.
    Q2_K 10 "Q2_K" 256 84;
    /// 3-bit k-quant.
    Q3_K 11 "Q3_K" 256 110;
    /// 4-bit k-quant.
    Q4_K 12 "Q4_K" 256 144;
    /// 5-bit k-quant.
    Q5_K 13 "Q5_K" 256 176;
    /// 6-bit k-quant.
    Q6_K 14 "Q6_K" 256 210;
    /// 8-bit k-quant.
    Q8_K 15 "Q8_K" 256 292;
    /// 2.06 bits by codebook.
    IQ2_XXS 16 "IQ2_XXS" 256 66;
    /// 2.31 bits by codebook.
    IQ2_XS 17 "IQ2_XS" 256 74;
    /// 3.06 bits by codebook.
    IQ3_XXS 18 "IQ3_XXS" 256 98;
    /// 1.56 bits by codebook.
    IQ1_S 19 "IQ1_S" 256 50;
    /// 4 bits, non-linear.
    IQ4_NL 20 "IQ4_NL" 32 18;
    /// 3.44 bits by codebook.
    IQ3_S 21 "IQ3_S" 256 110;
    /// 2.56 bits by codebook.
    IQ2_S 22 "IQ2_S" 256 82;
    /// 4.25 bits, non-linear.
    IQ4_XS 23 "IQ4_XS" 256 136;
    /// Signed 8-bit integer.
    I8 24 "I8" 1 1;
    /// Signed 16-bit integer.
    I16 25 "I16" 1 2;
    /// Signed 32-bit integer.
    I32 26 "I32" 1 4;
    /// Signed 64-bit integer.
    I64 27 "I64" 1 8;
    /// IEEE double precision.
    F64 28 "F64" 1 8;
    /// 1.75 bits by codebook.
    IQ1_M 29 "IQ1_M" 256 56;
    /// bfloat16.
    BF16 30 "BF16" 1 2;
    /// Ternary, 1.69 bits.
    TQ1_0 34 "TQ1_0" 256 54;
    /// Ternary, 2.06 bits.
    TQ2_0 35 "TQ2_0" 256 66;
    /// 4-bit float with a shared exponent.
    MXFP4 39 "MXFP4" 32 17;
    /// 4-bit float with 8-bit float scales.
    NVFP4 40 "NVFP4" 64 36;
    /// 1 bit, scale.
    Q1_0 41 "Q1_0" 128 18;
    /// 2 bits, scale.
    Q2_0 42 "Q2_0" 64 18;
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lead_back_to_their_types() {
        for kind in GgmlType::ALL {
            assert_eq!(GgmlType::from_id(kind.id()), Some(*kind));
        }
        for removed in [4, 5, 31, 32, 33, 36, 37, 38, 43, u32::MAX] {
            assert_eq!(GgmlType::from_id(removed), None);
        }
    }

    #[test]
    fn a_block_takes_the_bits_its_parts_add_up_to() {
        // (type, bits of the elements together, bits of scales, minima and sums)
        for (kind, quants, extra) in [
            (GgmlType::Q4_0, 32 * 4, 16),
            (GgmlType::Q5_1, 32 * 5, 32),
            (GgmlType::Q8_1, 32 * 8, 32),
            (GgmlType::Q4_K, 256 * 4, 32 + 96),
            (GgmlType::Q6_K, 256 * 6, 16 * 8 + 16),
            (GgmlType::Q8_K, 256 * 8, 32 + 16 * 16),
            (GgmlType::MXFP4, 32 * 4, 8),
            (GgmlType::NVFP4, 64 * 4, 4 * 8),
            (GgmlType::Q1_0, 128, 16),
            (GgmlType::Q2_0, 64 * 2, 16),
        ] {
            assert_eq!(kind.block_bytes() * 8, quants + extra, "{kind}");
        }
    }
}
