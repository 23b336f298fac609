//! The functions that both APIs have, by one name each, and the types that they take.
//!
//! Handles are pointers to the API and nothing to us, addresses of device memory are words, enumerations are as wide as
//! a `u32`. That these are the API's own signatures is checked where a table is filled.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

/// What a function answers: 0 for success.
pub(crate) type Code = c_uint;
/// A context, stream, event, module or function.
pub(crate) type Handle = *mut c_void;
/// An address of device memory.
pub(crate) type DevicePtr = u64;
/// A device, by its number.
pub(crate) type Ordinal = c_int;
/// Physical memory.
pub(crate) type MemoryHandle = u64;

/// Where memory lies.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Location {
    pub(crate) kind: c_uint,
    pub(crate) id: c_int,
}

/// What physical memory is made to be.
#[repr(C)]
pub(crate) struct MemoryProperties {
    pub(crate) kind: c_uint,
    pub(crate) handle_types: c_uint,
    pub(crate) location: Location,
    pub(crate) platform: *mut c_void,
    pub(crate) flags: [u8; 8],
}

/// Who may do what with mapped memory.
#[repr(C)]
pub(crate) struct Access {
    pub(crate) location: Location,
    pub(crate) flags: c_uint,
}

/// What holds for the copies of a batch.
#[repr(C)]
pub(crate) struct CopyAttributes {
    pub(crate) source_order: c_uint,
    pub(crate) source: Location,
    pub(crate) destination: Location,
    pub(crate) flags: c_uint,
}

/// Declares a structure of functions of a library, one of the symbols that they have there, and how to look them up.
macro_rules! functions {
    (
        $(#[$about:meta])*
        $Table:ident by $Symbols:ident
        required { $($name:ident($($argument:ty),*);)* }
        optional { $($may:ident($($may_argument:ty),*);)* }
    ) => {
        $(#[$about])*
        pub(crate) struct $Table {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> $crate::streamed::table::Code,)*
            $(pub(crate) $may: Option<unsafe extern "C" fn($($may_argument),*) -> $crate::streamed::table::Code>,)*
        }

        /// What the functions are called in the library; empty for one that the API does not have.
        pub(crate) struct $Symbols {
            $(pub(crate) $name: &'static str,)*
            $(pub(crate) $may: &'static str,)*
        }

        impl $Table {
            /// Looks every function up.
            ///
            /// # Errors
            /// The symbol that is missing.
            ///
            /// # Safety
            /// The symbols name functions of the library with these arguments, which answer an unsigned C
            /// enumeration. The library is never unloaded.
            pub(crate) unsafe fn resolve(
                library: &libloading::Library,
                symbols: &$Symbols,
            ) -> Result<Self, &'static str> {
                Ok(Self {
                    // SAFETY: the caller's word.
                    $($name: unsafe { library.get(symbols.$name.as_bytes()) }
                        .map(|found| *found)
                        .map_err(|_| symbols.$name)?,)*
                    $($may: if symbols.$may.is_empty() {
                        None
                    } else {
                        // SAFETY: as above.
                        unsafe { library.get(symbols.$may.as_bytes()) }.map(|found| *found).ok()
                    },)*
                })
            }
        }
    };
}
pub(crate) use functions;

functions! {
    /// One pointer a function; those that older drivers lack are optional.
    Table by Symbols
    required {
        device_count(*mut c_int);
        device_get(*mut Ordinal, c_int);
        device_name(*mut c_char, c_int, Ordinal);
        device_uuid(*mut [u8; 16], Ordinal);
        device_total_memory(*mut usize, Ordinal);
        device_attribute(*mut c_int, c_uint, Ordinal);
        device_pci_bus_id(*mut c_char, c_int, Ordinal);
        context_priorities(*mut c_int, *mut c_int);
        memory_info(*mut usize, *mut usize);
        stream_create(*mut Handle, c_uint, c_int);
        stream_destroy(Handle);
        stream_query(Handle);
        stream_wait_event(Handle, Handle, c_uint);
        stream_is_capturing(Handle, *mut c_uint);
        capture_mode(*mut c_uint);
        event_create(*mut Handle, c_uint);
        event_destroy(Handle);
        event_record(Handle, Handle);
        event_query(Handle);
        event_synchronize(Handle);
        event_elapsed(*mut f32, Handle, Handle);
        memory_allocate(*mut DevicePtr, usize);
        memory_free(DevicePtr);
        host_allocate(*mut *mut c_void, usize, c_uint);
        host_free(*mut c_void);
        host_register(*mut c_void, usize, c_uint);
        host_unregister(*mut c_void);
        copy_to_device(DevicePtr, *const c_void, usize, Handle);
        copy_to_host(*mut c_void, DevicePtr, usize, Handle);
        copy_on_device(DevicePtr, DevicePtr, usize, Handle);
        fill(DevicePtr, u8, usize, Handle);
        pointer_attributes(c_uint, *mut c_uint, *mut *mut c_void, DevicePtr);
        pointer_attribute(*mut c_void, c_uint, DevicePtr);
        module_load(*mut Handle, *const c_void, c_uint, *mut c_uint, *mut *mut c_void);
        module_unload(Handle);
        module_function(*mut Handle, Handle, *const c_char);
        launch(
            Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void
        );
        address_reserve(*mut DevicePtr, usize, usize, DevicePtr, c_ulonglong);
        address_free(DevicePtr, usize);
        physical_create(*mut MemoryHandle, usize, *const MemoryProperties, c_ulonglong);
        physical_release(MemoryHandle);
        physical_map(DevicePtr, usize, usize, MemoryHandle, c_ulonglong);
        physical_unmap(DevicePtr, usize);
        physical_access(DevicePtr, usize, *const Access, usize);
        physical_granularity(*mut usize, *const MemoryProperties, c_uint);
        physical_export(*mut c_void, MemoryHandle, c_uint, c_ulonglong);
        physical_properties(*mut MemoryProperties, MemoryHandle);
        physical_import(*mut MemoryHandle, *mut c_void, c_uint);
    }
    optional {
        write_value(Handle, DevicePtr, u64, c_uint);
        // The same as the next without the index of the copy that failed.
        copy_batch_short(
            *mut DevicePtr, *mut DevicePtr, *mut usize, usize, *mut CopyAttributes, *mut usize, usize, Handle
        );
        copy_batch(
            *mut DevicePtr, *mut DevicePtr, *mut usize, usize, *mut CopyAttributes, *mut usize, usize, *mut usize,
            Handle
        );
    }
}

#[cfg(test)]
mod tests {
    functions! {
        /// Functions that no library has.
        Own by OwnSymbols
        required { absent(u32); }
        optional { may(u32); }
    }

    #[test]
    fn a_function_that_is_missing_is_named() {
        let own = libloading::os::unix::Library::this().into();
        let symbols = OwnSymbols { absent: "spoc_is_in_no_library", may: "" };
        // SAFETY: there is no such symbol.
        assert_eq!(unsafe { Own::resolve(&own, &symbols) }.err(), Some("spoc_is_in_no_library"));
        let symbols = OwnSymbols { absent: "getpid", may: "spoc_is_in_no_library" };
        // SAFETY: it is not called.
        let found = unsafe { Own::resolve(&own, &symbols) }.ok().unwrap();
        assert!(found.may.is_none());
        let _ = found.absent;
    }
}
