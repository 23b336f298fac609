/* spoc_cache.h: the C interface of libspoc_cache, generated from its Rust sources. Do not edit.
 *
 * - A call returns SPOC_OK or the code of an error (docs/errors.md); spoc_error_message() then has one line for the
 *   thread that called. Nothing is written to results then, and nothing ever unwinds out of a call.
 * - Handles are numbers in structures, {0} being none. One that was closed, is of another type or is made up is
 *   SPOC_ERROR_BAD_HANDLE. What was opened first may be closed first: what is needed stays alive.
 * - Structures begin with their size, which the caller sets, so that they can grow. In options, zeros are the defaults,
 *   and NULL for the whole structure is all of them.
 * - Pointers are NULL where that is said, and otherwise point to what their type says; texts end with a NUL and are
 *   UTF-8. Whatever is passed in is not kept beyond the call, unless that is said.
 * - "Any thread": at the same time too. Calls with the same stream or lease wait for each other.
 * - A child that forked without exec calls nothing here.
 */

#ifndef SPOC_CACHE_H
#define SPOC_CACHE_H

#include <stddef.h>
#include <stdint.h>

// A group's read began.
#define SPOC_EVENT_FILL_STARTED 1

// Its last copy was enqueued: it is resident.
#define SPOC_EVENT_FILL_DONE 2

// The read, or a copy, failed.
#define SPOC_EVENT_FILL_FAILED 3

// Everyone who wanted it went away.
#define SPOC_EVENT_FILL_CANCELLED 4

// A group left its slot.
#define SPOC_EVENT_EVICTED 5

// A lease wanted it, or wanted the room.
#define SPOC_CAUSE_DEMAND 1

// Reading failed, or the file changed.
#define SPOC_CAUSE_READ 2

// A copy or the stream failed.
#define SPOC_CAUSE_COPY 3

// Its model was unregistered, or the cache is closing.
#define SPOC_CAUSE_CLOSED 4

// A hint, a claim, a pin or a warm profile wanted it; nobody waits for it.
#define SPOC_CAUSE_AHEAD 5

// Its slot is given back.
#define SPOC_CAUSE_RESIZE 6

// Somebody cancelled it for everyone.
#define SPOC_CAUSE_CANCEL 7

// Somebody asked for it.
#define SPOC_CAUSE_ASKED 8

// Rises when a caller compiled against an older header would be misunderstood.
#define SPOC_ABI_MAJOR 1

// Rises when functions, fields at a structure's end, or codes are added.
#define SPOC_ABI_MINOR 1

// What a call returns: `SPOC_OK`, or the code of a kind in docs/errors.md. Read it as a number: later libraries have
// codes that this header has not.
enum spoc_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Done.
  SPOC_OK = 0,
  // An option, argument or variable that cannot be understood or is out of range.
  SPOC_ERROR_USAGE = 1,
  // A glob that cannot be understood.
  SPOC_ERROR_BAD_PATTERN = 2,
  // No tensor matches the pattern.
  SPOC_ERROR_NO_TENSOR = 3,
  // No such device or backend here; the message says why.
  SPOC_ERROR_NO_DEVICE = 4,
  // `cachestat`: no such process with a statistics page; the message lists those there are.
  SPOC_ERROR_NO_TARGET = 5,
  // `cachestat`: the page is of another version.
  SPOC_ERROR_VERSION_MISMATCH = 6,
  // `cachestat`: the file is no statistics page, or its figures lead out of it.
  SPOC_ERROR_DAMAGED_PAGE = 7,
  // `--check`, `demo`: device memory differs from the file.
  SPOC_ERROR_MISMATCH = 8,
  // A bug in spoc that was caught.
  SPOC_ERROR_INTERNAL = 9,
  // `replay`: the trace is not what its format prescribes, or is cut off; the message names line or byte.
  SPOC_ERROR_MALFORMED_TRACE = 10,
  // No such file or folder.
  SPOC_ERROR_NOT_FOUND = 100,
  // A folder, FIFO, socket or device where a file must be.
  SPOC_ERROR_NOT_A_REGULAR_FILE = 101,
  // A folder without weights.
  SPOC_ERROR_NO_WEIGHTS = 102,
  // Several models in one folder, and nothing that says which.
  SPOC_ERROR_AMBIGUOUS_WEIGHTS = 103,
  // The shard index is not what it must be.
  SPOC_ERROR_INDEX_INVALID = 104,
  // A shard does not exist.
  SPOC_ERROR_MISSING_SHARD = 105,
  // A tensor that the index promises is not in its shard.
  SPOC_ERROR_MISSING_TENSOR = 106,
  // A name in an index that leads out of the model's folder.
  SPOC_ERROR_PATH_ESCAPE = 107,
  // The parts of a split model do not belong together.
  SPOC_ERROR_SPLIT_MISMATCH = 108,
  // A later part of a split model was named.
  SPOC_ERROR_SPLIT_NOT_FIRST = 109,
  // A Git LFS pointer in place of the file.
  SPOC_ERROR_LFS_POINTER = 110,
  // The file is shorter than its length prefix.
  SPOC_ERROR_HEADER_TOO_SMALL = 200,
  // The header claims more bytes than are read.
  SPOC_ERROR_HEADER_TOO_LARGE = 201,
  // The header is not what its format prescribes.
  SPOC_ERROR_INVALID_HEADER = 202,
  // Another format than the name says.
  SPOC_ERROR_BAD_MAGIC = 203,
  // A format that is recognised and not read.
  SPOC_ERROR_UNSUPPORTED_FORMAT = 204,
  // A version of the format that is not read.
  SPOC_ERROR_UNSUPPORTED_VERSION = 205,
  // A byte order that is not read.
  SPOC_ERROR_UNSUPPORTED_ENDIANNESS = 206,
  // Text that is not UTF-8.
  SPOC_ERROR_BAD_UTF8 = 207,
  // An element type that is not known.
  SPOC_ERROR_BAD_DTYPE = 208,
  // A metadata value of an unknown type.
  SPOC_ERROR_BAD_VALUE_TYPE = 209,
  // The same key twice in one object.
  SPOC_ERROR_DUPLICATE_KEY = 210,
  // The same tensor in two files.
  SPOC_ERROR_DUPLICATE_TENSOR = 211,
  // More dimensions than the format has.
  SPOC_ERROR_TOO_MANY_DIMS = 212,
  // Arrays nested deeper than is read.
  SPOC_ERROR_NESTING_TOO_DEEP = 213,
  // A count that the file cannot hold.
  SPOC_ERROR_COUNT_OUT_OF_BOUNDS = 214,
  // A length that leads out of the file.
  SPOC_ERROR_LENGTH_OUT_OF_BOUNDS = 215,
  // An alignment that is none.
  SPOC_ERROR_ALIGNMENT_INVALID = 216,
  // The file ends before the bytes it promises.
  SPOC_ERROR_TRUNCATED = 300,
  // Bytes after the last tensor.
  SPOC_ERROR_TRAILING_DATA = 301,
  // Bytes between two tensors that belong to neither.
  SPOC_ERROR_HOLE = 302,
  // Two tensors claim the same bytes, or two ranges of a copy do.
  SPOC_ERROR_OVERLAP = 303,
  // An extent that ends before it begins.
  SPOC_ERROR_INVALID_OFFSETS = 304,
  // An extent outside the file.
  SPOC_ERROR_OFFSET_OUT_OF_BOUNDS = 305,
  // A shape whose bytes do not fit 64 bits.
  SPOC_ERROR_SHAPE_OVERFLOW = 306,
  // An extent that is not as long as its shape says.
  SPOC_ERROR_SHAPE_MISMATCH = 307,
  // A sub-byte tensor that does not end on a byte.
  SPOC_ERROR_SUBBYTE_MISALIGNED = 308,
  // A row that is not whole blocks.
  SPOC_ERROR_BLOCK_MISALIGNED = 309,
  // The system failed or refused a call.
  SPOC_ERROR_IO_ERROR = 400,
  // Out of file descriptors.
  SPOC_ERROR_TOO_MANY_OPEN_FILES = 401,
  // The file changed after it was opened.
  SPOC_ERROR_CHANGED = 402,
  // The staging ring cannot hold what is needed, or the host has not that memory.
  SPOC_ERROR_STAGING_TOO_SMALL = 403,
  // More requests than may wait.
  SPOC_ERROR_QUEUE_FULL = 404,
  // More than a limit allows.
  SPOC_ERROR_TOO_LARGE = 405,
  // Nobody wanted it any more.
  SPOC_ERROR_CANCELLED = 406,
  // A reader used in a forked child.
  SPOC_ERROR_FORKED = 407,
  // The reader, the cache or the pump has shut down.
  SPOC_ERROR_CLOSED = 408,
  // A read did not end within the read deadline.
  SPOC_ERROR_READ_TIMEOUT = 409,
  // Not enough free device memory.
  SPOC_ERROR_DEVICE_TOO_SMALL = 500,
  // A tensor or slot wider than one allocation of the device may be.
  SPOC_ERROR_WIDER_THAN_SEGMENT = 501,
  // A group wider than the slots.
  SPOC_ERROR_GROUP_TOO_WIDE = 502,
  // A set of groups wider than the pool.
  SPOC_ERROR_TOO_WIDE = 503,
  // No such group in the model.
  SPOC_ERROR_NO_SUCH_GROUP = 504,
  // A key of a model that was unregistered.
  SPOC_ERROR_STALE_KEY = 505,
  // More groups or bytes than can be numbered.
  SPOC_ERROR_CATALOGUE_TOO_LARGE = 506,
  // A statistics page with too little room.
  SPOC_ERROR_STORE_TOO_SMALL = 507,
  // The model is loading or leased.
  SPOC_ERROR_IN_USE = 508,
  // Not ready in time.
  SPOC_ERROR_TIMED_OUT = 509,
  // More slots than the cache was set up to number.
  SPOC_ERROR_TOO_MANY_SLOTS = 510,
  // A slot class that the cache does not have.
  SPOC_ERROR_NO_SUCH_CLASS = 511,
  // More groups than the slot table in device memory has room for.
  SPOC_ERROR_TABLE_TOO_SMALL = 512,
  // A slot that the arena does not have, or bytes beyond a slot's end.
  SPOC_ERROR_NO_SUCH_SLOT = 513,
  // The backend does not have the feature.
  SPOC_ERROR_UNSUPPORTED = 600,
  // A handle of another backend.
  SPOC_ERROR_FOREIGN_HANDLE = 601,
  // An object of another device.
  SPOC_ERROR_WRONG_DEVICE = 602,
  // A range outside its memory.
  SPOC_ERROR_OUT_OF_BOUNDS = 603,
  // An offset or length off the device's granule.
  SPOC_ERROR_MISALIGNED = 604,
  // Nothing where something must be.
  SPOC_ERROR_ZERO_SIZE = 605,
  // Work in flight still uses it.
  SPOC_ERROR_IN_FLIGHT = 606,
  // An event that was never recorded.
  SPOC_ERROR_NOT_RECORDED = 607,
  // Released before.
  SPOC_ERROR_RELEASED = 608,
  // The newest copy is elsewhere.
  SPOC_ERROR_WRONG_LOCATION = 609,
  // Elements of another kind.
  SPOC_ERROR_WRONG_KIND = 610,
  // Host memory in place, on a device that cannot address it.
  SPOC_ERROR_NOT_CPU_DEVICE = 611,
  // The vector has a buffer on the device already.
  SPOC_ERROR_ALREADY_ATTACHED = 612,
  // A handle owns the range, and only it may release it.
  SPOC_ERROR_HANDLE_OWNED = 613,
  // Refused while a stream is being recorded into a graph.
  SPOC_ERROR_CAPTURING = 614,
  // Enqueued work failed.
  SPOC_ERROR_ASYNC_FAILURE = 615,
  // The device is gone.
  SPOC_ERROR_DEVICE_LOST = 616,
  // The device is gone and took this process's use of the API with it: start anew.
  SPOC_ERROR_PROCESS_LOST = 617,
  // A value out of its range.
  SPOC_ERROR_INVALID_ARGUMENT = 618,
  // The system refused; the message says why.
  SPOC_ERROR_OS = 619,
  // The API refused; the message has its code.
  SPOC_ERROR_BACKEND = 620,
  // Bytes differ from what a manifest, or a blob's name, says they are.
  SPOC_ERROR_DIGEST_MISMATCH = 700,
  // Nothing to compare with: no manifest there, and the files are no Hugging Face blobs.
  SPOC_ERROR_NO_MANIFEST = 701,
  // The manifest is not what its format prescribes.
  SPOC_ERROR_INVALID_MANIFEST = 702,
  // The manifest is of another model, or of another state of it.
  SPOC_ERROR_MANIFEST_MISMATCH = 703,
  // The placement map is not what its format prescribes, or says what no load can do.
  SPOC_ERROR_INVALID_MAP = 720,
  // A handle that was closed, is of another type, or is none.
  SPOC_ERROR_BAD_HANDLE = 900,
  // What was asked of a lease needs it to be ready.
  SPOC_ERROR_NOT_READY = 901,
  // A kind that has no code yet: the message says what happened.
  SPOC_ERROR_UNKNOWN = 999,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum spoc_status spoc_status;
#else
typedef int32_t spoc_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// A reader, a staging ring and a copy stream for one device: start one a device.
typedef struct {
  // The handle; 0 is none.
  uint64_t id;
} spoc_pump;

// Slots of one width.
typedef struct {
  // Bytes that each must hold.
  uint64_t slot_bytes;
  // How many.
  uint32_t slots;
} spoc_slot_class;

// How a cache is set up.
typedef struct {
  // `sizeof(spoc_cache_options)`.
  size_t struct_size;
  // Bytes that a slot must hold: the widest group of every model to be registered
  // (`spoc_model_info.widest_group_bytes`).
  uint64_t slot_bytes;
  // Which group leaves: `forecast` (NULL is that), `cycle`, `lru`, ...
  const char *policy;
  // Which groups compete for a slot: `global` (NULL is that: all) or `layer` (those of a layer).
  const char *scope;
  // Bytes of a segment at most: what is given back is whole segments. 0: as many as the device serves.
  uint64_t segment_bytes;
  // Device memory to leave to others when slots are allocated.
  uint64_t headroom_bytes;
  // How many slots.
  uint32_t slots;
  // Slots that the cache can ever have, for `spoc_cache_resize`. 0: those it begins with.
  uint32_t slots_max;
  // Since 1.1. Slots of several widths, a group going into the narrowest that holds it; `slots` and `slot_bytes` are
  // not looked at then. NULL: the one class that these two describe.
  const spoc_slot_class *classes;
  // Since 1.1. How many classes.
  size_t class_count;
  // Since 1.1. Pinned host memory for groups that leave their slots, bytes: they come back from there without the disk.
  // It is taken in the background; more than the host can give is `SPOC_ERROR_STAGING_TOO_SMALL`. 0: none.
  uint64_t tier_bytes;
  // Since 1.1. Not 0: groups stay there while they are in a slot, so that evicting costs no copy.
  uint32_t tier_inclusive;
} spoc_cache_options;

// Slots of device memory, filled from disk on demand.
typedef struct {
  // The handle; 0 is none.
  uint64_t id;
} spoc_cache;

// An opened model: its files, tensors and groups.
typedef struct {
  // The handle; 0 is none.
  uint64_t id;
} spoc_model;

// One group of one registered model. The generation belongs to the registration: afterwards the key is stale.
typedef struct {
  // Which model, as `spoc_cache_register` numbered it.
  uint32_t model;
  // Which registration.
  uint32_t generation;
  // Number of the group in the model.
  uint32_t group;
} spoc_key;

// A segment of slots: slot `first_slot + i` begins `i * stride_bytes` behind the first, for as long as the segment is
// there.
typedef struct {
  // Set by the caller: `sizeof(spoc_segment)`.
  size_t struct_size;
  // Address of its first slot; 0 where the backend has no device addresses.
  uint64_t address;
  // Bytes from one slot to the next, a multiple of 256.
  uint64_t stride_bytes;
  // Its first slot.
  uint32_t first_slot;
  // How many there are.
  uint32_t slots;
} spoc_segment;

// The backends that were found on this machine.
typedef struct {
  // The handle; 0 is none.
  uint64_t id;
} spoc_driver;

// What a device is. All texts end with a NUL; longer ones are cut.
typedef struct {
  // Set by the caller: `sizeof(spoc_device_info)`.
  size_t struct_size;
  // The API family: `native`, `cuda`, `vulkan`, ...
  char backend[16];
  // Its lasting name, as `spoc_device_open_uuid` takes it.
  char uuid[40];
  // The vendor's name of the model.
  char name[128];
  // Size of its memory.
  uint64_t memory_bytes;
  // Position among its backend's devices.
  uint32_t index;
  // The NUMA node it hangs on; -1 where that is not known.
  int32_t numa_node;
  // 1 if host and device share one memory.
  uint32_t unified;
  // 1 if the UUID is the hardware's own and never changes.
  uint32_t uuid_is_stable;
} spoc_device_info;

// An opened device.
typedef struct {
  // The handle; 0 is none.
  uint64_t id;
} spoc_device;

// An object of the engine's API that spoc borrows: a context or a stream. What each word means stands with the
// adapter (docs/c-api.md); words that are not named there are 0.
typedef struct {
  // `sizeof(spoc_foreign)`.
  size_t struct_size;
  // Handles and numbers.
  uint64_t words[6];
  // Called once, from any thread, when spoc does not use the object any more, also where borrowing it fails; may
  // be NULL: then the object outlives every handle made from it.
  void (*release)(void *user);
  // Passed to `release`.
  void *user;
} spoc_foreign;

// A queue of what happens in a cache.
typedef struct {
  // The handle; 0 is none.
  uint64_t id;
} spoc_subscription;

// One change of what is resident.
typedef struct {
  // Set by the caller: `sizeof(spoc_event)`.
  size_t struct_size;
  // When, ns since the cache was opened.
  uint64_t time_ns;
  // To which group.
  spoc_key key;
  // In which slot.
  uint32_t slot;
  // What happened: `SPOC_EVENT_...`. Later libraries may know more.
  uint32_t kind;
  // Why: `SPOC_CAUSE_...`. Later libraries may know more.
  uint32_t cause;
} spoc_event;

// An ordered queue of device work: the engine's, or one of spoc's.
typedef struct {
  // The handle; 0 is none.
  uint64_t id;
} spoc_stream;

// A wish for groups, and once it is ready the right to use their slots.
typedef struct {
  // The handle; 0 is none.
  uint64_t id;
} spoc_lease;

// Where a tensor is in device memory.
typedef struct {
  // Set by the caller: `sizeof(spoc_place)`.
  size_t struct_size;
  // Device address; 0 where the backend has none.
  uint64_t address;
  // Where the host can address it; NULL where it cannot.
  void *host;
  // Offset in its segment, a multiple of 256.
  uint64_t offset_bytes;
  // Its length.
  uint64_t bytes;
  // Which segment, counted within the load or the cache.
  uint32_t segment;
  // Its number in the model; `UINT32_MAX` for a whole slot.
  uint32_t tensor;
} spoc_place;

// A switch that ends loads early.
typedef struct {
  // The handle; 0 is none.
  uint64_t id;
} spoc_cancel;

// Told how many of how many bytes have been copied. Comes from the copy thread, one call at a time: must be quick,
// call nothing that waits for the same pump, and let no exception out. Anything but 0 cancels the load, and the others
// that have its switch.
typedef int32_t (*spoc_progress)(void *user, uint64_t copied_bytes, uint64_t bytes);

// What to load. All zeros: everything, silently.
typedef struct {
  // `sizeof(spoc_load_options)`.
  size_t struct_size;
  // Only tensors whose name this glob matches; NULL: all.
  const char *tensors;
  // Told of progress; may be NULL.
  spoc_progress progress;
  // Passed to `progress`.
  void *user;
  // Ends the load early; may be none.
  spoc_cancel cancel;
} spoc_load_options;

// Tensors in device memory until the handle is closed.
typedef struct {
  // The handle; 0 is none.
  uint64_t id;
} spoc_loaded;

// What a load did.
typedef struct {
  // Set by the caller: `sizeof(spoc_loaded_info)`.
  size_t struct_size;
  // Tensors that were loaded.
  uint32_t tensors;
  // Segments of device memory they lie in.
  uint32_t segments;
  // Bytes of them.
  uint64_t bytes;
  // Planning and allocating, ns.
  uint64_t prepare_ns;
  // From the first read to the last copy, ns.
  uint64_t stream_ns;
} spoc_loaded_info;

// How a model is opened. All zeros: every tensor, grouped by the built-in rules.
typedef struct {
  // `sizeof(spoc_model_options)`.
  size_t struct_size;
  // Patterns of group names that come before the built-in rules, such as `enc.*.{layer}`.
  const char *const *group_patterns;
  // How many.
  size_t group_pattern_count;
  // Tensors that are grouped: globs of names, those with a `!` in front excluded. None: all. The others can be
  // loaded, but have no group.
  const char *const *grouped_tensors;
  // How many.
  size_t grouped_tensor_count;
} spoc_model_options;

// Figures of a model.
typedef struct {
  // Set by the caller: `sizeof(spoc_model_info)`.
  size_t struct_size;
  // Tensors it has.
  uint32_t tensors;
  // Groups it has.
  uint32_t groups;
  // Files it lies in.
  uint32_t files;
  // 0, for now.
  uint32_t reserved;
  // Bytes of all tensors.
  uint64_t tensor_bytes;
  // Bytes of a slot that holds its widest group.
  uint64_t widest_group_bytes;
} spoc_model_info;

// A tensor. The texts and the shape stand until the model is closed.
typedef struct {
  // Set by the caller: `sizeof(spoc_tensor)`.
  size_t struct_size;
  // Its name; a NUL in it reads as U+FFFD.
  const char *name;
  // Its element type in the format's terms: `BF16`, `Q4_K`, ...
  const char *dtype;
  // Dimensions in the order of the file: outermost first in safetensors, contiguous first in GGUF.
  const uint64_t *shape;
  // How many dimensions; 0 for a scalar.
  uint32_t rank;
  // Which of the model's files it lies in.
  uint32_t file;
  // Its first byte there.
  uint64_t file_offset;
  // Its length.
  uint64_t bytes;
} spoc_tensor;

// A group: tensors that move as one. The text stands until the model is closed.
typedef struct {
  // Set by the caller: `sizeof(spoc_group)`.
  size_t struct_size;
  // The part of their names that all its tensors share.
  const char *name;
  // Number in its layer stack; -1 if it is of none.
  int32_t layer;
  // Tensors it has.
  uint32_t tensors;
  // Bytes that it takes in a slot.
  uint64_t slot_bytes;
  // Bytes of its tensors.
  uint64_t tensor_bytes;
} spoc_group;

// A tensor's place in the slot of its group.
typedef struct {
  // Set by the caller: `sizeof(spoc_member)`.
  size_t struct_size;
  // Its number in the model.
  uint32_t tensor;
  // 0, for now.
  uint32_t reserved;
  // Where it begins in the slot, a multiple of 256.
  uint64_t offset_bytes;
  // Its length.
  uint64_t bytes;
} spoc_member;

// How a pump is set up. All zeros: the defaults.
typedef struct {
  // `sizeof(spoc_pump_options)`.
  size_t struct_size;
  // Bytes of the staging ring: all the host memory that loads take. 0: 64 MiB.
  uint64_t staging_bytes;
  // How files are read: `auto` (NULL is that), `direct`, `buffered` or `pread`.
  const char *io;
} spoc_pump_options;

// Figures of a cache. Counters only rise, and count for the whole pump, other caches on it included; the slots are
// this cache's, now.
typedef struct {
  // Set by the caller: `sizeof(spoc_stats)`.
  size_t struct_size;
  // Keys requested: hits and misses.
  uint64_t requested;
  // Keys that were resident when their set was judged.
  uint64_t hits;
  // Keys that were not.
  uint64_t misses;
  // Misses that joined a fill already running.
  uint64_t joins;
  // Sets served or refused for their width.
  uint64_t acquires;
  // Sets that failed because a fill of theirs did.
  uint64_t acquires_failed;
  // Time from acquires that were not ready at once to their readiness, ns.
  uint64_t stall_ns;
  // Fills whose last copy was enqueued.
  uint64_t fills_done;
  // Fills that failed.
  uint64_t fills_failed;
  // Bytes of the fills done.
  uint64_t filled_bytes;
  // Groups evicted.
  uint64_t evictions;
  // Bytes read, alignment slack included.
  uint64_t read_bytes;
  // Bytes of which copies to the device were enqueued.
  uint64_t copied_bytes;
  // Slots that hold nothing.
  uint64_t slots_free;
  // Slots being filled.
  uint64_t slots_loading;
  // Slots that hold a group that nobody leases.
  uint64_t slots_resident;
  // Slots under a lease.
  uint64_t slots_leased;
  // Slots whose last use on the device may still run.
  uint64_t slots_draining;
  // Slots whose fill failed.
  uint64_t slots_failed;
  // Leases out.
  uint64_t leases;
  // Sets waiting for room.
  uint64_t queued;
} spoc_stats;

// What became of the keys of a hint.
typedef struct {
  // There already, or on their way.
  uint32_t there;
  // Reads begun.
  uint32_t begun;
  // Waiting for room that demand does not keep hot.
  uint32_t waiting;
  // Not taken: reading ahead does not pay at present, the last read failed a moment ago, or too many wait.
  uint32_t refused;
} spoc_hinted;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Allocates the slots on the pump's device. Any thread.
spoc_status spoc_cache_open(spoc_pump pump, const spoc_cache_options *options, spoc_cache *cache);

// Takes a model's groups in and numbers it. The model's handle may be closed afterwards. Any thread.
spoc_status spoc_cache_register(spoc_cache cache, spoc_model model, uint32_t *number);

// Forgets a model: its groups leave, its keys are stale. Refused as `SPOC_ERROR_IN_USE` while something of it is
// loading, leased or wanted. Any thread.
spoc_status spoc_cache_unregister(spoc_cache cache, uint32_t number);

// The key of a group of a registered model. Any thread.
spoc_status spoc_cache_key(spoc_cache cache, uint32_t number, uint32_t group, spoc_key *key);

// How many segments the cache has now. Any thread.
spoc_status spoc_cache_segment_count(spoc_cache cache, size_t *count);

// The `position`-th segment of the table from which the address of every slot follows. It changes with
// `spoc_cache_resize` and `spoc_cache_give_back` alone, and the address of a slot that stays never does. Any thread.
spoc_status spoc_cache_segment(spoc_cache cache, size_t position, spoc_segment *segment);

// Changes how many slots there are and says how many it are then. More are allocated at once; fewer go as whole
// segments when what is in them has ended, as far as that happens within `timeout_ms` (negative: without end). Slots that
// stay keep their addresses. Any thread; one that holds leases gives a timeout.
spoc_status spoc_cache_resize(spoc_cache cache,
                              uint32_t slots,
                              int64_t timeout_ms,
                              uint32_t *slots_then);

// Gives at least `bytes` of device memory back, if segments can be emptied within `timeout_ms` (negative: without end),
// and says how many bytes it were. Any thread; one that holds leases gives a timeout.
spoc_status spoc_cache_give_back(spoc_cache cache, uint64_t bytes, int64_t timeout_ms, uint64_t *bytes_given);

// Gives memory back until as much is free on the device as `headroom_bytes` asked to leave to others: for engines to
// call when they need memory, or now and then. Waits as `spoc_cache_give_back` does; `bytes_given` says how much it
// freed. Any thread.
spoc_status spoc_cache_keep_headroom(spoc_cache cache, int64_t timeout_ms, uint64_t *bytes_given);

// Gives at least so many bytes of the host tier back to the host, or all of it, in the pieces it was taken in; what was
// kept there is read from disk again. `bytes_given` says how much it was. Any thread.
spoc_status spoc_cache_give_back_tier(spoc_cache cache, uint64_t bytes, uint64_t *bytes_given);

// Waits for the whole device and takes back slots of leases whose release could not be recorded. Any thread.
spoc_status spoc_cache_recover(spoc_cache cache);

// Closes the handle and cancels what is being read, unless leases are out: then the cache ends with the last of
// them. Any thread.
spoc_status spoc_cache_close(spoc_cache cache);

// Looks for backends. `backends` names them with commas between, or is NULL for all; the libraries of the others are
// not loaded. A backend that is not there is no error: `spoc_driver_missing` says why. Any thread.
spoc_status spoc_driver_open(const char *backends, spoc_driver *driver);

// Forgets what was found; devices that were opened stay open. Any thread.
spoc_status spoc_driver_close(spoc_driver driver);

// Why a backend is not there: a line that stands until the driver is closed, or NULL where it was found or was not
// looked for. Any thread.
spoc_status spoc_driver_missing(spoc_driver driver, const char *backend_name, const char **reason);

// How many devices the found backends have. Any thread.
spoc_status spoc_device_count(spoc_driver driver, size_t *count);

// What the `position`-th device of all is. Any thread.
spoc_status spoc_device_describe(spoc_driver driver, size_t position, spoc_device_info *info);

// Opens the `index`-th device of a backend. One that is open already is answered again. Any thread.
spoc_status spoc_device_open(spoc_driver driver, const char *backend_name, uint32_t index, spoc_device *device);

// Opens the device of a backend with this UUID. Any thread.
spoc_status spoc_device_open_uuid(spoc_driver driver, const char *backend_name, const char *uuid, spoc_device *device);

// Borrows the engine's own context as a device. Refused as `SPOC_ERROR_UNSUPPORTED` where the backend cannot. Any
// thread, while the context is alive.
spoc_status spoc_device_adopt(spoc_driver driver,
                              const char *backend_name,
                              const spoc_foreign *context,
                              spoc_device *device);

// Free and total memory of a device now, bytes. Any thread.
spoc_status spoc_device_memory(spoc_device device, uint64_t *free_bytes, uint64_t *total_bytes);

// Closes the handle; the device goes with the last stream, pump, cache and lease on it. Any thread.
spoc_status spoc_device_close(spoc_device device);

// A queue of up to `capacity` events of what happens from now on. The cache never waits for it: what does not fit is
// dropped, and counted. Any thread.
spoc_status spoc_cache_subscribe(spoc_cache cache, size_t capacity, spoc_subscription *subscription);

// Takes the oldest event, and waits for one up to `timeout_ms` (0: not at all, below 0: without end):
// `SPOC_ERROR_TIMED_OUT` if there is none by then, `SPOC_ERROR_CLOSED` once the cache is gone and every event of it was
// taken. Any thread; each event goes to one of those who wait.
spoc_status spoc_subscription_next(spoc_subscription subscription, int64_t timeout_ms, spoc_event *event);

// Events that were dropped because the queue was full. Any thread.
spoc_status spoc_subscription_dropped(spoc_subscription subscription, uint64_t *events);

// Closes the handle, and the queue behind those who wait for an event. Any thread.
spoc_status spoc_subscription_close(spoc_subscription subscription);

// Which groups of a model are resident, most used first, as text (docs/cache.md): for `spoc_cache_warm` of a later
// process. `bytes` says how long it is, its NUL included; it is written to `text` if it fits `room`, and otherwise
// nothing is. `text` may be NULL with a `room` of 0. Any thread.
spoc_status spoc_cache_profile(spoc_cache cache, uint32_t number, char *text, size_t room, size_t *bytes);

// Reads the groups of a profile ahead of anybody who wants them, most used first, into slots that are free. Names that
// the model has not are passed over. `begun`, which may be NULL, says how many reads it began. Any thread.
spoc_status spoc_cache_warm(spoc_cache cache, uint32_t number, const char *profile, uint32_t *begun);

// One line about the last call of this thread that failed; empty if none did. It stands until the thread's next
// failing call. Any thread; each has its own.
const char *spoc_error_message(void);

// A code's stable name, such as `not_found`; `unknown` for a number that is no code. Static memory. Any thread.
const char *spoc_status_name(int32_t status);

// Wants groups, for launches on `stream`. Returns at once; `spoc_lease_wait` or `spoc_lease_try` make the lease ready.
//
// The set is judged at once and none of its members leaves for another of them; slots are reserved for all of it or
// for nothing, first come first served. Refused as `SPOC_ERROR_TOO_WIDE` if it can never fit. Any thread.
spoc_status spoc_acquire(spoc_cache cache,
                         const spoc_key *keys,
                         size_t key_count,
                         spoc_stream stream,
                         spoc_lease *lease);

// `spoc_acquire`, and waits for the disk for at most `timeout_ms` (negative: without end). Without a lease if it
// fails. Any thread.
spoc_status spoc_wait_acquire(spoc_cache cache,
                              const spoc_key *keys,
                              size_t key_count,
                              spoc_stream stream,
                              int64_t timeout_ms,
                              spoc_lease *lease);

// Leases what is there of a set, for launches on `stream`, and begins to read at most `inserts_max` of what is not: for
// engines that compute those elsewhere. Never waits. The lease is ready, and of the keys that are there, in their
// order; `missing`, with room for `key_count`, gets the distinct others and `missing_count` their number. Any thread.
spoc_status spoc_claim(spoc_cache cache,
                       const spoc_key *keys,
                       size_t key_count,
                       spoc_stream stream,
                       size_t inserts_max,
                       spoc_key *missing,
                       size_t *missing_count,
                       spoc_lease *lease);

// Whether the lease is ready (1) or not yet (0). Never waits for the disk. An error says why it never will be. One
// thread at a time.
spoc_status spoc_lease_try(spoc_lease lease, uint32_t *ready);

// Waits until the lease is ready, for at most `timeout_ms` (negative: without end): everything has been read, and
// whatever is enqueued on the stream from now on runs behind the copies. After `SPOC_ERROR_TIMED_OUT` it can be
// waited for again. One thread at a time; other calls with this lease wait meanwhile.
spoc_status spoc_lease_wait(spoc_lease lease, int64_t timeout_ms);

// Where the slot of the `index`-th key is, and how many bytes of it the group takes. Through `host`, look only after `spoc_stream_synchronize` of the stream.
// Any thread.
spoc_status spoc_lease_slot(spoc_lease lease,
                            size_t index,
                            uint32_t *slot,
                            spoc_place *where_);

// Where the `position`-th tensor of the `index`-th key's group is, in the order of `spoc_model_member`. Any thread.
spoc_status spoc_lease_tensor(spoc_lease lease, size_t index, uint32_t position, spoc_place *where_);

// The device addresses of the slots of all keys, in their order: `count` is the number of keys. Any thread.
spoc_status spoc_lease_addresses(spoc_lease lease, uint64_t *addresses, size_t count);

// Reads bytes of a tensor (as `spoc_lease_tensor` counts) back to the host: complete on return. For checks, and for
// devices whose memory has no address. Any thread.
spoc_status spoc_lease_read(spoc_lease lease,
                            size_t index,
                            uint32_t position,
                            uint64_t offset_bytes,
                            uint8_t *to,
                            size_t len_bytes);

// Ends a lease, ready or not. Its slots are filled anew only behind everything enqueued so far on `streams`: all
// that launches with its slots ran on. With none, nothing is using them: the host is done reading, or nothing was
// launched. The stream it was acquired on is not added by itself. The lease's handle is closed, unless a handle
// passed here is bad; if an event cannot be recorded, its slots are kept aside until `spoc_cache_recover`. Any thread.
spoc_status spoc_lease_release(spoc_lease lease, const spoc_stream *streams, size_t stream_count);

// A switch that is not thrown. Any thread.
spoc_status spoc_cancel_create(spoc_cancel *cancel);

// Ends every load that has the switch, those to come as well: they return `SPOC_ERROR_CANCELLED`. Any thread.
spoc_status spoc_cancel_request(spoc_cancel cancel);

// Closes the handle; what it cancelled stays cancelled. Any thread.
spoc_status spoc_cancel_close(spoc_cancel cancel);

// Loads a model into device memory of its own and waits until the last copy has run. `options` may be NULL. Any
// thread.
spoc_status spoc_load(spoc_pump pump, spoc_model model, const spoc_load_options *options, spoc_loaded *loaded);

// What a load did. Any thread.
spoc_status spoc_loaded_describe(spoc_loaded loaded, spoc_loaded_info *info);

// Where a tensor, by its number in the model, is. Its bytes are there: the load waited for them. Any thread.
spoc_status spoc_loaded_tensor(spoc_loaded loaded, uint32_t tensor, spoc_place *where_);

// Reads every loaded byte back and compares it with the files. Any thread.
spoc_status spoc_loaded_verify(spoc_loaded loaded, spoc_model model);

// Frees the device memory, once nothing enqueued by spoc uses it; what the engine enqueued is the engine's to wait
// for first. Any thread.
spoc_status spoc_loaded_close(spoc_loaded loaded);

// Opens a model: a `.safetensors` or `.gguf` file, a folder, a shard index, a Hugging Face name or snapshot. `options`
// may be NULL. Any thread; reads headers, and no weights.
spoc_status spoc_model_open(const char *path, const spoc_model_options *options, spoc_model *model);

// Figures of a model. Any thread.
spoc_status spoc_model_describe(spoc_model model, spoc_model_info *info);

// A tensor by its number, which counts in the order of file and offset. Any thread.
spoc_status spoc_model_tensor(spoc_model model, uint32_t number, spoc_tensor *tensor);

// The number of the tensor with this name. Any thread.
spoc_status spoc_model_find_tensor(spoc_model model, const char *name, uint32_t *number);

// A group by its number, which counts in the order in which the model is visited. Any thread.
spoc_status spoc_model_group(spoc_model model, uint32_t number, spoc_group *group);

// The number of the group with this name. Any thread.
spoc_status spoc_model_find_group(spoc_model model, const char *name, uint32_t *number);

// The `position`-th tensor of a group, in the order in which they lie in its slot. Any thread.
spoc_status spoc_model_member(spoc_model model, uint32_t group, uint32_t position, spoc_member *member);

// Closes the handle, and with it the texts and shapes that were taken from it. Caches that registered the model keep
// what they need. Any thread.
spoc_status spoc_model_close(spoc_model model);

// Takes and pins the staging ring, starts the reader and the copy thread. `options` may be NULL. Any thread.
spoc_status spoc_pump_open(spoc_device device, const spoc_pump_options *options, spoc_pump *pump);

// Closes the handle. The pump ends with the last cache and load on it: until then this may be called at any time; it
// waits for reads in flight. Any thread but that of a progress call.
spoc_status spoc_pump_close(spoc_pump pump);

// Figures of a cache and its pump. Any thread.
spoc_status spoc_cache_stats(spoc_cache cache, spoc_stats *stats);

// A new stream. With `non_blocking` 1 the default stream does not wait for it. Any thread.
spoc_status spoc_stream_create(spoc_device device, uint32_t non_blocking, spoc_stream *stream);

// The device's default stream. Any thread.
spoc_status spoc_stream_default(spoc_device device, spoc_stream *stream);

// Borrows the engine's own stream of this device. Refused as `SPOC_ERROR_UNSUPPORTED` where the backend cannot. With
// `non_blocking` 1 it is one that the default stream does not wait for. Any thread, while the stream is alive.
spoc_status spoc_stream_adopt(spoc_device device,
                              const spoc_foreign *foreign,
                              uint32_t non_blocking,
                              spoc_stream *stream);

// Waits until everything enqueued on the stream has run. Any thread; other calls with this stream wait meanwhile.
spoc_status spoc_stream_synchronize(spoc_stream stream);

// Closes the handle. Nothing that was enqueued is cancelled; leases on it stay valid. Any thread.
spoc_status spoc_stream_close(spoc_stream stream);

// The interface that the library speaks: `major << 16 | minor`. A caller works with the header's major and a minor
// that is at least the header's. Any thread.
uint32_t spoc_abi_version(void);

// Prefetch: says that groups will probably be wanted within `within_ms`. They are read behind every demand, into slots
// that are free or that demand does not keep hot; a demand joins a running read and makes it urgent. What it was good for
// is counted, and below break-even it is turned off for a while. `hinted` may be NULL. Any thread.
spoc_status spoc_hint(spoc_cache cache,
                      const spoc_key *keys,
                      size_t key_count,
                      uint64_t within_ms,
                      spoc_hinted *hinted);

// Keeps groups in their slots until as many `spoc_unpin`s; what is not there is read, which this does not wait for.
// `SPOC_ERROR_TOO_WIDE`, and nothing pinned, if they do not fit beside what is pinned already. Any thread.
spoc_status spoc_pin(spoc_cache cache, const spoc_key *keys, size_t key_count);

// Ends one pin of each. Any thread.
spoc_status spoc_unpin(spoc_cache cache, const spoc_key *keys, size_t key_count);

// Keeps groups for a while as long as anything else can leave; 0 takes the wish back. Any thread.
spoc_status spoc_retain(spoc_cache cache, const spoc_key *keys, size_t key_count, uint64_t time_ms);

// Ends running reads of these groups for everyone: leases that wait for one fail as `SPOC_ERROR_CANCELLED`. Says how
// many reads it ended; `ended` may be NULL. Any thread.
spoc_status spoc_cancel_reads(spoc_cache cache, const spoc_key *keys, size_t key_count, uint32_t *ended);

// The next part of a set wider than the slots: which of `keys` can be acquired together now, what is there first. Their
// positions go to `positions`, with room for `key_count`, in rising order, and `position_count` says how many. Acquire
// these, use and release them, and ask again with the others. Any thread.
spoc_status spoc_next_wave(spoc_cache cache,
                           const spoc_key *keys,
                           size_t key_count,
                           size_t *positions,
                           size_t *position_count);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SPOC_CACHE_H */
