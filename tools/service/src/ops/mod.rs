//! How the service is watched and run: metrics, health, the service manager.

pub mod calls;
pub mod families;
pub mod http;
pub mod layer;
pub mod metrics;
pub mod observe;
pub mod systemd;
