//! The shared statistics page behind a safe API.
