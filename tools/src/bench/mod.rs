//! `spoc-loader bench`: the two ceilings of a load, each measured alone with the loader's own parts.

pub mod link;
pub mod read;
