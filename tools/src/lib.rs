//! What `spoc-loader` and `cachestat` share. The programs are thin: they parse, call one of the commands here, and
//! print through [`out`], the only place that does.

#![forbid(unsafe_code)]

pub mod bench;
pub mod cli;
pub mod ctl;
pub mod demo;
pub mod devices;
pub mod doctor;
pub mod failure;
pub mod inspect;
pub mod keeper;
pub mod load;
pub mod manifest;
pub mod out;
pub mod placed;
pub mod process;
pub mod progress;
pub mod publish;
pub mod replay;
pub mod selftest;
pub mod serve;
pub mod staging;
pub mod units;
pub mod verify;
