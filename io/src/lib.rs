//! Weight files: formats, read planning, and an io_uring reader into a staging ring.
