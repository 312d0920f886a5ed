//! From registers to the addresses of a stack, without locks and without allocations: signal handlers and the allocator do it.

use std::cell::UnsafeCell;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use framehop::{FrameAddress, MustNotAllocateDuringUnwind, Unwinder as _};

use crate::modules::Module;
use crate::published::Published;
use crate::regions::Regions;
use crate::registers::Registers;

#[cfg(target_arch = "aarch64")]
use framehop::aarch64::{CacheAarch64 as Cache, UnwinderAarch64 as Unwinder};
#[cfg(target_arch = "x86_64")]
use framehop::x86_64::{CacheX86_64 as Cache, UnwinderX86_64 as Unwinder};

/// The greatest number of frames of a stack; the callers beyond are left out.
pub(crate) const MAX_FRAMES: usize = 96;
/// The number of threads that may unwind at the same time; samples of further ones have the innermost frame only.
const CACHES: usize = 16;

/// The addresses of a stack, from the innermost frame.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stack {
    addresses: [u64; MAX_FRAMES],
    depth: usize,
}

impl Stack {
    pub(crate) const EMPTY: Self = Self { addresses: [0; MAX_FRAMES], depth: 0 };

    pub(crate) fn addresses(&self) -> &[u64] {
        self.addresses.get(..self.depth).unwrap_or_default()
    }

    fn push(&mut self, address: u64) {
        if let Some(place) = self.addresses.get_mut(self.depth) {
            *place = address;
            self.depth += 1;
        }
    }

    fn is_full(&self) -> bool {
        self.depth == MAX_FRAMES
    }
}

/// A cache, for one thread at a time.
struct Slot {
    is_taken: AtomicBool,
    cache: UnsafeCell<Cache<MustNotAllocateDuringUnwind>>,
}

// SAFETY: only the thread that has set `is_taken` uses the cache.
unsafe impl Sync for Slot {}
// SAFETY: a cache is plain data.
unsafe impl Send for Slot {}

/// Everything that unwinding reads.
pub(crate) struct Unwinding {
    unwinder: Unwinder<&'static [u8], MustNotAllocateDuringUnwind>,
    caches: Vec<Slot>,
    regions: Published<Regions>,
}

impl Unwinding {
    pub(crate) fn new(modules: &[Module]) -> io::Result<Self> {
        let mut unwinder = Unwinder::new();
        for module in modules.iter().filter_map(Module::for_unwinding) {
            unwinder.add_module(module);
        }
        let slot = |_| Slot { is_taken: AtomicBool::new(false), cache: UnsafeCell::new(Cache::new_in()) };
        let unwinding = Self { unwinder, caches: (0..CACHES).map(slot).collect(), regions: Published::new() };
        unwinding.refresh()?;
        Ok(unwinding)
    }

    /// Learns the stacks of threads that have started since.
    pub(crate) fn refresh(&self) -> io::Result<()> {
        self.regions.publish(Regions::read()?);
        Ok(())
    }

    /// The stack of this thread at these registers.
    pub(crate) fn stack(&self, registers: Registers, stack: &mut Stack) {
        stack.depth = 0;
        let Registers { instruction, stack: from, unwind } = registers;
        stack.push(instruction);
        let end = self.regions.get().and_then(|regions| regions.end_of_stack(from));
        let free = self.caches.iter().find(|slot| !slot.is_taken.swap(true, Ordering::Acquire));
        let (Some(end), Some(slot)) = (end, free) else {
            free.inspect(|slot| slot.is_taken.store(false, Ordering::Release));
            return;
        };
        let mut read = |address: u64| {
            let is_own = (from..end.saturating_sub(7)).contains(&address) && address.is_multiple_of(8);
            // SAFETY: the address is in the used part of this thread's stack.
            if is_own { Ok(unsafe { (address as *const u64).read() }) } else { Err(()) }
        };
        // SAFETY: this thread has taken the slot.
        let cache = unsafe { &mut *slot.cache.get() };
        let mut frames = self.unwinder.iter_frames(instruction, unwind, cache, &mut read);
        // The first is the instruction.
        let _ = frames.next();
        while !stack.is_full() {
            match frames.next() {
                Ok(Some(FrameAddress::ReturnAddress(address))) => stack.push(address.get() - 1),
                Ok(Some(FrameAddress::InstructionPointer(address))) => stack.push(address),
                // The outermost frame; or code without tables, whose callers are not known.
                Ok(None) | Err(_) => break,
            }
        }
        slot.is_taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn deep(levels: usize, unwinding: &Unwinding, stack: &mut Stack) -> usize {
        if levels == 0 {
            unwinding.stack(Registers::current(), stack);
            return 0;
        }
        deep(levels - 1, unwinding, std::hint::black_box(stack)) + 1
    }

    #[test]
    fn a_stack_has_its_callers_up_to_the_limit() {
        let modules = Module::all();
        let unwinding = Unwinding::new(&modules).expect("regions");
        let check = |levels: usize| {
            let mut stack = Stack::EMPTY;
            deep(levels, &unwinding, &mut stack);
            let in_code = |address: &u64| modules.iter().any(|module| (module.start..module.end).contains(address));
            assert!(stack.addresses().iter().all(in_code));
            stack.addresses().len()
        };
        let (shallow, deeper) = (check(1), check(11));
        assert!(shallow > 3, "{shallow}");
        assert_eq!(deeper - shallow, 10);
        assert_eq!(check(MAX_FRAMES), MAX_FRAMES);
    }
}
