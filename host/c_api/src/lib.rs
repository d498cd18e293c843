//! C ABI of flash-attention.
