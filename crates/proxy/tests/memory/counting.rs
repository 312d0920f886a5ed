//! The size of the heap, counted by the allocator for the whole process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::sync::atomic::{AtomicIsize, Ordering};

/// Connections measured at once; more only take longer.
pub const CONNECTIONS: usize = 400;

/// The system's allocator, and what it has given out and not got back: how many blocks of each size, in steps of
/// [`STEP_BYTES`], the last for all above.
struct Counting;

const STEP_BYTES: usize = 16;
const STEPS: usize = 2049;
static LIVE_BYTES: AtomicIsize = AtomicIsize::new(0);
/// Bytes in blocks of the last kind, which have all sizes.
static LARGE_BYTES: AtomicIsize = AtomicIsize::new(0);
static LIVE: [AtomicIsize; STEPS] = [const { AtomicIsize::new(0) }; STEPS];

fn count(layout: Layout, blocks: isize) {
    let bytes = layout.size().cast_signed() * blocks;
    let kind = layout.size().div_ceil(STEP_BYTES).min(STEPS - 1);
    LIVE[kind].fetch_add(blocks, Ordering::Relaxed);
    LIVE_BYTES.fetch_add(bytes, Ordering::Relaxed);
    if kind == STEPS - 1 {
        LARGE_BYTES.fetch_add(bytes, Ordering::Relaxed);
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout, 1);
        // SAFETY: the caller's promises are those the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(layout, -1);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Bytes on the heap.
pub fn live_bytes() -> isize {
    LIVE_BYTES.load(Ordering::Relaxed)
}

/// Blocks on the heap by size.
pub struct Blocks([isize; STEPS]);

impl Blocks {
    pub fn now() -> Self {
        Self(LIVE.each_ref().map(|blocks| blocks.load(Ordering::Relaxed)))
    }

    /// Sizes in bytes of which there are at least `more` blocks more than there were, and how many more.
    pub fn grown_since(&self, before: &Self, more: usize) -> Vec<(usize, isize)> {
        let grown = self.0.iter().zip(&before.0).enumerate();
        let grown = grown.map(|(index, (now, before))| (index * STEP_BYTES, now - before));
        grown.filter(|(_, growth)| *growth >= more.cast_signed()).collect()
    }
}

/// What one connection keeps.
pub struct Retained {
    /// Blocks: size in bytes, and how many.
    blocks: Vec<(usize, f64)>,
    /// Bytes in blocks too large to be told apart.
    large_bytes: usize,
}

impl Retained {
    /// Opens connections with `open` and counts what they keep. What the first one brings into being for all, such as pooled
    /// blocks and upstream connections, is not counted.
    pub fn measure<C>(open: impl Fn() -> C, settled: impl Fn(usize)) -> Self {
        Self::measure_many(CONNECTIONS, open, settled)
    }

    /// As [`Retained::measure`], with so many connections.
    pub fn measure_many<C>(count: usize, open: impl Fn() -> C, settled: impl Fn(usize)) -> Self {
        let mut clients = Vec::with_capacity(count + 1);
        clients.push(open());
        settled(1);
        let (before, large_before) = (Blocks::now(), LARGE_BYTES.load(Ordering::Relaxed));
        clients.extend((0..count).map(|_| open()));
        settled(count + 1);
        let (after, large) = (Blocks::now(), LARGE_BYTES.load(Ordering::Relaxed) - large_before);
        let per_connection = |index: usize| (after.0[index] - before.0[index]) as f64 / count as f64;
        // Less than one for every other connection is a table that grew, or belongs to something else.
        let kept = (0..STEPS - 1).map(|index| (index * STEP_BYTES, per_connection(index)));
        let blocks = kept.filter(|(_, blocks)| *blocks >= 0.5).collect();
        Self { blocks, large_bytes: large.max(0).cast_unsigned() / count }
    }

    fn bytes(&self) -> usize {
        self.blocks.iter().map(|(size, blocks)| (*size as f64 * blocks) as usize).sum::<usize>() + self.large_bytes
    }

    /// Says what is kept, and fails when it is more than `bar` bytes.
    pub fn check(&self, what: &str, bar: usize) {
        let (bytes, blocks, large) = (self.bytes(), &self.blocks, self.large_bytes);
        _ = writeln!(
            std::io::stderr(),
            "{what}: {bytes} bytes per connection, {bar} at most; blocks (size, count): {blocks:?}, and {large} \
             bytes in larger ones"
        );
        assert!(bytes <= bar, "{what}: {bytes} bytes per connection are more than {bar}: {blocks:?}");
    }
}
