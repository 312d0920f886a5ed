//! The allocator: small and fast, and it returns memory; a sidecar stands beside every replica.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

unsafe extern "C" {
    /// Returns free memory of the calling thread's heap to the system (mimalloc's documentation, "Extended Functions").
    safe fn mi_collect(force: bool);
}

/// Lets the proxy ask for memory to be returned when it runs short.
pub(crate) fn register() {
    evenkeel_proxy::memory::set_collector(|| mi_collect(true));
}
