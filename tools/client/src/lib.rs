//! A client of `spoc-loader serve`.
//!
//! A [`Session`] ties what a process holds to its life. A [`Lease`] on groups of a model, or on a whole image, is the
//! right to read device memory that the service owns; [`Lease::memory`] imports it into a device that the caller opened.
//! A lease ends when its word is raised: by dropping it, or by the caller's device behind its launches
//! ([`Lease::leave_to_device`]).
//!
//! ```no_run
//! # async fn example(device: &spoc_driver::Device) -> spoc_client::Result<()> {
//! let client = spoc_client::Client::connect("/run/spoc/control.sock").await?;
//! let session = client.session("my engine").await?;
//! let lease = session.acquire("my-model", &[0, 1], None).await?;
//! for index in 0..lease.slots().len() {
//!     let (segment, offset_bytes) = lease.memory(device, index)?;
//!     let mut bytes = vec![0; 16];
//!     segment.read(offset_bytes, &mut bytes)?;
//! }
//! lease.release();
//! # Ok(())
//! # }
//! ```
//!
//! The same without async:
//!
//! ```no_run
//! # fn example(device: &spoc_driver::Device) -> spoc_client::Result<()> {
//! let client = spoc_client::blocking::Client::connect("/run/spoc/control.sock")?;
//! let session = client.session("my engine")?;
//! let image = client.load("my-model", |done, total| println!("{done} of {total}"))?.image;
//! let lease = session.acquire_image(&image)?;
//! let (segment, offset_bytes) = lease.memory(device, 0)?;
//! # let _ = (segment, offset_bytes);
//! # Ok(())
//! # }
//! ```
//!
//! Nothing of this survives a `fork`: in the child every call answers `forked`, and dropping a lease there ends nothing.

#![forbid(unsafe_code)]

pub mod blocking;
mod client;
mod error;
mod lease;
mod process;
mod session;

pub use client::{Client, Progress, ms};
pub use error::{Error, Result};
pub use lease::Lease;
pub use session::Session;
pub use spoc_proto::v1 as pb;
