//! Devices, streams, events, vectors, pinned memory and the port that every GPU API plugs into.
