//! Vectors: elements with a host copy, device copies, and a location that says where the newest is.

mod device_vector;
mod element;
mod host_access;
mod host_link;
mod host_slice;
pub mod location;
mod movement;
mod ranged;
mod state;
mod whole;

pub use device_vector::DeviceVector;
pub(crate) use device_vector::check_elements;
pub(crate) use element::as_bytes;
pub use element::{Element, ElementKind, Item, VECTOR_ELEMENTS_MAX, kind_of};
pub use host_slice::HostSlice;
pub use location::{Location, Operation};
pub(crate) use movement::Cell;
pub(crate) use ranged::Part;
pub use state::HostLink;
pub(crate) use whole::Body;
pub use whole::Vector;
