//! The checks, each named after the rule of the contract that it proves.

pub mod copies;
pub mod devices;
pub mod elements;
pub mod events;
pub mod handles;
pub mod host_pointers;
pub mod launches;
pub mod ledger;
pub mod locations;
pub mod offers;
pub mod pinned;
pub mod segments;
pub mod sharing;
pub mod staging;
pub mod streams;
pub mod stress;
pub mod threads;
pub mod typed;

/// All checks by name.
pub mod all {
    pub use super::copies::*;
    pub use super::devices::*;
    pub use super::elements::*;
    pub use super::events::*;
    pub use super::handles::*;
    pub use super::host_pointers::*;
    pub use super::launches::*;
    pub use super::ledger::*;
    pub use super::locations::*;
    pub use super::offers::*;
    pub use super::pinned::*;
    pub use super::segments::*;
    pub use super::sharing::*;
    pub use super::staging::*;
    pub use super::streams::*;
    pub use super::stress::*;
    pub use super::threads::*;
    pub use super::typed::*;
}
