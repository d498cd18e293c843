//! One file a kernel; each expands its family of the entry table.

#[cfg(any(not(target_arch = "nvptx64"), device_arch = "sm_80"))]
pub mod sm80;
#[cfg(any(not(target_arch = "nvptx64"), device_arch = "sm_90a"))]
pub mod sm90;
#[cfg(any(not(target_arch = "nvptx64"), device_arch = "sm_80"))]
pub mod standard;
#[cfg(any(not(target_arch = "nvptx64"), device_arch = "sm_80"))]
pub mod tiled;
