//! The nouns of the memory hierarchy, with their sizes in their types.

pub mod fragment;
pub mod global_rows;
pub mod product;
pub mod register_tile;
pub mod shared_tile;
pub mod swizzled;
pub mod swizzled_rows;
