//! Random programs over two devices against a reference: bytes in arrays, changed in program order.
//!
//! That order is only right if conflicting operations are ordered on the devices too. So the machine knows
//! what the contract promises to run before what (`order`), and where a program would race it first orders
//! the two, as a careful caller does. What it relies on is thereby exactly what the contract says.

mod machine;
mod order;
mod program;
mod reference;
mod vectors;

pub use machine::run;
pub use program::{How, Op, Order, Piece, Program, VectorOp, programs};
