//! The weight-streaming service: it owns device memory on a host, streams weights in, and lends them to other processes.
//!
//! - [`Config`]: what runs and who may use it.
//! - [`Service::start`]: opens sockets and serves until [`Service::stop`].
//!
//! What is lent lives in two forms. An **image** is a whole model on one device, in segments of its own; an **arena** is a
//! slot cache in which models' groups compete. Both are held by **leases**, and a lease is a word: it ends when its word
//! in the session's shared words reaches a value, which the client writes, or its device behind its launches, or this
//! service when it is told to release it or sees the client's process end.
//!
//! Sealed images and sessions can outlive the service: their descriptors are parked with a keeper or systemd, and a restarted
//! service adopts them (`park` of the configuration).
//!
//! The control plane is gRPC on a Unix socket (`spoc-proto`); descriptors travel on a second one (`spoc_page::lend`).
#![forbid(unsafe_code)]

mod access;
mod adopt;
mod arenas;
mod clients;
mod config;
mod error;
mod events;
mod host;
mod images;
mod lend;
mod models;
pub mod ops;
mod park;
mod record;
mod rpc;
mod run;
mod segments;
mod session;
mod state;

pub use config::{Access, ArenaConfig, ClassConfig, Config, Overrides, Quota, Size, default_socket};
pub use error::{Error, Result};
pub use park::Parked;
pub use run::{Service, Survived};
