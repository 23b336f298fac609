//! A product of a matrix and a vector, as a kernel that is bound by device memory: what streaming is measured against.

use spoc_driver::{
    Arguments, BackendKind, Device, DeviceVector, ElementKind, Error, ErrorKind, Grid, Kernel, KindRule,
    Language, Parameter, Result, Source, Stream,
};

/// Columns come in multiples of this: a warp reads 16 bytes a lane.
pub const MATVEC_COLUMNS: u64 = 128;

/// Threads of a group, and rows that it works on at a time.
const THREADS: u32 = 256;
const ROWS: u32 = THREADS / 32;
/// Groups that keep every GPU of today busy; more rows are taken in turns.
const GROUPS_MAX: u32 = 1 << 16;

/// A warp a row, four numbers a lane and step, four steps under way at once; the matrix is read once, so it need not
/// stay in a cache.
const CUDA: &str = r#"
__device__ __forceinline__ float dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }

extern "C" __global__ void __launch_bounds__(256) spoc_matvec(const float4 *matrix, const float4 *vector, float *out,
                                                              unsigned words, unsigned rows) {
    const unsigned lane = threadIdx.x & 31, stride = gridDim.x * (blockDim.x >> 5);
    for (unsigned row = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5); row < rows; row += stride) {
        const float4 *line = matrix + (size_t)row * words;
        float sum = 0.0f;
        unsigned i = lane;
        for (; i + 96 < words; i += 128) {
            const float4 a = __ldcs(line + i), b = __ldcs(line + i + 32);
            const float4 c = __ldcs(line + i + 64), d = __ldcs(line + i + 96);
            sum += dot(a, __ldg(vector + i)) + dot(b, __ldg(vector + i + 32));
            sum += dot(c, __ldg(vector + i + 64)) + dot(d, __ldg(vector + i + 96));
        }
        for (; i < words; i += 32) sum += dot(__ldcs(line + i), __ldg(vector + i));
        for (int half = 16; half > 0; half >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, half);
        if (lane == 0) out[row] = sum;
    }
}
"#;

/// The same for every other device.
const WGSL: &str = include_str!("matvec.wgsl");

/// `out = matrix · vector`, row by row, for f32 in device memory.
#[derive(Debug)]
pub struct MatVec {
    kernel: Kernel,
}

impl MatVec {
    /// The form that this device runs: CUDA C++ on CUDA, compiled Rust on native, WGSL elsewhere.
    ///
    /// # Errors
    /// Whether the device runs it is said by the first [`launch`](MatVec::launch).
    pub fn new(device: &Device) -> Result<Self> {
        const F32: KindRule = KindRule::Exactly(ElementKind::F32);
        const U32: KindRule = KindRule::Exactly(ElementKind::U32);
        const PARAMETERS: &[Parameter] = &[
            Parameter::read(F32),
            Parameter::read(F32),
            Parameter::write(F32),
            Parameter::scalar(U32),
            Parameter::scalar(U32),
        ];
        if device.info().backend == BackendKind::Native {
            let kernel = Kernel::native("spoc_matvec", PARAMETERS, |call| {
                let (matrix, vector) = (call.read::<f32>(0)?, call.read::<f32>(1)?);
                for (line, out) in matrix.chunks_exact(vector.len()).zip(call.write::<f32>(2)?) {
                    *out = line.iter().zip(vector).map(|(a, b)| a * b).sum();
                }
                Ok(())
            })?;
            return Ok(Self { kernel });
        }
        let (language, text) = match device.info().backend {
            BackendKind::Cuda => (Language::Cuda, CUDA),
            _ => (Language::Wgsl, WGSL),
        };
        let source = Source { language, text: text.as_bytes().into(), entry: "spoc_matvec".to_owned() };
        // SAFETY: the text reads `rows` lines of `words` times four numbers and the vector of that length, and
        // writes `rows` numbers. Only `launch` below uses it, with lengths and alignment checked; any grid will do.
        let kernel = unsafe { Kernel::from_sources("spoc_matvec", PARAMETERS, vec![source]) }?;
        Ok(Self { kernel })
    }

    /// Enqueues `out = matrix · vector`: `out.len()` rows of `vector.len()` columns.
    ///
    /// # Errors
    /// `InvalidArgument` if the lengths do not fit, the columns are no multiple of [`MATVEC_COLUMNS`], or matrix or
    /// vector do not begin at a multiple of 16 bytes; as [`Stream::launch`].
    pub fn launch(
        &self,
        stream: &Stream,
        matrix: &DeviceVector<f32>,
        vector: &DeviceVector<f32>,
        out: &mut DeviceVector<f32>,
    ) -> Result<()> {
        const DOING: &str = "multiplying a matrix and a vector";
        let (rows, columns) = (out.len(), vector.len());
        if columns % MATVEC_COLUMNS != 0 || rows.checked_mul(columns) != Some(matrix.len()) {
            return Err(Error::new(ErrorKind::InvalidArgument, DOING)
                .with("matrix", matrix.len())
                .with("rows", rows)
                .with("columns", columns));
        }
        if ![matrix, vector].iter().all(|part| part.offset_bytes().is_multiple_of(16)) {
            return Err(Error::new(ErrorKind::InvalidArgument, DOING).with("align_bytes", 16));
        }
        let narrow = |count: u64| {
            u32::try_from(count)
                .map_err(|_| Error::new(ErrorKind::InvalidArgument, DOING).with("count", count))
        };
        let (rows, words) = (narrow(rows)?, narrow(columns / 4)?);
        let grid = Grid { groups: [rows.div_ceil(ROWS).min(GROUPS_MAX), 1, 1], group: [THREADS, 1, 1] };
        let arguments =
            Arguments::new().read_view(matrix).read_view(vector).write_view(out).scalar(words).scalar(rows);
        stream.launch(&self.kernel, grid, &arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spoc_driver::{DeviceSelector, Driver, StreamOptions};

    fn sums(device: &Device) {
        let matrix = DeviceVector::<f32>::allocate(device, 3 * 128).unwrap();
        let vector = DeviceVector::<f32>::allocate(device, 128).unwrap();
        let mut out = DeviceVector::<f32>::allocate(device, 3).unwrap();
        matrix.write(0, &(0..384_u16).map(|i| f32::from(i / 128)).collect::<Vec<_>>()).unwrap();
        vector.write(0, &[0.5; 128]).unwrap();
        let stream = device.create_stream(StreamOptions::default()).unwrap();
        let product = MatVec::new(device).unwrap();
        product.launch(&stream, &matrix, &vector, &mut out).unwrap();
        stream.synchronize().unwrap();
        let mut sums = [0.0; 3];
        out.read(0, &mut sums).unwrap();
        assert_eq!(sums, [0.0, 64.0, 128.0]);

        let short = DeviceVector::<f32>::view(vector.segment(), 0, 64).unwrap();
        assert!(product.launch(&stream, &matrix, &short, &mut out).is_err());
        let mut long = DeviceVector::<f32>::allocate(device, 4).unwrap();
        assert!(product.launch(&stream, &matrix, &vector, &mut long).is_err());
    }

    #[test]
    fn rows_are_summed_and_shapes_checked() {
        let driver = Driver::new(crate::found(&crate::probe()));
        for info in driver.devices() {
            let device = driver.open(&DeviceSelector::index(info.backend, info.index)).unwrap();
            if device.capabilities().launch.is_available() {
                sums(&device);
            }
        }
    }
}
