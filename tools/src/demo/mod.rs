//! `spoc-loader demo`: the whole way of a byte, on any machine, in a few seconds.

pub mod model;
