//! The nouns of the memory hierarchy, with their sizes in their types.

pub mod fragment;
pub mod swizzled;
pub mod swizzled_rows;
