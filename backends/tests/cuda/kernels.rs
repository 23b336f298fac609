//! Kernels: the built-ins against the interpreter's, and sources in every language that the API takes.

use std::sync::Arc;
use std::time::Instant;

use half::{bf16, f16};
use spoc_backends::interpreter;
use spoc_driver::{
    Arguments, BackendKind, BuiltIn, Device, DeviceSelector, Driver, Element, ElementKind, ErrorKind, Grid,
    Kernel, KindRule, Language, Parameter, Source, Vector,
};

use super::{Bench, MIB, on_every_device};

const GRID: Grid = Grid { groups: [1, 1, 1], group: [1, 1, 1] };
const F32: KindRule = KindRule::Exactly(ElementKind::F32);
const I32: KindRule = KindRule::Exactly(ElementKind::I32);

fn interpreter_device() -> Device {
    let driver = Driver::new(vec![interpreter::backend(interpreter::Options::default())]);
    driver.open(&DeviceSelector::index(BackendKind::Interpreter, 0)).unwrap()
}

fn on<T: Element>(device: &Device, values: &[T]) -> Vector<T> {
    let vector = Vector::from_slice(values).unwrap();
    vector.to_device(device).unwrap();
    vector
}

fn bytes<T: Element>(vector: &Vector<T>) -> Vec<u8> {
    vector
        .to_vec()
        .unwrap()
        .iter()
        .flat_map(|value| spoc_driver::Scalar::of(*value).bytes().to_vec())
        .collect()
}

/// Runs a built-in on a device; answers the bytes of what it wrote.
fn run<T: Element>(device: &Device, which: BuiltIn, a: &[T], b: &[T], value: T, out: usize) -> Vec<u8> {
    let (a, b) = (on(device, a), on(device, b));
    let mut target = on(device, &vec![value; out]);
    let kernel = Kernel::built_in(which);
    let arguments = match which {
        BuiltIn::Fill => Arguments::new().write(&mut target).scalar(value),
        BuiltIn::Copy => Arguments::new().read(&a).write(&mut target),
        BuiltIn::Add => Arguments::new().read(&a).read(&b).write(&mut target),
        BuiltIn::Scale => Arguments::new().read(&a).scalar(value).write(&mut target),
        other => panic!("{other:?} is told elsewhere"),
    };
    device.launch(&kernel, GRID, &arguments).unwrap();
    bytes(&target)
}

fn agree<T: Element>(cuda: &Device, reference: &Device, of: impl Fn(i32) -> T) {
    let numbers = |seed: i32, len: i32| (0..len).map(|i| of((i * 37 + seed) % 113 - 40)).collect::<Vec<T>>();
    for len in [1, 3, 15, 16, 17, 1000, 4099] {
        let (a, b, value) = (numbers(1, len), numbers(2, len), of(3));
        for which in [BuiltIn::Fill, BuiltIn::Copy, BuiltIn::Add, BuiltIn::Scale] {
            for out in [len as usize, len as usize + 2] {
                let (seen, expected) =
                    (run(cuda, which, &a, &b, value, out), run(reference, which, &a, &b, value, out));
                assert!(seen == expected, "{which:?} of {len} {} into {out}", T::KIND);
            }
        }
    }
}

#[test]
fn built_ins_give_the_bytes_of_the_interpreter() {
    let reference = interpreter_device();
    on_every_device(|bench| {
        let cuda = &bench.device;
        agree(cuda, &reference, |i| i as u8);
        agree(cuda, &reference, |i| i as i8);
        agree(cuda, &reference, |i| (i * 777) as u16);
        agree(cuda, &reference, |i| (i * 777) as i16);
        agree(cuda, &reference, |i| i.wrapping_mul(77_777_777).cast_unsigned());
        agree(cuda, &reference, |i| i.wrapping_mul(77_777_777));
        agree(cuda, &reference, |i| i64::from(i).wrapping_mul(1 << 57).cast_unsigned());
        agree(cuda, &reference, |i| i64::from(i).wrapping_mul(1 << 57));
        agree(cuda, &reference, |i| f16::from_f32(i as f32 / 7.0));
        agree(cuda, &reference, |i| bf16::from_f32(i as f32 / 7.0));
        agree(cuda, &reference, |i| i as f32 / 7.0);
        agree(cuda, &reference, |i| f64::from(i) / 7.0);
        // Infinities, subnormals and the largest.
        agree(cuda, &reference, |i| f16::from_bits(((i * 997) as u16) & 0x7bff));
        agree(cuda, &reference, |i| bf16::from_bits(((i * 997) as u16) & 0x7f7f));
        agree(cuda, &reference, |i| f32::from_bits((i * 99_991).cast_unsigned() & 0x7f7f_ffff));
    });
}

fn gathered<T: Element>(device: &Device, from: &[T], indices: &[u32], chunk: u32, out: &[T]) -> Vec<u8> {
    let (from, indices) = (on(device, from), on(device, indices));
    let mut target = on(device, out);
    let arguments = Arguments::new().read(&from).read(&indices).scalar(chunk).write(&mut target);
    device.launch(&Kernel::built_in(BuiltIn::Gather), GRID, &arguments).unwrap();
    bytes(&target)
}

#[test]
fn gather_takes_chunks_of_every_length() {
    let reference = interpreter_device();
    on_every_device(|bench| {
        let from: Vec<u16> = (0..70_000).map(|i| (i * 31 % 65_521) as u16).collect();
        for (chunk, out) in [
            (1, 50),
            (2, 63),
            (8, 4096),
            (7, 999),
            (512, 5000),
            (1000, 10_000),
            (8192, 65_536),
            (70_001, 80_000),
            (0, 9),
        ] {
            let indices: Vec<u32> = (0..40).map(|i| (i * 11) % 37).chain([u32::MAX, 3]).collect();
            let target = vec![9_u16; out];
            let seen = gathered(&bench.device, &from, &indices, chunk, &target);
            let expected = gathered(&reference, &from, &indices, chunk, &target);
            assert!(seen == expected, "chunks of {chunk} into {out}");
        }
        let wide: Vec<u64> = (0..5000).map(|i| i * 0x0101_0101_0101).collect();
        let (seen, expected) = (
            gathered(&bench.device, &wide, &[3, 1, 4, 1, 5], 256, &[7; 1300]),
            gathered(&reference, &wide, &[3, 1, 4, 1, 5], 256, &[7; 1300]),
        );
        assert!(seen == expected);
    });
}

/// Prints a rate, and asserts none.
#[test]
fn rate_of_gather_on_the_device() {
    on_every_device(|bench| {
        let elements = 128 * MIB as u64 / 4;
        let from = Vector::<u32>::zeroed(elements).unwrap();
        from.to_device(&bench.device).unwrap();
        let mut target = Vector::<u32>::zeroed(elements).unwrap();
        target.to_device(&bench.device).unwrap();
        for chunk in [1024_u32, 4096, 65_536, 1 << 20] {
            let chunks = (elements as u32) / chunk;
            let indices = on(&bench.device, &(0..chunks).map(|i| (i * 7 + 3) % chunks).collect::<Vec<u32>>());
            let kernel = Kernel::built_in(BuiltIn::Gather);
            let stream = bench.stream();
            let mut best = f64::MAX;
            for _ in 0..4 {
                let start = Instant::now();
                let arguments = Arguments::new().read(&from).read(&indices).scalar(chunk).write(&mut target);
                stream.launch(&kernel, GRID, &arguments).unwrap();
                stream.synchronize().unwrap();
                best = best.min(start.elapsed().as_secs_f64());
            }
            let rate = (elements * 4) as f64 / best / 1e9;
            eprintln!("gather of chunks of {:>8}: {rate:6.1} GB/s, read once and written once", chunk * 4);
        }
    });
}

fn source(language: Language, text: &[u8], entry: &str) -> Source {
    Source { language, text: Arc::from(text), entry: entry.to_owned() }
}

const AXPY: &str = r#"
extern "C" __global__ void axpy(float a, const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}
"#;

fn axpy(language: Language, text: &[u8]) -> Kernel {
    let parameters =
        [Parameter::scalar(F32), Parameter::read(F32), Parameter::write(F32), Parameter::scalar(I32)];
    // SAFETY: it keeps to n elements, which the tests give it.
    unsafe { Kernel::from_sources("axpy", &parameters, vec![source(language, text, "axpy")]) }.unwrap()
}

fn check_axpy(bench: &Bench, kernel: &Kernel) {
    let x = on(&bench.device, &(0..1000).map(|i| i as f32).collect::<Vec<_>>());
    let mut y = on(&bench.device, &[1.0_f32; 1000]);
    let stream = bench.stream();
    for _ in 0..2 {
        let arguments = Arguments::new().scalar(2.0_f32).read(&x).write(&mut y).scalar(1000_i32);
        stream.launch(kernel, Grid::linear(1000), &arguments).unwrap();
    }
    stream.synchronize().unwrap();
    assert_eq!(y.to_vec().unwrap(), (0..1000).map(|i| 1.0 + 4.0 * i as f32).collect::<Vec<_>>());
    let mut y = on(&bench.device, &[1.0_f32; 1000]);
    let arguments = Arguments::new().scalar(2.0_f32).read(&x).write(&mut y).scalar(1000_i32);
    bench.device.launch(kernel, Grid::linear(1000), &arguments).unwrap();
    assert_eq!(y.get(999).unwrap(), 1999.0);
}

/// Whether the compiler is there; else that its absence is told was checked.
fn compiles(bench: &Bench) -> bool {
    let mut y = on(&bench.device, &[0.0_f32; 8]);
    let x = on(&bench.device, &[0.0_f32; 8]);
    let arguments = Arguments::new().scalar(1.0_f32).read(&x).write(&mut y).scalar(8_i32);
    match bench.device.launch(&axpy(Language::Cuda, AXPY.as_bytes()), Grid::linear(8), &arguments) {
        Ok(()) => true,
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::Unsupported { .. }), "{error}");
            assert!(error.to_string().contains("libnvrtc"), "{error}");
            eprintln!("not run: {error}");
            false
        }
    }
}

#[test]
fn cuda_c_is_compiled_and_runs() {
    on_every_device(|bench| {
        if compiles(bench) {
            check_axpy(bench, &axpy(Language::Cuda, AXPY.as_bytes()));
        }
    });
}

#[test]
fn what_is_wrong_with_a_source_names_the_kernel_and_the_line() {
    on_every_device(|bench| {
        let x = on(&bench.device, &[0.0_f32; 8]);
        let mut y = on(&bench.device, &[3.0_f32; 8]);
        let mut refuse = |kernel: &Kernel| {
            let arguments = Arguments::new().scalar(1.0_f32).read(&x).write(&mut y).scalar(8_i32);
            let error = bench.device.launch(kernel, Grid::linear(8), &arguments).unwrap_err();
            assert_eq!(*error.kind(), ErrorKind::InvalidArgument, "{error}");
            let text = error.to_string();
            assert!(text.contains("kernel=axpy") && !text.contains('\n'), "{text}");
            text
        };
        if compiles(bench) {
            let wrong = AXPY.replace("a * x[i]", "a * z[i]");
            let text = refuse(&axpy(Language::Cuda, wrong.as_bytes()));
            assert!(text.contains("axpy(4): error"), "{text}");
            let text = refuse(&axpy(Language::Cuda, AXPY.replace("axpy", "other").as_bytes()));
            assert!(text.contains("entry=axpy"), "{text}");
        }
        refuse(&axpy(Language::Ptx, b".version 7.4\n.target sm_60\n.address_size 64\nnonsense\n"));
        refuse(&axpy(Language::Cubin, b"\x7fELF\x02\x01 and no more"));
        // The same answer again, and the device goes on.
        refuse(&axpy(Language::Cubin, b"\x7fELF\x02\x01 and no more"));
        assert_eq!(y.get(0).unwrap(), 3.0);
    });
}

#[test]
fn a_grid_that_the_device_does_not_have_is_refused() {
    on_every_device(|bench| {
        let kernel = axpy(Language::Ptx, include_bytes!("axpy.ptx"));
        let x = on(&bench.device, &[0.0_f32; 8]);
        let mut y = on(&bench.device, &[3.0_f32; 8]);
        let arguments = Arguments::new().scalar(1.0_f32).read(&x).write(&mut y).scalar(8_i32);
        let grid = Grid { groups: [1, 1, 1], group: [4096, 1, 1] };
        let error = bench.stream().launch(&kernel, grid, &arguments).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.to_string().contains("kernel=axpy"), "{error}");
    });
}

#[test]
fn ptx_runs_on_every_device() {
    on_every_device(|bench| check_axpy(bench, &axpy(Language::Ptx, include_bytes!("axpy.ptx"))));
}

/// Code for compute capability 9.0: run there, and refused by name elsewhere.
#[test]
fn machine_code_runs_where_it_is_made_for() {
    on_every_device(|bench| {
        let kernel = axpy(Language::Cubin, include_bytes!("axpy.sm_90.cubin"));
        if bench.device.info().name.contains("H100") || bench.device.info().name.contains("H200") {
            check_axpy(bench, &kernel);
        } else {
            eprintln!("not run: {} may not be of compute capability 9.0", bench.device.info().name);
        }
    });
}

#[test]
fn forms_of_other_apis_are_refused() {
    on_every_device(|bench| {
        let kernel = axpy(Language::Msl, b"kernel void axpy() {}");
        let x = on(&bench.device, &[0.0_f32; 8]);
        let mut y = on(&bench.device, &[0.0_f32; 8]);
        let arguments = Arguments::new().scalar(1.0_f32).read(&x).write(&mut y).scalar(8_i32);
        let error = bench.device.launch(&kernel, GRID, &arguments).unwrap_err();
        let expected = ErrorKind::Unsupported { backend: BackendKind::Cuda, feature: "kernel_form" };
        assert_eq!(*error.kind(), expected, "{error}");
    });
}
