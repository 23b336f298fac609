//! Element types of the safetensors format.

use std::fmt;

macro_rules! dtypes {
    ($($(#[$doc:meta])* $variant:ident $name:literal $bits:literal;)*) => {
        /// Element type of a tensor. Names and widths are those of the safetensors format.
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Dtype { $($(#[$doc])* $variant,)* }

        impl Dtype {
            /// Every element type, narrowest first.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Name in the file, such as `BF16`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Width of one element in bits.
            #[must_use]
            pub const fn bits(self) -> u32 {
                match self { $(Self::$variant => $bits,)* }
            }

            /// The element type with this name in a file.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

dtypes! {
    /// 4-bit float, two to a byte.
    F4 "F4" 4;
    /// 6-bit float, 2 exponent and 3 mantissa bits, four to three bytes.
    F6_E2M3 "F6_E2M3" 6;
    /// 6-bit float, 3 exponent and 2 mantissa bits, four to three bytes.
    F6_E3M2 "F6_E3M2" 6;
    /// Boolean, one byte; any byte is legal.
    BOOL "BOOL" 8;
    /// Unsigned 8-bit integer.
    U8 "U8" 8;
    /// Signed 8-bit integer.
    I8 "I8" 8;
    /// 8-bit float, 5 exponent bits.
    F8_E5M2 "F8_E5M2" 8;
    /// 8-bit float, 4 exponent bits.
    F8_E4M3 "F8_E4M3" 8;
    /// 8-bit float, 5 exponent bits, without infinities and negative zero.
    F8_E5M2FNUZ "F8_E5M2FNUZ" 8;
    /// 8-bit float, 4 exponent bits, without infinities and negative zero.
    F8_E4M3FNUZ "F8_E4M3FNUZ" 8;
    /// 8-bit scale: an exponent only.
    F8_E8M0 "F8_E8M0" 8;
    /// Signed 16-bit integer.
    I16 "I16" 16;
    /// Unsigned 16-bit integer.
    U16 "U16" 16;
    /// IEEE half precision.
    F16 "F16" 16;
    /// bfloat16.
    BF16 "BF16" 16;
    /// Signed 32-bit integer.
    I32 "I32" 32;
    /// Unsigned 32-bit integer.
    U32 "U32" 32;
    /// IEEE single precision.
    F32 "F32" 32;
    /// Complex of two single-precision floats.
    C64 "C64" 64;
    /// IEEE double precision.
    F64 "F64" 64;
    /// Signed 64-bit integer.
    I64 "I64" 64;
    /// Unsigned 64-bit integer.
    U64 "U64" 64;
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
