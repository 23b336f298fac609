//! NVRTC: CUDA C compiled at run time, where the vendor's compiler library is there.

use spoc_driver::Result;

use crate::streamed::error::SUCCESS;
use crate::streamed::rtc::{Compilation, Compiler, Places, Rtc, RtcSymbols, invalid};

/// A path to look at first.
const VARIABLE: &str = "SPOC_NVRTC";

/// What the library is called, newest first. It is installed without the plain name, too.
const NAMES: [&str; 4] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"];

/// Where toolkits lie that are not on the loader's path.
const FOLDERS: [&str; 3] = [
    "/usr/local/cuda/lib64",
    "/usr/local/cuda/targets/x86_64-linux/lib",
    "/usr/local/cuda/targets/sbsa-linux/lib",
];

const SYMBOLS: RtcSymbols = RtcSymbols {
    version: "nvrtcVersion",
    create: "nvrtcCreateProgram",
    destroy: "nvrtcDestroyProgram",
    compile: "nvrtcCompileProgram",
    log_size: "nvrtcGetProgramLogSize",
    log: "nvrtcGetProgramLog",
    code_size: "nvrtcGetCUBINSize",
    code: "nvrtcGetCUBIN",
    ptx_size: "nvrtcGetPTXSize",
    ptx: "nvrtcGetPTX",
    arch_count: "nvrtcGetNumSupportedArchs",
    archs: "nvrtcGetSupportedArchs",
};

/// The compiler.
pub(super) struct Nvrtc(Rtc);

impl Nvrtc {
    /// Loads the compiler.
    ///
    /// # Errors
    /// Every name tried with the reason it failed.
    pub(super) fn load() -> Result<Self, String> {
        let home = std::env::var("CUDA_HOME").ok().filter(|home| !home.is_empty());
        let folders = home.map(|home| format!("{home}/lib64"));
        let folders = folders.into_iter().chain(FOLDERS.map(str::to_owned)).collect();
        let (what, product, variable) = ("CUDA", "NVRTC", VARIABLE);
        let places = Places { what, product, variable, names: &NAMES, folders };
        // SAFETY: the symbols are those of the compiler's manual.
        unsafe { Rtc::load(&places, &SYMBOLS, "nvrtcGetErrorString") }.map(Self)
    }

    /// The architectures that it compiles for; none if it does not say.
    fn archs(&self) -> Vec<u32> {
        let (Some(count_archs), Some(list)) = (self.0.table.arch_count, self.0.table.archs) else {
            return Vec::new();
        };
        let mut count = 0;
        // SAFETY: the place is valid.
        if unsafe { count_archs(&raw mut count) } != SUCCESS {
            return Vec::new();
        }
        let mut archs = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: as many places as the call just said.
        if unsafe { list(archs.as_mut_ptr()) } != SUCCESS {
            return Vec::new();
        }
        archs.into_iter().filter_map(|arch| u32::try_from(arch).ok()).collect()
    }

    /// Compiles a text into PTX that devices of this architecture and later ones take.
    pub(super) fn compile_to_ptx(
        &self,
        text: &[u8],
        name: &str,
        arch: u32,
        is_translated: bool,
    ) -> Result<String> {
        let program = self.compiled(text, name, &format!("compute_{arch}"), is_translated)?;
        let (Some(size), Some(read)) = (self.0.table.ptx_size, self.0.table.ptx) else {
            return Err(invalid(name, "the compiler makes no PTX"));
        };
        let bytes = program.bytes(size, read).map_err(|because| invalid(name, &because))?;
        Ok(String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned())
    }

    fn compiled(
        &self,
        text: &[u8],
        name: &str,
        target: &str,
        is_translated: bool,
    ) -> Result<Compilation<'_>> {
        let mut options = vec![format!("--gpu-architecture={target}"), "--std=c++17".to_owned()];
        if is_translated {
            options.push("--fmad=false".to_owned());
        }
        self.0.compiled(text, name, &options)
    }
}

impl Compiler for Nvrtc {
    /// For a device of compute capability 9.0 that is `90`. By a compiler that is older than the device, into PTX, which
    /// ends with zero.
    fn compile(&self, text: &[u8], name: &str, arch: &str, is_translated: bool) -> Result<Vec<u8>> {
        let (arch, archs) = (arch.parse().unwrap_or(0), self.archs());
        if let Some(older) = archs.iter().filter(|known| **known < arch).max()
            && !archs.contains(&arch)
        {
            let mut ptx = self.compile_to_ptx(text, name, *older, is_translated)?.into_bytes();
            ptx.push(0);
            return Ok(ptx);
        }
        let program = self.compiled(text, name, &format!("sm_{arch}"), is_translated)?;
        program.code().map_err(|because| invalid(name, &because))
    }
}

#[cfg(test)]
mod tests {
    use super::super::built_ins;
    use super::*;

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
        for arch in ["75", "80", "90"] {
            for text in [&built_ins::COMPUTE, &built_ins::COPY] {
                let code = nvrtc.compile(text.source.as_bytes(), text.name, arch, false).unwrap();
                assert_eq!(code[..4], *b"\x7fELF", "sm_{arch}");
            }
        }
        // Of no compiler yet.
        let ptx = nvrtc.compile(built_ins::COPY.source.as_bytes(), "copy", "999", false).unwrap();
        assert!(ptx.ends_with(b"\0") && String::from_utf8_lossy(&ptx).contains(".target sm_"));
        let wrong = b"extern \"C\" __global__ void f(int *x) {\n  *x = y;\n}\n";
        let error = nvrtc.compile(wrong, "wrong", "90", false).unwrap_err().to_string();
        assert!(error.contains("kernel=wrong") && error.contains("wrong(2): error"), "{error}");
        assert!(!error.contains('\n'), "{error}");
        assert!(nvrtc.compile(b"a\0b", "zero", "90", false).is_err());
        assert!(nvrtc.compile(b"", "empty", "1", false).unwrap_err().to_string().contains("empty"));
    }
}
