//! The compiled kernels inside the library: what lay in `host/ptx` when it was built, compressed.

use crate::error::{Error, Result};

/// One kernel as it lies in the binary.
struct Packed {
    name: &'static str,
    arch: &'static str,
    ptx: &'static [u8],
    cubin: Option<&'static [u8]>,
}

/// Sorted by architecture, then by name.
static TABLE: &[Packed] = include!(concat!(env!("OUT_DIR"), "/embedded_table.rs"));

/// A kernel that was embedded when the library was built.
///
/// ```
/// use flash_attention::embedded;
/// // None in a build without compiled kernels, such as a git dependency.
/// for kernel in embedded::kernels() {
///     println!("{} for {}, {} bytes of PTX", kernel.name(), kernel.arch(), kernel.ptx().len());
/// }
/// ```
#[derive(Clone, Copy)]
pub struct EmbeddedKernel(&'static Packed);

impl EmbeddedKernel {
    /// The entry's symbol in the PTX.
    pub fn name(&self) -> &'static str {
        self.0.name
    }

    /// The architecture that the kernel was compiled for: `sm_80` or `sm_90a`.
    pub fn arch(&self) -> &'static str {
        self.0.arch
    }

    /// The PTX text.
    pub fn ptx(&self) -> Vec<u8> {
        unpack(self.0.ptx)
    }

    /// The machine code for exactly [`Self::arch`], where it was built: it loads without the driver's compiler.
    pub fn cubin(&self) -> Option<Vec<u8>> {
        self.0.cubin.map(unpack)
    }
}

/// All embedded kernels.
pub fn kernels() -> impl Iterator<Item = EmbeddedKernel> {
    TABLE.iter().map(EmbeddedKernel)
}

/// The embedded kernel of that name, if there is one.
///
/// ```
/// assert!(flash_attention::embedded::lookup("no_such_kernel").is_none());
/// ```
pub fn lookup(name: &str) -> Option<EmbeddedKernel> {
    kernels().find(|kernel| kernel.name() == name)
}

/// The PTX text of a kernel.
///
/// ```
/// let error = flash_attention::embedded::ptx("no_such_kernel").unwrap_err();
/// assert!(error.to_string().starts_with("kernel no_such_kernel is not in this build, which "));
/// ```
///
/// # Errors
/// [`Error::Unavailable`] with the way to get it, where the library was built without the kernel.
pub fn ptx(name: &str) -> Result<Vec<u8>> {
    lookup(name).map(|kernel| kernel.ptx()).ok_or_else(|| {
        let what = match TABLE.is_empty() {
            true => format!("kernel {name} is not in this build, which was made without compiled kernels"),
            false => format!("kernel {name} is not in this build, which has {} others", TABLE.len()),
        };
        Error::unavailable_on_gpu(what, "run `cargo xtask build-ptx` and build again")
    })
}

/// The machine code of a kernel, where the build has it.
pub fn cubin(name: &str) -> Option<Vec<u8>> {
    lookup(name).and_then(|kernel| kernel.cubin())
}

fn unpack(bytes: &[u8]) -> Vec<u8> {
    miniz_oxide::inflate::decompress_to_vec(bytes).expect("the build script compressed these bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_kernel_says_how_to_get_it() {
        let message = ptx("no_such_kernel").unwrap_err().to_string();
        assert!(message.starts_with("kernel no_such_kernel is not in this build, which "), "{message}");
        assert!(message.contains("cargo xtask build-ptx"), "{message}");
        assert_eq!(cubin("no_such_kernel"), None);
    }

    #[test]
    fn embedded_kernels_unpack_to_ptx_of_their_own_name_and_architecture() {
        for kernel in kernels() {
            let text = String::from_utf8(kernel.ptx()).unwrap();
            assert!(text.contains(&format!(".target {}", kernel.arch())), "{}", kernel.name());
            assert!(text.contains(&format!(".visible .entry {}(", kernel.name())), "{}", kernel.name());
            if let Some(cubin) = kernel.cubin() {
                assert!(cubin.starts_with(b"\x7fELF"), "{}", kernel.name());
            }
        }
    }
}
