//! Codes: docs/errors.md's kinds as numbers. A number never changes its meaning and is never used again.

use std::ffi::CStr;

/// What a call returns: `SPOC_OK`, or the code of a kind in docs/errors.md. Read it as a number: later libraries have
/// codes that this header has not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum spoc_status {
    /// Done.
    SPOC_OK = 0,
    /// An option, argument or variable that cannot be understood or is out of range.
    SPOC_ERROR_USAGE = 1,
    /// A glob that cannot be understood.
    SPOC_ERROR_BAD_PATTERN = 2,
    /// No tensor matches the pattern.
    SPOC_ERROR_NO_TENSOR = 3,
    /// No such device or backend here; the message says why.
    SPOC_ERROR_NO_DEVICE = 4,
    /// `cachestat`: no such process with a statistics page; the message lists those there are.
    SPOC_ERROR_NO_TARGET = 5,
    /// `cachestat`: the page is of another version.
    SPOC_ERROR_VERSION_MISMATCH = 6,
    /// `cachestat`: the file is no statistics page, or its figures lead out of it.
    SPOC_ERROR_DAMAGED_PAGE = 7,
    /// `--check`, `demo`: device memory differs from the file.
    SPOC_ERROR_MISMATCH = 8,
    /// A bug in spoc that was caught.
    SPOC_ERROR_INTERNAL = 9,
    /// `replay`: the trace is not what its format prescribes, or is cut off; the message names line or byte.
    SPOC_ERROR_MALFORMED_TRACE = 10,
    /// No such file or folder.
    SPOC_ERROR_NOT_FOUND = 100,
    /// A folder, FIFO, socket or device where a file must be.
    SPOC_ERROR_NOT_A_REGULAR_FILE = 101,
    /// A folder without weights.
    SPOC_ERROR_NO_WEIGHTS = 102,
    /// Several models in one folder, and nothing that says which.
    SPOC_ERROR_AMBIGUOUS_WEIGHTS = 103,
    /// The shard index is not what it must be.
    SPOC_ERROR_INDEX_INVALID = 104,
    /// A shard does not exist.
    SPOC_ERROR_MISSING_SHARD = 105,
    /// A tensor that the index promises is not in its shard.
    SPOC_ERROR_MISSING_TENSOR = 106,
    /// A name in an index that leads out of the model's folder.
    SPOC_ERROR_PATH_ESCAPE = 107,
    /// The parts of a split model do not belong together.
    SPOC_ERROR_SPLIT_MISMATCH = 108,
    /// A later part of a split model was named.
    SPOC_ERROR_SPLIT_NOT_FIRST = 109,
    /// A Git LFS pointer in place of the file.
    SPOC_ERROR_LFS_POINTER = 110,
    /// The file is shorter than its length prefix.
    SPOC_ERROR_HEADER_TOO_SMALL = 200,
    /// The header claims more bytes than are read.
    SPOC_ERROR_HEADER_TOO_LARGE = 201,
    /// The header is not what its format prescribes.
    SPOC_ERROR_INVALID_HEADER = 202,
    /// Another format than the name says.
    SPOC_ERROR_BAD_MAGIC = 203,
    /// A format that is recognised and not read.
    SPOC_ERROR_UNSUPPORTED_FORMAT = 204,
    /// A version of the format that is not read.
    SPOC_ERROR_UNSUPPORTED_VERSION = 205,
    /// A byte order that is not read.
    SPOC_ERROR_UNSUPPORTED_ENDIANNESS = 206,
    /// Text that is not UTF-8.
    SPOC_ERROR_BAD_UTF8 = 207,
    /// An element type that is not known.
    SPOC_ERROR_BAD_DTYPE = 208,
    /// A metadata value of an unknown type.
    SPOC_ERROR_BAD_VALUE_TYPE = 209,
    /// The same key twice in one object.
    SPOC_ERROR_DUPLICATE_KEY = 210,
    /// The same tensor in two files.
    SPOC_ERROR_DUPLICATE_TENSOR = 211,
    /// More dimensions than the format has.
    SPOC_ERROR_TOO_MANY_DIMS = 212,
    /// Arrays nested deeper than is read.
    SPOC_ERROR_NESTING_TOO_DEEP = 213,
    /// A count that the file cannot hold.
    SPOC_ERROR_COUNT_OUT_OF_BOUNDS = 214,
    /// A length that leads out of the file.
    SPOC_ERROR_LENGTH_OUT_OF_BOUNDS = 215,
    /// An alignment that is none.
    SPOC_ERROR_ALIGNMENT_INVALID = 216,
    /// The file ends before the bytes it promises.
    SPOC_ERROR_TRUNCATED = 300,
    /// Bytes after the last tensor.
    SPOC_ERROR_TRAILING_DATA = 301,
    /// Bytes between two tensors that belong to neither.
    SPOC_ERROR_HOLE = 302,
    /// Two tensors claim the same bytes, or two ranges of a copy do.
    SPOC_ERROR_OVERLAP = 303,
    /// An extent that ends before it begins.
    SPOC_ERROR_INVALID_OFFSETS = 304,
    /// An extent outside the file.
    SPOC_ERROR_OFFSET_OUT_OF_BOUNDS = 305,
    /// A shape whose bytes do not fit 64 bits.
    SPOC_ERROR_SHAPE_OVERFLOW = 306,
    /// An extent that is not as long as its shape says.
    SPOC_ERROR_SHAPE_MISMATCH = 307,
    /// A sub-byte tensor that does not end on a byte.
    SPOC_ERROR_SUBBYTE_MISALIGNED = 308,
    /// A row that is not whole blocks.
    SPOC_ERROR_BLOCK_MISALIGNED = 309,
    /// The system failed or refused a call.
    SPOC_ERROR_IO_ERROR = 400,
    /// Out of file descriptors.
    SPOC_ERROR_TOO_MANY_OPEN_FILES = 401,
    /// The file changed after it was opened.
    SPOC_ERROR_CHANGED = 402,
    /// The staging ring cannot hold what is needed, or the host has not that memory.
    SPOC_ERROR_STAGING_TOO_SMALL = 403,
    /// More requests than may wait.
    SPOC_ERROR_QUEUE_FULL = 404,
    /// More than a limit allows.
    SPOC_ERROR_TOO_LARGE = 405,
    /// Nobody wanted it any more.
    SPOC_ERROR_CANCELLED = 406,
    /// A reader used in a forked child.
    SPOC_ERROR_FORKED = 407,
    /// The reader, the cache or the pump has shut down.
    SPOC_ERROR_CLOSED = 408,
    /// A read did not end within the read deadline.
    SPOC_ERROR_READ_TIMEOUT = 409,
    /// Not enough free device memory.
    SPOC_ERROR_DEVICE_TOO_SMALL = 500,
    /// A tensor or slot wider than one allocation of the device may be.
    SPOC_ERROR_WIDER_THAN_SEGMENT = 501,
    /// A group wider than the slots.
    SPOC_ERROR_GROUP_TOO_WIDE = 502,
    /// A set of groups wider than the pool.
    SPOC_ERROR_TOO_WIDE = 503,
    /// No such group in the model.
    SPOC_ERROR_NO_SUCH_GROUP = 504,
    /// A key of a model that was unregistered.
    SPOC_ERROR_STALE_KEY = 505,
    /// More groups or bytes than can be numbered.
    SPOC_ERROR_CATALOGUE_TOO_LARGE = 506,
    /// A statistics page with too little room.
    SPOC_ERROR_STORE_TOO_SMALL = 507,
    /// The model is loading or leased.
    SPOC_ERROR_IN_USE = 508,
    /// Not ready in time.
    SPOC_ERROR_TIMED_OUT = 509,
    /// More slots than the cache was set up to number.
    SPOC_ERROR_TOO_MANY_SLOTS = 510,
    /// A slot class that the cache does not have.
    SPOC_ERROR_NO_SUCH_CLASS = 511,
    /// More groups than the slot table in device memory has room for.
    SPOC_ERROR_TABLE_TOO_SMALL = 512,
    /// A slot that the arena does not have, or bytes beyond a slot's end.
    SPOC_ERROR_NO_SUCH_SLOT = 513,
    /// The backend does not have the feature.
    SPOC_ERROR_UNSUPPORTED = 600,
    /// A handle of another backend.
    SPOC_ERROR_FOREIGN_HANDLE = 601,
    /// An object of another device.
    SPOC_ERROR_WRONG_DEVICE = 602,
    /// A range outside its memory.
    SPOC_ERROR_OUT_OF_BOUNDS = 603,
    /// An offset or length off the device's granule.
    SPOC_ERROR_MISALIGNED = 604,
    /// Nothing where something must be.
    SPOC_ERROR_ZERO_SIZE = 605,
    /// Work in flight still uses it.
    SPOC_ERROR_IN_FLIGHT = 606,
    /// An event that was never recorded.
    SPOC_ERROR_NOT_RECORDED = 607,
    /// Released before.
    SPOC_ERROR_RELEASED = 608,
    /// The newest copy is elsewhere.
    SPOC_ERROR_WRONG_LOCATION = 609,
    /// Elements of another kind.
    SPOC_ERROR_WRONG_KIND = 610,
    /// Host memory in place, on a device that cannot address it.
    SPOC_ERROR_NOT_CPU_DEVICE = 611,
    /// The vector has a buffer on the device already.
    SPOC_ERROR_ALREADY_ATTACHED = 612,
    /// A handle owns the range, and only it may release it.
    SPOC_ERROR_HANDLE_OWNED = 613,
    /// Refused while a stream is being recorded into a graph.
    SPOC_ERROR_CAPTURING = 614,
    /// Enqueued work failed.
    SPOC_ERROR_ASYNC_FAILURE = 615,
    /// The device is gone.
    SPOC_ERROR_DEVICE_LOST = 616,
    /// The device is gone and took this process's use of the API with it: start anew.
    SPOC_ERROR_PROCESS_LOST = 617,
    /// A value out of its range.
    SPOC_ERROR_INVALID_ARGUMENT = 618,
    /// The system refused; the message says why.
    SPOC_ERROR_OS = 619,
    /// The API refused; the message has its code.
    SPOC_ERROR_BACKEND = 620,
    /// Bytes differ from what a manifest, or a blob's name, says they are.
    SPOC_ERROR_DIGEST_MISMATCH = 700,
    /// Nothing to compare with: no manifest there, and the files are no Hugging Face blobs.
    SPOC_ERROR_NO_MANIFEST = 701,
    /// The manifest is not what its format prescribes.
    SPOC_ERROR_INVALID_MANIFEST = 702,
    /// The manifest is of another model, or of another state of it.
    SPOC_ERROR_MANIFEST_MISMATCH = 703,
    /// The placement map is not what its format prescribes, or says what no load can do.
    SPOC_ERROR_INVALID_MAP = 720,
    /// A handle that was closed, is of another type, or is none.
    SPOC_ERROR_BAD_HANDLE = 900,
    /// What was asked of a lease needs it to be ready.
    SPOC_ERROR_NOT_READY = 901,
    /// A kind that has no code yet: the message says what happened.
    SPOC_ERROR_UNKNOWN = 999,
}

use spoc_status as S;

/// Every code and the name of its kind.
const TABLE: &[(spoc_status, &CStr)] = &[
    (S::SPOC_OK, c"ok"),
    (S::SPOC_ERROR_USAGE, c"usage"),
    (S::SPOC_ERROR_BAD_PATTERN, c"bad_pattern"),
    (S::SPOC_ERROR_NO_TENSOR, c"no_tensor"),
    (S::SPOC_ERROR_NO_DEVICE, c"no_device"),
    (S::SPOC_ERROR_NO_TARGET, c"no_target"),
    (S::SPOC_ERROR_VERSION_MISMATCH, c"version_mismatch"),
    (S::SPOC_ERROR_DAMAGED_PAGE, c"damaged_page"),
    (S::SPOC_ERROR_MISMATCH, c"mismatch"),
    (S::SPOC_ERROR_INTERNAL, c"internal"),
    (S::SPOC_ERROR_MALFORMED_TRACE, c"malformed_trace"),
    (S::SPOC_ERROR_NOT_FOUND, c"not_found"),
    (S::SPOC_ERROR_NOT_A_REGULAR_FILE, c"not_a_regular_file"),
    (S::SPOC_ERROR_NO_WEIGHTS, c"no_weights"),
    (S::SPOC_ERROR_AMBIGUOUS_WEIGHTS, c"ambiguous_weights"),
    (S::SPOC_ERROR_INDEX_INVALID, c"index_invalid"),
    (S::SPOC_ERROR_MISSING_SHARD, c"missing_shard"),
    (S::SPOC_ERROR_MISSING_TENSOR, c"missing_tensor"),
    (S::SPOC_ERROR_PATH_ESCAPE, c"path_escape"),
    (S::SPOC_ERROR_SPLIT_MISMATCH, c"split_mismatch"),
    (S::SPOC_ERROR_SPLIT_NOT_FIRST, c"split_not_first"),
    (S::SPOC_ERROR_LFS_POINTER, c"lfs_pointer"),
    (S::SPOC_ERROR_HEADER_TOO_SMALL, c"header_too_small"),
    (S::SPOC_ERROR_HEADER_TOO_LARGE, c"header_too_large"),
    (S::SPOC_ERROR_INVALID_HEADER, c"invalid_header"),
    (S::SPOC_ERROR_BAD_MAGIC, c"bad_magic"),
    (S::SPOC_ERROR_UNSUPPORTED_FORMAT, c"unsupported_format"),
    (S::SPOC_ERROR_UNSUPPORTED_VERSION, c"unsupported_version"),
    (S::SPOC_ERROR_UNSUPPORTED_ENDIANNESS, c"unsupported_endianness"),
    (S::SPOC_ERROR_BAD_UTF8, c"bad_utf8"),
    (S::SPOC_ERROR_BAD_DTYPE, c"bad_dtype"),
    (S::SPOC_ERROR_BAD_VALUE_TYPE, c"bad_value_type"),
    (S::SPOC_ERROR_DUPLICATE_KEY, c"duplicate_key"),
    (S::SPOC_ERROR_DUPLICATE_TENSOR, c"duplicate_tensor"),
    (S::SPOC_ERROR_TOO_MANY_DIMS, c"too_many_dims"),
    (S::SPOC_ERROR_NESTING_TOO_DEEP, c"nesting_too_deep"),
    (S::SPOC_ERROR_COUNT_OUT_OF_BOUNDS, c"count_out_of_bounds"),
    (S::SPOC_ERROR_LENGTH_OUT_OF_BOUNDS, c"length_out_of_bounds"),
    (S::SPOC_ERROR_ALIGNMENT_INVALID, c"alignment_invalid"),
    (S::SPOC_ERROR_TRUNCATED, c"truncated"),
    (S::SPOC_ERROR_TRAILING_DATA, c"trailing_data"),
    (S::SPOC_ERROR_HOLE, c"hole"),
    (S::SPOC_ERROR_OVERLAP, c"overlap"),
    (S::SPOC_ERROR_INVALID_OFFSETS, c"invalid_offsets"),
    (S::SPOC_ERROR_OFFSET_OUT_OF_BOUNDS, c"offset_out_of_bounds"),
    (S::SPOC_ERROR_SHAPE_OVERFLOW, c"shape_overflow"),
    (S::SPOC_ERROR_SHAPE_MISMATCH, c"shape_mismatch"),
    (S::SPOC_ERROR_SUBBYTE_MISALIGNED, c"subbyte_misaligned"),
    (S::SPOC_ERROR_BLOCK_MISALIGNED, c"block_misaligned"),
    (S::SPOC_ERROR_IO_ERROR, c"io_error"),
    (S::SPOC_ERROR_TOO_MANY_OPEN_FILES, c"too_many_open_files"),
    (S::SPOC_ERROR_CHANGED, c"changed"),
    (S::SPOC_ERROR_STAGING_TOO_SMALL, c"staging_too_small"),
    (S::SPOC_ERROR_QUEUE_FULL, c"queue_full"),
    (S::SPOC_ERROR_TOO_LARGE, c"too_large"),
    (S::SPOC_ERROR_CANCELLED, c"cancelled"),
    (S::SPOC_ERROR_FORKED, c"forked"),
    (S::SPOC_ERROR_CLOSED, c"closed"),
    (S::SPOC_ERROR_READ_TIMEOUT, c"read_timeout"),
    (S::SPOC_ERROR_DEVICE_TOO_SMALL, c"device_too_small"),
    (S::SPOC_ERROR_WIDER_THAN_SEGMENT, c"wider_than_segment"),
    (S::SPOC_ERROR_GROUP_TOO_WIDE, c"group_too_wide"),
    (S::SPOC_ERROR_TOO_WIDE, c"too_wide"),
    (S::SPOC_ERROR_NO_SUCH_GROUP, c"no_such_group"),
    (S::SPOC_ERROR_STALE_KEY, c"stale_key"),
    (S::SPOC_ERROR_CATALOGUE_TOO_LARGE, c"catalogue_too_large"),
    (S::SPOC_ERROR_STORE_TOO_SMALL, c"store_too_small"),
    (S::SPOC_ERROR_IN_USE, c"in_use"),
    (S::SPOC_ERROR_TIMED_OUT, c"timed_out"),
    (S::SPOC_ERROR_TOO_MANY_SLOTS, c"too_many_slots"),
    (S::SPOC_ERROR_NO_SUCH_CLASS, c"no_such_class"),
    (S::SPOC_ERROR_TABLE_TOO_SMALL, c"table_too_small"),
    (S::SPOC_ERROR_NO_SUCH_SLOT, c"no_such_slot"),
    (S::SPOC_ERROR_UNSUPPORTED, c"unsupported"),
    (S::SPOC_ERROR_FOREIGN_HANDLE, c"foreign_handle"),
    (S::SPOC_ERROR_WRONG_DEVICE, c"wrong_device"),
    (S::SPOC_ERROR_OUT_OF_BOUNDS, c"out_of_bounds"),
    (S::SPOC_ERROR_MISALIGNED, c"misaligned"),
    (S::SPOC_ERROR_ZERO_SIZE, c"zero_size"),
    (S::SPOC_ERROR_IN_FLIGHT, c"in_flight"),
    (S::SPOC_ERROR_NOT_RECORDED, c"not_recorded"),
    (S::SPOC_ERROR_RELEASED, c"released"),
    (S::SPOC_ERROR_WRONG_LOCATION, c"wrong_location"),
    (S::SPOC_ERROR_WRONG_KIND, c"wrong_kind"),
    (S::SPOC_ERROR_NOT_CPU_DEVICE, c"not_cpu_device"),
    (S::SPOC_ERROR_ALREADY_ATTACHED, c"already_attached"),
    (S::SPOC_ERROR_HANDLE_OWNED, c"handle_owned"),
    (S::SPOC_ERROR_CAPTURING, c"capturing"),
    (S::SPOC_ERROR_ASYNC_FAILURE, c"async_failure"),
    (S::SPOC_ERROR_DEVICE_LOST, c"device_lost"),
    (S::SPOC_ERROR_PROCESS_LOST, c"process_lost"),
    (S::SPOC_ERROR_INVALID_ARGUMENT, c"invalid_argument"),
    (S::SPOC_ERROR_OS, c"os"),
    (S::SPOC_ERROR_BACKEND, c"backend"),
    (S::SPOC_ERROR_DIGEST_MISMATCH, c"digest_mismatch"),
    (S::SPOC_ERROR_NO_MANIFEST, c"no_manifest"),
    (S::SPOC_ERROR_INVALID_MANIFEST, c"invalid_manifest"),
    (S::SPOC_ERROR_MANIFEST_MISMATCH, c"manifest_mismatch"),
    (S::SPOC_ERROR_INVALID_MAP, c"invalid_map"),
    (S::SPOC_ERROR_BAD_HANDLE, c"bad_handle"),
    (S::SPOC_ERROR_NOT_READY, c"not_ready"),
    (S::SPOC_ERROR_UNKNOWN, c"unknown"),
];

/// Kinds that have two names, as in the tools: the user chose a device and not an allocation.
const RENAMED: [(&str, &str); 3] = [
    ("no_such_device", "no_device"),
    ("out_of_device_memory", "device_too_small"),
    ("out_of_host_memory", "staging_too_small"),
];

impl spoc_status {
    /// The code of a kind.
    pub fn of(kind: &str) -> spoc_status {
        let kind = RENAMED.iter().find(|(from, _)| *from == kind).map_or(kind, |(_, to)| to);
        let row = TABLE.iter().find(|(_, name)| name.to_bytes() == kind.as_bytes());
        row.map_or(S::SPOC_ERROR_UNKNOWN, |(status, _)| *status)
    }

    /// The name of a code's kind.
    pub fn name(status: i32) -> &'static CStr {
        TABLE.iter().find(|(own, _)| *own as i32 == status).map_or(c"unknown", |(_, name)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_the_codes_in_small_letters() {
        for (status, name) in &TABLE[1..] {
            let name = name.to_string_lossy();
            assert_eq!(format!("{status:?}"), format!("SPOC_ERROR_{}", name.to_uppercase()));
            assert_eq!(spoc_status::of(&name), *status);
            assert_eq!(spoc_status::name(*status as i32).to_string_lossy(), name);
        }
        assert_eq!(spoc_status::of("no_such_device"), S::SPOC_ERROR_NO_DEVICE);
        assert_eq!(spoc_status::of("a kind of tomorrow"), S::SPOC_ERROR_UNKNOWN);
        assert_eq!(spoc_status::name(-1), c"unknown");
    }

    #[test]
    fn every_kind_of_the_table_has_a_code_and_no_other() {
        let page = include_str!("../../../docs/errors.md");
        let kind = |line: &'static str| line.strip_prefix("| `")?.split_once("` |").map(|(kind, _)| kind);
        // The service answers other processes; nothing here can fail by its kinds.
        let (before, service) = page.split_once("| **The service** | |").unwrap();
        let behind = service.split_once("\n| **").map_or("", |(_, behind)| behind);
        let documented: BTreeSet<&str> = before.lines().chain(behind.lines()).filter_map(kind).collect();
        assert!(documented.len() > 80, "docs/errors.md is written in another way now");
        let coded: BTreeSet<String> =
            TABLE.iter().map(|(_, name)| name.to_string_lossy().into_owned()).collect();
        for kind in &documented {
            assert!(coded.contains(*kind), "{kind} has no code: add it to the end of its room's numbers");
        }
        for kind in coded.iter().filter(|kind| !["ok", "unknown"].contains(&kind.as_str())) {
            assert!(documented.contains(kind.as_str()), "{kind} is not in docs/errors.md");
        }
    }
}
