//! Weights and leases outlive the service: real processes on loopback, ended with SIGKILL.
//!
//! This program is all of them: without arguments it runs the scenarios, and starts itself as keeper, service or client.
//! `SPOC_SURVIVAL_BACKEND=cuda` runs them on the first CUDA device, `SPOC_SURVIVAL_MIB=1000` with a larger model. Times are
//! printed, and none is asserted but that a restarted service answers within a second.

#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout)] // all of it is a test

mod model;
mod process;
mod roles;
mod scenarios;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["keeper", path] => roles::keeper(path.as_ref()),
        ["service", socket, park] => roles::service(socket, park),
        ["client", socket, image] => roles::client(socket.as_ref(), image),
        _ => scenarios::all(&args),
    }
}
