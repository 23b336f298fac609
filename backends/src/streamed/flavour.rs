//! What the APIs differ in.

use std::ffi::c_int;

use spoc_driver::backend::{BackendKind, Launch};
use spoc_driver::{BuiltIn, Language, Result, Source};

use super::error::Api;
use super::memory::Buffer;
use super::rtc::Compiler;
use super::table::{Code, DevicePtr, Handle, Ordinal};
use crate::kernel::write::Dialect;

/// One API of this shape.
pub(crate) trait Flavour: Send + Sync + 'static {
    /// Which family.
    fn kind(&self) -> BackendKind;
    /// A code's name and the API's words for it.
    fn words(&self, code: Code) -> String;
    /// Numbers and habits.
    fn traits(&self) -> &'static Traits;
    /// The API's version and its driver's, for records.
    fn driver_name(&self, version: c_int) -> String {
        format!("{} {version}", self.traits().name)
    }

    /// Begins to use the context of a device that everybody in the process shares.
    fn retain(&self, device: Ordinal) -> Result<Handle, Code>;
    /// Ends it.
    fn release(&self, device: Ordinal) -> Code;
    /// Makes a context the calling thread's, and answers what [`Flavour::leave`] wants to know.
    fn enter(&self, context: Handle, device: Ordinal) -> Result<Ordinal, Code>;
    /// Gives the thread the context back that it had.
    fn leave(&self, before: Ordinal) -> Code;
    /// The device of the context that is current.
    fn current_device(&self) -> Result<Ordinal, Code>;
    /// Whether a stream is of a context.
    ///
    /// # Safety
    /// The stream is live.
    unsafe fn is_stream_of(&self, stream: Handle, context: Handle, device: Ordinal) -> Result<bool, Code>;

    /// Whether streams can be made to wait for words of 64 bits, as far as functions go.
    fn waits_for_words(&self) -> bool;
    /// Enqueues a wait until a word is at least as large, counted in a circle.
    ///
    /// # Safety
    /// Both are live, and stay so until the stream has come past it.
    unsafe fn wait_value(&self, stream: Handle, address: DevicePtr, value: u64) -> Code;
    /// How a descriptor is passed to be imported. What it points to is used before the place goes.
    fn descriptor(&self, place: &mut c_int) -> Handle;

    /// What a device's code is compiled for.
    fn arch(&self, api: &Api, device: Ordinal) -> String;
    /// Loads the compiler.
    ///
    /// # Errors
    /// Why there is none, for the person who expected one.
    fn load_compiler(&self) -> Result<Box<dyn Compiler>, String>;
    /// What the API is given of a source in one of its languages, where it is not the one to be compiled.
    ///
    /// # Errors
    /// `InvalidArgument` for code that is none.
    fn image(&self, name: &str, source: &Source) -> Result<Vec<u8>>;

    /// Whether a built-in kernel's code comes with the adapter.
    fn has_built_in(&self, which: BuiltIn) -> bool {
        let _ = which;
        false
    }
    /// A built-in kernel by code that comes with the adapter, if it does.
    ///
    /// # Errors
    /// `WrongKind`, `InvalidArgument`.
    fn built_in(&self, which: BuiltIn, launch: &Launch<'_, Buffer>) -> Result<Option<Plan>> {
        let _ = (which, launch);
        Ok(None)
    }
    /// One of the adapter's texts, to be loaded ahead, with one of its entries.
    fn ahead(&self) -> Option<(&'static Text, &'static str)> {
        None
    }
    /// The kernels that carry small copies, with their entries: for short lists and for long ones.
    fn carriers(&self) -> Option<[(&'static Text, &'static str); 2]> {
        None
    }
}

/// Numbers and habits of an API.
pub(crate) struct Traits {
    /// What people call it.
    pub(crate) name: &'static str,
    /// Attributes of devices.
    pub(crate) attributes: Attributes,
    /// The handle of the default stream of whatever context is current.
    pub(crate) default_stream: usize,
    /// Languages that kernels may come in, the one to be compiled first.
    pub(crate) languages: &'static [Language],
    /// How translated kernels are written.
    pub(crate) dialect: Dialect,
    /// So much is taken from memory that is not pinned without waiting for the stream.
    pub(crate) staged_bytes_max: usize,
    /// The API tells in a buffer why it does not take code.
    pub(crate) has_load_log: bool,
    /// A copy may not leave the registration that it begins in.
    pub(crate) cuts_at_registrations: bool,
    /// The first copy out of registered memory is timed, and counted if it is slow.
    pub(crate) times_first_copies: bool,
    /// Memory with a file behind it is not registered.
    pub(crate) refuses_files: bool,
    /// Contexts of other libraries can be borrowed.
    pub(crate) adopts_contexts: bool,
    /// Since when there are words of 64 bits.
    pub(crate) words_since: &'static str,
}

/// Numbers of a device's attributes; nothing for what the API does not tell.
pub(crate) struct Attributes {
    pub(crate) words: u32,
    pub(crate) registers: u32,
    pub(crate) virtual_memory: u32,
    pub(crate) same_addresses: u32,
    /// Where there is none, exporting is tried.
    pub(crate) descriptors: Option<u32>,
    pub(crate) integrated: u32,
    pub(crate) numa_node: u32,
}

/// Code that comes with an adapter.
#[derive(Debug, PartialEq)]
pub(crate) struct Text {
    pub(crate) name: &'static str,
    /// What it was made from.
    #[cfg(test)]
    pub(crate) source: &'static str,
    pub(crate) ptx: &'static str,
}

/// What one built-in does on the device.
#[derive(Debug, PartialEq)]
pub(crate) enum Plan {
    /// Nothing: there is nothing to do.
    Nothing,
    /// A copy within the device: from, to, bytes.
    Copy(u64, u64, u64),
    /// A launch of one of the texts' functions.
    Run { text: &'static Text, entry: &'static str, groups: u32, parameters: Vec<u64> },
}
