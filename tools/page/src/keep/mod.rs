//! Descriptors kept for a service while it restarts: by `spoc-loader keeper`, a process that opens no device and maps
//! nothing, so that hardly anything can end it.
//!
//! A SEQPACKET socket, one packet a message, every request answered by one packet:
//!
//! ```text
//! Put{name} + descriptor     → Done            kept, in place of what had that name
//! Remove{name}               → Done            let go; no error if there is none
//! Next{after, prefix}        → Entry{name} + descriptor, the next name behind `after`; or Done at the end
//! Ping                       → Done
//! anything else, or refused  → Refused{why}
//! ```
//!
//! What is kept stays when its connection closes: until it is removed, or the keeper ends. Only processes of the
//! keeper's own user are heard.

mod client;
mod message;
mod server;

pub use client::Keeper;
pub use message::NAME_MAX;
pub use server::{ENTRIES_MAX, KeeperServer};
