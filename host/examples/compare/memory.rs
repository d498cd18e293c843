//! How much host memory a piece of work takes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// The system's allocator, with a count of the bytes in use and of their peak.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn add(bytes: usize) {
    PEAK.fetch_max(IN_USE.fetch_add(bytes, Relaxed) + bytes, Relaxed);
}

fn subtract(bytes: usize) {
    IN_USE.fetch_sub(bytes, Relaxed);
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller's promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller's promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        add(size);
        subtract(layout.size());
        // SAFETY: the caller's promises.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        subtract(layout.size());
        // SAFETY: the caller's promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Does `work` and measures how many bytes it had allocated at once, beside what it leaves allocated. What other
/// threads of the program allocate in the meantime counts as well.
pub fn peak_of<R>(work: impl FnOnce() -> R) -> (R, u64) {
    // There is one peak, so one measurement at a time.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    PEAK.store(IN_USE.load(Relaxed), Relaxed);
    let result = work();
    (result, PEAK.load(Relaxed).saturating_sub(IN_USE.load(Relaxed)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_at_once_counts_and_what_stays_does_not() {
        // Larger than whatever other tests do beside this one.
        const MIB: usize = 1 << 20;
        let (kept, peak) = peak_of(|| {
            drop(vec![0u8; 512 * MIB]);
            vec![0u8; 256 * MIB]
        });
        let mib = peak / MIB as u64;
        assert!((200..400).contains(&mib), "{mib} MiB beside {} bytes that stay", kept.len());
    }
}
