//! One adapter for each GPU API behind the driver's port, and the probe that finds them.
