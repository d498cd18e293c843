//! One file a kernel; each expands its family of the entry table.
