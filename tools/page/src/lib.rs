//! What processes share, behind a safe API: the statistics page, the words by which clients of the service end their
//! leases, the socket on which it lends descriptors, the process that keeps them while it restarts, and descriptors that a
//! service manager passed on.
//!
//! # The statistics page
//!
//! A process that wants to be seen creates a [`Page`]: a small shared-memory file of 64-bit words, mode 0600, in a
//! per-user [runtime folder](search_dirs). An inspector finds it with [`list`] and maps it read-only with
//! [`View::open`]. Nothing has to run in the inspected process for that, so a page can be read while its process
//! hangs or is stopped. What the words mean is not known here.
//!
//! **Names.** `PID-START-BOOT-N.page`: process id, start time in clock ticks since boot (as `/proc/PID/stat` gives
//! it), the boot id in hex, and a number that tells several pages of one process apart. A reused
//! pid has another start time; a page from before a reboot has another boot id.
//!
//! **Life.** A page is linked into the folder only when it is [published](Page::publish), complete and already
//! locked (`flock`). The kernel drops the lock when the process dies, however it dies, so a page whose lock can be
//! taken is stale. This also holds across PID namespaces, where a pid says nothing.
//!
//! **Trust.** Folders lie in places where anybody can make one. A folder that is a link is none; a page counts only if
//! its file belongs to the owner of its folder, and the process that it names does too; only in the reader's own folder
//! may that process be out of sight. Stale pages are removed from the reader's own folders alone.
//!
//! **What cannot be excluded.** A file in a folder can be truncated by its owner, and touching a mapping past the end
//! of its file raises SIGBUS. The writer therefore allocates every byte before it maps, and a reader checks the size
//! before mapping and again before every read. A truncation between that check and the read cannot be excluded
//! (only a sealed memfd could, and that has no name to be found by). Only the user who owns both processes can cause it.

mod dir;
mod entry;
mod inherit;
pub mod keep;
mod leftover;
pub mod lend;
mod name;
mod page;
mod view;
mod wire;
mod words;

pub use dir::{create_dir, search_dirs};
pub use entry::{Entry, list, remove_stale};
pub use inherit::{Inherited, inherited};
pub use leftover::remove_leftover_socket;
pub use name::{PageName, ProcessIdentity};
pub use page::Page;
pub use view::View;
pub use words::Words;
