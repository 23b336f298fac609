//! Joins the reader's chunks to the driver's copies: the cache's only unsafe code.
