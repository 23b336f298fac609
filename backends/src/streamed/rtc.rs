//! Compilers that are libraries: the vendors' have one shape, too.

use std::ffi::{CStr, CString, c_char, c_int, c_uint};

use spoc_driver::{Error, ErrorKind, Result};

use super::table::{Code, Handle, functions};

/// Compiles kernels at run time.
pub(crate) trait Compiler: Send + Sync {
    /// Compiles a text for devices of an architecture into what the API loads. A translated text means what it says:
    /// no product is fused with a sum.
    ///
    /// # Errors
    /// `InvalidArgument` with the kernel's name and the first complaint of the compiler, which says the line.
    fn compile(&self, text: &[u8], name: &str, arch: &str, is_translated: bool) -> Result<Vec<u8>>;
}

functions! {
    /// The compiler's functions.
    RtcTable by RtcSymbols
    required {
        version(*mut c_int, *mut c_int);
        create(*mut Handle, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char);
        destroy(*mut Handle);
        compile(Handle, c_int, *const *const c_char);
        log_size(Handle, *mut usize);
        log(Handle, *mut c_char);
        code_size(Handle, *mut usize);
        code(Handle, *mut c_char);
    }
    optional {
        ptx_size(Handle, *mut usize);
        ptx(Handle, *mut c_char);
        arch_count(*mut c_int);
        archs(*mut c_int);
    }
}

type ErrorText = unsafe extern "C" fn(c_uint) -> *const c_char;

/// A compiler library.
pub(crate) struct Rtc {
    pub(crate) table: RtcTable,
    error_text: ErrorText,
}

/// Where a compiler library is looked for.
pub(crate) struct Places<'a> {
    /// What it compiles.
    pub(crate) what: &'static str,
    /// What an operator installs.
    pub(crate) product: &'static str,
    /// The variable that names it.
    pub(crate) variable: &'static str,
    /// What it is called, newest first.
    pub(crate) names: &'a [&'a str],
    /// Folders where it lies when the loader does not find it.
    pub(crate) folders: Vec<String>,
}

impl Places<'_> {
    /// Names and paths to try, in order.
    pub(crate) fn candidates(&self, named: Option<String>) -> Vec<String> {
        let paths = self
            .folders
            .iter()
            .flat_map(|folder| self.names.iter().map(move |name| format!("{folder}/{name}")));
        // The loader tells a reason for each that it tries: those of files that are not there help nobody.
        let paths = paths.filter(|path| std::path::Path::new(path).exists());
        let named = named.filter(|text| !text.is_empty());
        named.into_iter().chain(self.names.iter().map(|name| (*name).to_owned())).chain(paths).collect()
    }
}

impl Rtc {
    /// Loads a compiler.
    ///
    /// # Errors
    /// Every name tried with the reason it failed.
    ///
    /// # Safety
    /// The symbols are those of the library's interface.
    pub(crate) unsafe fn load(
        places: &Places<'_>,
        symbols: &RtcSymbols,
        error_text: &str,
    ) -> Result<Self, String> {
        let names = places.candidates(std::env::var(places.variable).ok());
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let (name, library) = crate::probe::load(&names).map_err(|errors| {
            let Places { what, product, variable, .. } = places;
            format!("no {what} compiler library (install {product}, or name it in {variable}): {errors}")
        })?;
        let lacking = |symbol: &str| format!("{name}: it has no {symbol}");
        // SAFETY: the caller's word.
        let table = unsafe { RtcTable::resolve(&library, symbols) }.map_err(lacking)?;
        // SAFETY: the caller's word.
        let found = unsafe { library.get::<ErrorText>(error_text.as_bytes()) };
        let error_text = *found.map_err(|_| lacking(error_text))?;
        let rtc = Self { table, error_text };
        tracing::debug!(name, version = ?rtc.version(), "a kernel compiler is loaded");
        Ok(rtc)
    }

    fn version(&self) -> (i32, i32) {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the places are valid.
        unsafe { (self.table.version)(&raw mut major, &raw mut minor) };
        (major, minor)
    }

    /// Compiles a text with these options.
    ///
    /// # Errors
    /// As [`Compiler::compile`].
    pub(crate) fn compiled(&self, text: &[u8], name: &str, options: &[String]) -> Result<Compilation<'_>> {
        let source = CString::new(text).map_err(|_| invalid(name, "the text has a zero byte"))?;
        let file = CString::new(name).unwrap_or_default();
        let mut program = Compilation { rtc: self, raw: std::ptr::null_mut() };
        let (none, place) = (std::ptr::null(), &raw mut program.raw);
        // SAFETY: the texts end with zero and live until the call has copied them; there are no headers.
        let code = unsafe { (self.table.create)(place, source.as_ptr(), file.as_ptr(), 0, none, none) };
        self.check(code).map_err(|because| invalid(name, &because))?;
        let options: Vec<_> =
            options.iter().map(|option| CString::new(option.as_str()).unwrap_or_default()).collect();
        let pointers: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        let count = c_int::try_from(pointers.len()).unwrap_or(0);
        // SAFETY: as many texts, which end with zero and live until the call returns.
        let code = unsafe { (self.table.compile)(program.raw, count, pointers.as_ptr()) };
        match self.check(code) {
            Ok(()) => Ok(program),
            Err(error) => {
                let log = program.log();
                tracing::debug!(kernel = name, log, "a kernel does not compile");
                Err(invalid(name, first_complaint(&log).unwrap_or(&error)))
            }
        }
    }

    fn check(&self, code: Code) -> Result<(), String> {
        if code == super::error::SUCCESS {
            return Ok(());
        }
        // SAFETY: the call answers a constant text for every code.
        let text = unsafe { (self.error_text)(code) };
        if text.is_null() {
            return Err(format!("compiler error {code}"));
        }
        // SAFETY: a constant of the library, which is never unloaded.
        Err(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }
}

pub(crate) fn invalid(name: &str, because: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, "compiling a kernel")
        .with("kernel", name.to_owned())
        .with("because", because.to_owned())
}

/// A program of the compiler's, destroyed when dropped.
pub(crate) struct Compilation<'r> {
    rtc: &'r Rtc,
    raw: Handle,
}

type Size = unsafe extern "C" fn(Handle, *mut usize) -> Code;
type Read = unsafe extern "C" fn(Handle, *mut c_char) -> Code;

impl Compilation<'_> {
    /// The code.
    ///
    /// # Errors
    /// The compiler's words.
    pub(crate) fn code(&self) -> Result<Vec<u8>, String> {
        self.bytes(self.rtc.table.code_size, self.rtc.table.code)
    }

    fn log(&self) -> String {
        let bytes = self.bytes(self.rtc.table.log_size, self.rtc.table.log).unwrap_or_default();
        let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).into_owned()
    }

    pub(crate) fn bytes(&self, size: Size, read: Read) -> Result<Vec<u8>, String> {
        let mut len = 0;
        // SAFETY: the program is live, and the place valid.
        self.rtc.check(unsafe { size(self.raw, &raw mut len) })?;
        let mut bytes = vec![0_u8; len];
        // SAFETY: as many bytes as the call just said.
        self.rtc.check(unsafe { read(self.raw, bytes.as_mut_ptr().cast()) })?;
        Ok(bytes)
    }
}

impl Drop for Compilation<'_> {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: created by `compiled`, destroyed once.
            unsafe { (self.rtc.table.destroy)(&raw mut self.raw) };
        }
    }
}

/// The first line of a log that says what is wrong, and where: `name(12): error: …`.
fn first_complaint(log: &str) -> Option<&str> {
    let lines = || log.lines().map(str::trim).filter(|line| !line.is_empty());
    lines().find(|line| line.contains("error")).or_else(|| lines().next())
}

#[cfg(test)]
mod tests {
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
        let places = Places {
            what: "C",
            product: "one",
            variable: "SPOC_NO_SUCH",
            names: &["liba.so.2", "liba.so"],
            folders: vec!["/nowhere".to_owned()],
        };
        assert_eq!(places.candidates(Some("libmine.so".to_owned())), ["libmine.so", "liba.so.2", "liba.so"]);
        assert_eq!(places.candidates(Some(String::new())), ["liba.so.2", "liba.so"]);
    }
}
