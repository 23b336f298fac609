//! Modules: code that is loaded into a context, and the functions in it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{CString, c_char, c_void};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;

use spoc_driver::{Error, ErrorKind, Language, Result, Source};

use super::carry::Carrier;
use super::context::Context;
use super::device::Shared;
use super::error::{SUCCESS, kind_of};
use super::flavour::{Flavour, Text};
use super::launch::Kernels;
use super::table::Handle;
use crate::sync::lock;

/// Most sources that a device keeps loaded: each stays until the device is closed.
const SOURCES_MAX: usize = 4096;

/// Bytes of the driver's words about text that it does not take.
const LOG_BYTES: usize = 4096;

/// What the driver's words are written into, and how long that is.
const LOG_OPTIONS: [u32; 2] = [5, 6];

/// A source to be compiled and loaded.
pub(crate) struct Code<'s> {
    pub(crate) source: &'s Source,
    /// It was translated here.
    pub(crate) is_translated: bool,
}

/// Code in a context.
pub(crate) struct Module {
    raw: Handle,
    context: Arc<Context>,
}

/// A function of a module.
#[derive(Clone, Copy)]
pub(crate) struct Function(pub(crate) Handle);

// SAFETY: the API lets any thread use modules and functions.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}
// SAFETY: as above.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Module {
    /// Loads code for this device, or text in PTX, which the driver compiles.
    fn load(context: &Arc<Context>, image: &[u8], name: &str) -> Result<Self> {
        const DOING: &str = "loading a kernel";
        let mut log = [0_u8; LOG_BYTES];
        let mut options = LOG_OPTIONS;
        let count = if context.api.flavour.traits().has_load_log { 2 } else { 0 };
        let mut values: [*mut c_void; 2] =
            [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(LOG_BYTES - 1)];
        let mut raw = std::ptr::null_mut();
        let _here = context.enter()?;
        // SAFETY: the image is whole code, or text that ends with zero (the callers see to it); the log has
        // as many bytes as is said; the context is current.
        let code = unsafe {
            (context.api.library.module_load)(
                &raw mut raw,
                image.as_ptr().cast(),
                count,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        if code == SUCCESS {
            return Ok(Self { raw, context: Arc::clone(context) });
        }
        let kind = match kind_of(code) {
            // Whatever else it is called, the code is not for this device or driver.
            ErrorKind::Backend => ErrorKind::InvalidArgument,
            kind => kind,
        };
        let mut error = context.api.error(kind, code, DOING).with("kernel", name.to_owned());
        let text = log.split(|byte| *byte == 0).next().unwrap_or_default();
        if let Some(line) = String::from_utf8_lossy(text).lines().map(str::trim).find(|line| !line.is_empty())
        {
            error = error.with("because", line);
        }
        Err(error)
    }

    fn function(&self, entry: &str, name: &str) -> Result<Function> {
        const DOING: &str = "finding a kernel's entry";
        let missing = || {
            Error::new(ErrorKind::InvalidArgument, DOING)
                .with("kernel", name.to_owned())
                .with("entry", entry.to_owned())
        };
        let text = CString::new(entry).map_err(|_| missing())?;
        let mut function = std::ptr::null_mut();
        let _here = self.context.enter()?;
        let find = self.context.api.library.module_function;
        // SAFETY: the module is loaded, and the text ends with zero.
        match unsafe { find(&raw mut function, self.raw, text.as_ptr().cast::<c_char>()) } {
            SUCCESS => Ok(Function(function)),
            code if kind_of(code) == ErrorKind::Backend => {
                Err(missing().with("because", "extern \"C\" is needed, or it is not there"))
            }
            code => Err(self.context.api.error(kind_of(code), code, DOING)),
        }
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if !self.context.api.is_own_process() {
            return;
        }
        let _leave = self.context.block("unloading a kernel");
        self.context.end("unloading a kernel", |library| {
            // SAFETY: loaded by this value, and nothing runs of it any more.
            unsafe { (library.module_unload)(self.raw) }
        });
    }
}

/// What a context has loaded.
#[derive(Default)]
pub(crate) struct Modules {
    held: Arc<Held>,
    /// Once it was started; nothing inside if it could not be.
    loader: OnceLock<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Held {
    sources: Mutex<Sources>,
    built_ins: Mutex<BuiltIns>,
    /// The kernel that carries small copies; nothing inside if it cannot be had.
    carrier: OnceLock<Option<Carrier>>,
}

/// A source by the place of its text, which is kept so that no other text can come there: nothing has to be read to
/// find what was made of it.
#[derive(PartialEq, Eq, Hash)]
struct Place {
    text: usize,
    language: Language,
    is_translated: bool,
    entry: String,
}

/// A source by what it says.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    text: Arc<[u8]>,
    language: Language,
    is_translated: bool,
    entry: String,
}

#[derive(Default)]
struct Sources {
    loaded: HashMap<Key, Loaded>,
    places: HashMap<Place, Placed>,
}

struct Loaded {
    function: Result<Function>,
    _module: Option<Module>,
}

struct Placed {
    function: Result<Function>,
    _text: Arc<[u8]>,
}

impl Sources {
    /// What was made of a source, wherever its text lies.
    fn known(&mut self, code: &Code<'_>) -> Option<Result<Function>> {
        let Code { source, is_translated } = *code;
        let (text, language) = (source.text.as_ptr().addr(), source.language);
        let place = Place { text, language, is_translated, entry: source.entry.clone() };
        if let Some(known) = self.places.get(&place) {
            return Some(known.function.clone());
        }
        let function = self.loaded.get(&Key::of(code))?.function.clone();
        if self.places.len() >= SOURCES_MAX {
            // They are found again by what they say.
            self.places.clear();
        }
        self.places.insert(place, Placed { function: function.clone(), _text: Arc::clone(&source.text) });
        Some(function)
    }
}

impl Key {
    fn of(code: &Code<'_>) -> Self {
        let Code { source: Source { text, language, entry }, is_translated } = *code;
        Self { text: Arc::clone(text), language: *language, is_translated, entry: entry.clone() }
    }
}

#[derive(Default)]
struct BuiltIns {
    modules: HashMap<&'static str, Module>,
    functions: HashMap<&'static str, Function>,
}

impl Modules {
    /// Begins to load the adapter's own kernels, on a thread of its own: loading may wait until the device is
    /// idle, and takes a while where the driver has not compiled them before.
    pub(crate) fn load_ahead(&self, context: &Arc<Context>) {
        if context.api.flavour.carriers().is_none() && context.api.flavour.ahead().is_none() {
            return;
        }
        self.loader.get_or_init(|| {
            let (held, context) = (Arc::clone(&self.held), Arc::clone(context));
            let thread = std::thread::Builder::new();
            let thread = thread.name(format!("spoc-{}-load", context.api.flavour.kind()));
            let started = thread.spawn(move || held.load(&context));
            if let Err(error) = &started {
                tracing::warn!(%error, "kernels are loaded when they are first launched");
            }
            started.ok()
        });
    }

    /// The kernel that carries small copies, once it is there.
    pub(crate) fn carrier(&self) -> Option<Carrier> {
        self.held.carrier.get().copied().flatten()
    }

    /// As [`Held::built_in`].
    pub(crate) fn built_in(
        &self,
        context: &Arc<Context>,
        text: &'static Text,
        entry: &'static str,
    ) -> Result<Function> {
        self.held.built_in(context, text, entry)
    }

    /// The function of a source, compiled and loaded the first time.
    ///
    /// # Errors
    /// Why there is none; the same each time.
    pub(crate) fn source(
        &self,
        shared: &Shared,
        kernels: &Kernels,
        name: &str,
        code: &Code<'_>,
    ) -> Result<Function> {
        if let Some(known) = lock(&self.held.sources).known(code) {
            return known;
        }
        let context = &shared.context;
        let _leave = context.block("loading a kernel");
        let mut sources = lock(&self.held.sources);
        if let Some(known) = sources.known(code) {
            return known;
        }
        if sources.loaded.len() >= SOURCES_MAX {
            let kind = ErrorKind::TooLarge { need: SOURCES_MAX as u64 + 1, max: SOURCES_MAX as u64 };
            return Err(Error::new(kind, "loading a kernel").with("unit", "kernels"));
        }
        let entry = &code.source.entry;
        let module = image(&*context.api.flavour, kernels, &shared.found.arch, name, code)
            .and_then(|image| Module::load(context, &image, name))
            .and_then(|module| module.function(entry, name).map(|function| (module, function)));
        let (module, function) = match module {
            Ok((module, function)) => (Some(module), Ok(function)),
            // A lost device may be another's fault, and is asked anew.
            Err(error) if error.is_device_lost() => return Err(error),
            Err(error) => (None, Err(error)),
        };
        sources.loaded.insert(Key::of(code), Loaded { function: function.clone(), _module: module });
        function
    }
}

impl Drop for Modules {
    /// Whoever closes the backend at the end of a program would otherwise end it in the middle of a load.
    fn drop(&mut self) {
        if let Some(loader) = self.loader.take().flatten()
            && loader.join().is_err()
        {
            tracing::error!("the thread that loads kernels panicked");
        }
    }
}

impl Held {
    /// Loads the adapter's own kernels, as many as can be had.
    fn load(&self, context: &Arc<Context>) {
        let carrier = self.carrier(context).transpose();
        if let Err(error) = &carrier {
            tracing::warn!(%error, "small copies go one by one: their kernel cannot be had");
        }
        let _ = self.carrier.set(carrier.ok().flatten());
        if let Some((text, entry)) = context.api.flavour.ahead()
            && let Err(error) = self.built_in(context, text, entry)
        {
            tracing::warn!(%error, "the built-in kernels cannot be had");
        }
    }

    /// The kernel that carries small copies.
    fn carrier(&self, context: &Arc<Context>) -> Option<Result<Carrier>> {
        let [(narrow, narrow_entry), (wide, wide_entry)] = context.api.flavour.carriers()?;
        let narrow = match self.built_in(context, narrow, narrow_entry) {
            Ok(narrow) => narrow,
            Err(error) => return Some(Err(error)),
        };
        let wide = self.built_in(context, wide, wide_entry);
        if let Err(error) = &wide {
            tracing::info!(%error, "small copies go in shorter lists: the kernel for long ones cannot be had");
        }
        Some(Ok(Carrier { narrow, wide: wide.ok() }))
    }

    /// A function of the adapter's own.
    ///
    /// # Errors
    /// What the API answers.
    pub(crate) fn built_in(
        &self,
        context: &Arc<Context>,
        text: &'static Text,
        entry: &'static str,
    ) -> Result<Function> {
        if let Some(known) = lock(&self.built_ins).functions.get(entry) {
            return Ok(*known);
        }
        let _leave = context.block("loading a kernel");
        let mut held = lock(&self.built_ins);
        let BuiltIns { modules, functions } = &mut *held;
        if let Some(known) = functions.get(entry) {
            return Ok(*known);
        }
        let module = match modules.entry(text.name) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let image = [text.ptx.as_bytes(), &[0]].concat();
                new.insert(Module::load(context, &image, text.name)?)
            }
        };
        for known in entries(text) {
            // All of them now: getting a function loads it, which may wait until the device is idle.
            functions.insert(known, module.function(known, known)?);
        }
        functions.get(entry).copied().ok_or_else(|| {
            Error::new(ErrorKind::InvalidArgument, "finding a kernel's entry").with("entry", entry)
        })
    }
}

/// The names of all functions in a text.
pub(crate) fn entries(text: &'static Text) -> impl Iterator<Item = &'static str> {
    text.ptx.split(".visible .entry ").skip(1).filter_map(|after| after.split('(').next())
}

/// What the API is given of a source.
fn image(
    flavour: &dyn Flavour,
    kernels: &Kernels,
    arch: &str,
    name: &str,
    code: &Code<'_>,
) -> Result<Vec<u8>> {
    let Code { source, is_translated } = *code;
    if source.language == flavour.traits().languages[0] {
        return kernels.compiler(flavour)?.compile(&source.text, name, arch, is_translated);
    }
    flavour.image(name, source)
}

/// Refuses what is no whole object file: the API is told no length, and would read on.
pub(crate) fn check_code(code: &[u8], name: &str) -> Result<()> {
    let word = |at: usize, len: usize| -> Option<u64> {
        let bytes = code.get(at..at + len)?;
        Some(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    };
    // Offsets and sizes in the header of a 64-bit object file, by the format's own specification.
    let end = |offset: usize, size: usize, count: usize| {
        word(offset, 8)?.checked_add(word(size, 2)?.checked_mul(word(count, 2)?)?)
    };
    let is_whole = code.starts_with(b"\x7fELF\x02\x01")
        && [end(0x20, 0x36, 0x38), end(0x28, 0x3a, 0x3c)]
            .iter()
            .all(|end| end.is_some_and(|end| end <= code.len() as u64));
    if is_whole {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidArgument, "loading a kernel")
        .with("kernel", name.to_owned())
        .with("because", "the code is no whole object file"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_that_is_cut_off_is_refused() {
        let mut header = [0_u8; 64];
        header[..6].copy_from_slice(b"\x7fELF\x02\x01");
        check_code(&header, "empty").unwrap();
        // Two sections of 64 bytes at 64: 192 bytes in all.
        header[0x28] = 64;
        header[0x3a] = 64;
        header[0x3c] = 2;
        let mut whole = header.to_vec();
        whole.resize(192, 0);
        check_code(&whole, "whole").unwrap();
        for wrong in [&whole[..191], &header[..], &header[..20], b"", b".version 7.0"] {
            let error = check_code(wrong, "cut").unwrap_err().to_string();
            assert!(error.contains("cut"), "{error}");
        }
    }
}
