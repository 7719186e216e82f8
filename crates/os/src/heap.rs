//! A heap that counts what each thread holds, for tests of what a peer's packets cost.
//!
//! ```no_run
//! #[global_allocator]
//! static HEAP: os::heap::Counting = os::heap::Counting;
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// What this thread took and did not give back, and the most of it since [`begin`].
    static HELD: Cell<(i64, i64)> = const { Cell::new((0, 0)) };
}

/// The system's heap with an account for each thread. What one thread takes and another gives
/// back is on both accounts.
#[derive(Clone, Copy, Debug)]
pub struct Counting;

fn count(change: i64) {
    // A thread that ends has no account any more.
    let _ = HELD.try_with(|held| {
        let (now, most) = held.get();
        held.set((now + change, most.max(now + change)));
    });
}

// SAFETY: all is the system's allocator's; counting takes no memory, because the account is
// made at compile time and has nothing to drop.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: what the caller promises of `layout`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: what the caller promises of `layout`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: what the caller promises of `at` and `layout`.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: what the caller promises of all three.
        unsafe { System.realloc(at, layout, size) }
    }
}

/// Bytes that this thread holds.
pub fn held() -> i64 {
    HELD.with(|held| held.get().0)
}

/// Forgets what was the most until now.
pub fn begin() {
    HELD.with(|held| held.set((held.get().0, held.get().0)));
}

/// The most bytes that this thread has held since [`begin`].
pub fn most() -> i64 {
    HELD.with(|held| held.get().1)
}
