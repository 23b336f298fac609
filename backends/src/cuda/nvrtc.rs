//! NVRTC: CUDA C compiled at run time, where the vendor's compiler library is there.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use spoc_driver::{Error, ErrorKind, Result};

/// A path to look at first.
pub(super) const VARIABLE: &str = "SPOC_NVRTC";

/// What the library is called, newest first. It is installed without the plain name, too.
const NAMES: [&str; 4] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"];

/// Where toolkits lie that are not on the loader's path.
const FOLDERS: [&str; 3] = [
    "/usr/local/cuda/lib64",
    "/usr/local/cuda/targets/x86_64-linux/lib",
    "/usr/local/cuda/targets/sbsa-linux/lib",
];

const SUCCESS: c_int = 0;

type Program = *mut c_void;

macro_rules! functions {
    ($($name:ident: $symbol:ident($($argument:ty),*);)*) => {
        /// The compiler's functions.
        pub(super) struct Nvrtc {
            $($name: unsafe extern "C" fn($($argument),*) -> c_int,)*
            error_text: unsafe extern "C" fn(c_int) -> *const c_char,
        }

        impl Nvrtc {
            fn resolve(library: &libloading::Library) -> Result<Self, String> {
                Ok(Self {
                    $($name: {
                        // SAFETY: the symbol is a function of the API with these arguments, by its manual.
                        let found = unsafe {
                            library.get::<unsafe extern "C" fn($($argument),*) -> c_int>(
                                stringify!($symbol).as_bytes()
                            )
                        };
                        *found.map_err(|_| concat!("it has no ", stringify!($symbol)).to_owned())?
                    },)*
                    error_text: {
                        // SAFETY: as above.
                        let found = unsafe { library.get(b"nvrtcGetErrorString") };
                        *found.map_err(|_| "it has no nvrtcGetErrorString".to_owned())?
                    },
                })
            }
        }
    };
}

functions! {
    version: nvrtcVersion(*mut c_int, *mut c_int);
    create: nvrtcCreateProgram(
        *mut Program, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char
    );
    destroy: nvrtcDestroyProgram(*mut Program);
    compile: nvrtcCompileProgram(Program, c_int, *const *const c_char);
    log_size: nvrtcGetProgramLogSize(Program, *mut usize);
    log: nvrtcGetProgramLog(Program, *mut c_char);
    cubin_size: nvrtcGetCUBINSize(Program, *mut usize);
    cubin: nvrtcGetCUBIN(Program, *mut c_char);
    ptx_size: nvrtcGetPTXSize(Program, *mut usize);
    ptx: nvrtcGetPTX(Program, *mut c_char);
    arch_count: nvrtcGetNumSupportedArchs(*mut c_int);
    archs: nvrtcGetSupportedArchs(*mut c_int);
}

impl Nvrtc {
    /// Loads the compiler.
    ///
    /// # Errors
    /// Every name tried with the reason it failed.
    pub(super) fn load() -> Result<Self, String> {
        let names = candidates(std::env::var(VARIABLE).ok(), std::env::var("CUDA_HOME").ok());
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let (name, library) = crate::probe::load(&names).map_err(|errors| {
            format!("no CUDA compiler library (install NVRTC, or name it in {VARIABLE}): {errors}")
        })?;
        let functions = Self::resolve(&library).map_err(|missing| format!("{name}: {missing}"))?;
        tracing::debug!(name, version = ?functions.version(), "NVRTC is loaded");
        Ok(functions)
    }

    fn version(&self) -> (i32, i32) {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the places are valid.
        unsafe { (self.version)(&raw mut major, &raw mut minor) };
        (major, minor)
    }

    /// Compiles a text for a device of this architecture (90 is compute capability 9.0): into its code, or, by a
    /// compiler that is older than the device, into PTX, which ends with zero.
    ///
    /// # Errors
    /// `InvalidArgument` with the kernel's name and the first complaint of the compiler, which says the line.
    pub(super) fn compile(&self, text: &[u8], name: &str, arch: u32) -> Result<Vec<u8>> {
        let archs = self.archs();
        if let Some(older) = archs.iter().filter(|known| **known < arch).max()
            && !archs.contains(&arch)
        {
            let mut ptx = self.compile_to_ptx(text, name, *older)?.into_bytes();
            ptx.push(0);
            return Ok(ptx);
        }
        let program = self.compiled(text, name, &format!("sm_{arch}"))?;
        program.bytes(self.cubin_size, self.cubin).map_err(|because| invalid(name, &because))
    }

    /// The architectures that it compiles for; none if it does not say.
    fn archs(&self) -> Vec<u32> {
        let mut count = 0;
        // SAFETY: the place is valid.
        if unsafe { (self.arch_count)(&raw mut count) } != SUCCESS {
            return Vec::new();
        }
        let mut archs = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: as many places as the call just said.
        if unsafe { (self.archs)(archs.as_mut_ptr()) } != SUCCESS {
            return Vec::new();
        }
        archs.into_iter().filter_map(|arch| u32::try_from(arch).ok()).collect()
    }

    /// Compiles a text into PTX that devices of this architecture and later ones take.
    pub(super) fn compile_to_ptx(&self, text: &[u8], name: &str, arch: u32) -> Result<String> {
        let program = self.compiled(text, name, &format!("compute_{arch}"))?;
        let bytes = program.bytes(self.ptx_size, self.ptx).map_err(|because| invalid(name, &because))?;
        Ok(String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned())
    }

    fn compiled(&self, text: &[u8], name: &str, target: &str) -> Result<Compilation<'_>> {
        let source = CString::new(text).map_err(|_| invalid(name, "the text has a zero byte"))?;
        let file = CString::new(name).unwrap_or_default();
        let mut program = Compilation { nvrtc: self, raw: std::ptr::null_mut() };
        let (none, place) = (std::ptr::null(), &raw mut program.raw);
        // SAFETY: the texts end with zero and live until the call has copied them; there are no headers.
        let code = unsafe { (self.create)(place, source.as_ptr(), file.as_ptr(), 0, none, none) };
        self.check(code).map_err(|because| invalid(name, &because))?;
        let options = [format!("--gpu-architecture={target}"), "--std=c++17".to_owned()];
        let options = options.map(|option| CString::new(option).unwrap_or_default());
        let pointers = [options[0].as_ptr(), options[1].as_ptr()];
        // SAFETY: two texts that end with zero and live until the call returns.
        let code = unsafe { (self.compile)(program.raw, 2, pointers.as_ptr()) };
        match self.check(code) {
            Ok(()) => Ok(program),
            Err(error) => {
                let log = program.log();
                tracing::debug!(kernel = name, log, "a CUDA kernel does not compile");
                Err(invalid(name, first_complaint(&log).unwrap_or(&error)))
            }
        }
    }

    fn check(&self, code: c_int) -> Result<(), String> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: the call answers a constant text for every code.
        let text = unsafe { (self.error_text)(code) };
        if text.is_null() {
            return Err(format!("NVRTC error {code}"));
        }
        // SAFETY: a constant of the library, which is never unloaded.
        Err(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }
}

fn invalid(name: &str, because: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, "compiling a CUDA kernel")
        .with("kernel", name.to_owned())
        .with("because", because.to_owned())
}

/// A program of the compiler's, destroyed when dropped.
struct Compilation<'n> {
    nvrtc: &'n Nvrtc,
    raw: Program,
}

impl Compilation<'_> {
    fn log(&self) -> String {
        let bytes = self.bytes(self.nvrtc.log_size, self.nvrtc.log).unwrap_or_default();
        let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).into_owned()
    }

    fn bytes(
        &self,
        size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
        read: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    ) -> Result<Vec<u8>, String> {
        let mut len = 0;
        // SAFETY: the program is live, and the place valid.
        self.nvrtc.check(unsafe { size(self.raw, &raw mut len) })?;
        let mut bytes = vec![0_u8; len];
        // SAFETY: as many bytes as the call just said.
        self.nvrtc.check(unsafe { read(self.raw, bytes.as_mut_ptr().cast()) })?;
        Ok(bytes)
    }
}

impl Drop for Compilation<'_> {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: created by `compile`, destroyed once.
            unsafe { (self.nvrtc.destroy)(&raw mut self.raw) };
        }
    }
}

fn candidates(named: Option<String>, home: Option<String>) -> Vec<String> {
    let is_said = |text: &String| !text.is_empty();
    let folders = home.filter(is_said).map(|home| format!("{home}/lib64"));
    let folders = folders.into_iter().chain(FOLDERS.map(str::to_owned));
    let paths = folders.flat_map(|folder| NAMES.map(|name| format!("{folder}/{name}")));
    // The loader tells a reason for each that it tries: those of files that are not there help nobody.
    let paths = paths.filter(|path| std::path::Path::new(path).exists());
    named.filter(is_said).into_iter().chain(NAMES.map(str::to_owned)).chain(paths).collect()
}

/// The first line of a log that says what is wrong, and where: `name(12): error: …`.
fn first_complaint(log: &str) -> Option<&str> {
    let lines = || log.lines().map(str::trim).filter(|line| !line.is_empty());
    lines().find(|line| line.contains("error")).or_else(|| lines().next())
}

#[cfg(test)]
mod tests {
    use super::super::built_ins;
    use super::*;

    #[test]
    fn a_log_is_told_by_its_first_error() {
        let log = "scale(3): warning #177-D: unused\n\nscale(7): error: identifier \"x\" is undefined\n  ^\n1 error detected\n";
        assert_eq!(first_complaint(log), Some("scale(7): error: identifier \"x\" is undefined"));
        assert_eq!(first_complaint("\n odd \n"), Some("odd"));
        assert_eq!(first_complaint(""), None);
    }

    #[test]
    fn a_named_library_comes_first() {
        let named = candidates(Some("libmine.so".to_owned()), None);
        assert_eq!(named[..2], ["libmine.so", "libnvrtc.so.13"]);
        assert_eq!(candidates(Some(String::new()), None)[0], "libnvrtc.so.13");
        assert!(candidates(None, Some("/nowhere".to_owned())).iter().all(|name| !name.contains("nowhere")));
    }

    /// Runs where the library is, which no device is needed for.
    #[test]
    fn kernels_compile_or_say_where_they_do_not() {
        let nvrtc = match Nvrtc::load() {
            Ok(nvrtc) => nvrtc,
            Err(reason) => {
                assert!(reason.contains("libnvrtc.so.13"), "{reason}");
                eprintln!("not run: {reason}");
                return;
            }
        };
        for arch in [75, 80, 90] {
            for text in [&built_ins::COMPUTE, &built_ins::COPY] {
                let code = nvrtc.compile(text.source.as_bytes(), text.name, arch).unwrap();
                assert_eq!(code[..4], *b"\x7fELF", "sm_{arch}");
            }
        }
        // Of no compiler yet.
        let ptx = nvrtc.compile(built_ins::COPY.source.as_bytes(), "copy", 999).unwrap();
        assert!(ptx.ends_with(b"\0") && String::from_utf8_lossy(&ptx).contains(".target sm_"));
        let wrong = b"extern \"C\" __global__ void f(int *x) {\n  *x = y;\n}\n";
        let error = nvrtc.compile(wrong, "wrong", 90).unwrap_err().to_string();
        assert!(error.contains("kernel=wrong") && error.contains("wrong(2): error"), "{error}");
        assert!(!error.contains('\n'), "{error}");
        assert!(nvrtc.compile(b"a\0b", "zero", 90).is_err());
        assert!(nvrtc.compile(b"", "empty", 1).unwrap_err().to_string().contains("empty"));
    }
}
