//! Warpgroup products.

/// What a warpgroup has in flight.
#[derive(Default)]
pub(crate) struct Warpgroup {}

/// What a thread has in flight.
#[derive(Default)]
pub(crate) struct Products {}
