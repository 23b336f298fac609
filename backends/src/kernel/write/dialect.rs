//! What the C dialects differ in.

use super::super::ir::{AtomicOp, Kind};

/// A dialect of C that kernels are written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Dialect {
    /// OpenCL C 1.2.
    OpenCl,
    /// CUDA C++, as NVRTC takes it. Compile it with `--fmad=false`: kernels mean what they say.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "for the CUDA adapter"))]
    Cuda,
    /// HIP C++, as hiprtc takes it.
    #[allow(dead_code, reason = "for the HIP adapter")]
    Hip,
}

const OPENCL: &str = r"#pragma OPENCL FP_CONTRACT OFF
typedef uchar u8; typedef ushort u16; typedef uint u32; typedef int i32; typedef ulong u64; typedef long i64; typedef float f32;
#define GLOBAL __global
#define GROUP __local
#define GROUP_MEMORY __local
#define DEVICE static
#define KERNEL __kernel __attribute__((reqd_work_group_size(SIZE_X, SIZE_Y, SIZE_Z)))
#define ATOMIC volatile
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define LOCAL_ID(n) ((u32)get_local_id(n))
#define GROUP_ID(n) ((u32)get_group_id(n))
#define GROUP_COUNT(n) ((u32)get_num_groups(n))
#define AS_F32(x) as_float((u32)(x))
#define BITS_F32(x) as_uint(x)
#define AS_F64(x) as_double((u64)(x))
#define BITS_F64(x) as_ulong(x)
#define CLZ32(x) clz((u32)(x))
#define CLZ64(x) ((u32)clz((u64)(x)))
#define POPC32(x) popcount((u32)(x))
#define POPC64(x) ((u32)popcount((u64)(x)))
";

const CUDA: &str = r#"typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32; typedef int i32;
typedef unsigned long long u64; typedef long long i64; typedef float f32; typedef double f64;
#define GLOBAL
#define GROUP
#define GROUP_MEMORY __shared__
#define DEVICE static __device__ __forceinline__
#define KERNEL extern "C" __global__ __launch_bounds__(SIZE_X * SIZE_Y * SIZE_Z)
#define ATOMIC
#define BARRIER() __syncthreads()
#define DIMENSION(v, n) ((n) == 0 ? v.x : (n) == 1 ? v.y : v.z)
#define LOCAL_ID(n) ((u32)DIMENSION(threadIdx, n))
#define GROUP_ID(n) ((u32)DIMENSION(blockIdx, n))
#define GROUP_COUNT(n) ((u32)DIMENSION(gridDim, n))
#define AS_F32(x) __uint_as_float((u32)(x))
#define BITS_F32(x) __float_as_uint(x)
#define AS_F64(x) __longlong_as_double((i64)(x))
#define BITS_F64(x) ((u64)__double_as_longlong(x))
#define CLZ32(x) ((u32)__clz((i32)(x)))
#define CLZ64(x) ((u32)__clzll((i64)(x)))
#define POPC32(x) ((u32)__popc((u32)(x)))
#define POPC64(x) ((u32)__popcll((u64)(x)))
"#;

impl Dialect {
    /// Names for what the rest of the text is made of.
    pub(super) fn header(self, uses_f64: bool) -> String {
        let double = "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\ntypedef double f64;\n";
        match self {
            Self::OpenCl if uses_f64 => format!("{OPENCL}{double}"),
            Self::OpenCl => OPENCL.to_owned(),
            Self::Cuda => CUDA.to_owned(),
            Self::Hip => format!("#pragma clang fp contract(off)\n{CUDA}"),
        }
    }

    /// What a function of floats is called. OpenCL C has one name for all kinds; C++ as compiled at run time
    /// has one for each.
    pub(super) fn math(self, name: &str, kind: Kind) -> String {
        match (self, kind) {
            (Self::OpenCl, _) | (_, Kind::F64) => name.to_owned(),
            _ => format!("{name}f"),
        }
    }

    pub(super) fn atomic(self, op: AtomicOp) -> &'static str {
        let (opencl, cuda) = match op {
            AtomicOp::Add => ("atomic_add", "atomicAdd"),
            AtomicOp::Sub => ("atomic_sub", "atomicSub"),
            AtomicOp::And => ("atomic_and", "atomicAnd"),
            AtomicOp::Or => ("atomic_or", "atomicOr"),
            AtomicOp::Xor => ("atomic_xor", "atomicXor"),
            AtomicOp::Min => ("atomic_min", "atomicMin"),
            AtomicOp::Max => ("atomic_max", "atomicMax"),
            AtomicOp::Exchange => ("atomic_xchg", "atomicExch"),
        };
        if self == Self::OpenCl { opencl } else { cuda }
    }

    pub(super) fn compare_exchange(self) -> &'static str {
        if self == Self::OpenCl { "atomic_cmpxchg" } else { "atomicCAS" }
    }
}
