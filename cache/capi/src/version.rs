//! Which interface this library speaks.

/// Rises when a caller compiled against an older header would be misunderstood.
pub const SPOC_ABI_MAJOR: u32 = 1;
/// Rises when functions, fields at a structure's end, or codes are added.
pub const SPOC_ABI_MINOR: u32 = 1;

/// The interface that the library speaks: `major << 16 | minor`. A caller works with the header's major and a minor
/// that is at least the header's. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn spoc_abi_version() -> u32 {
    (SPOC_ABI_MAJOR << 16) | SPOC_ABI_MINOR
}
