//! The targets, one for each entry point of `fuzz/fuzz_targets`, and their seeds.

mod h1;
mod h2;
mod jwt;
mod proxy;

/// A target: its name, its function, and inputs to begin with.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Name, as in `cargo fuzz run NAME`.
    pub name: &'static str,
    /// Takes any bytes; panics when a promise is broken.
    pub run: fn(&[u8]),
    /// Inputs that reach deep.
    pub seeds: &'static [&'static [u8]],
    /// Mutations the tests try.
    pub mutations: usize,
}

/// All targets.
pub const ALL: &[Target] = &[
    h1::REQUEST,
    h1::RESPONSE,
    h1::CHUNKED,
    h2::SERVER,
    h2::CLIENT,
    h2::HEADERS,
    jwt::TOKEN,
    jwt::JWKS,
    proxy::PATH,
    proxy::PROXY_PROTOCOL,
    proxy::BOOTSTRAP,
    proxy::XDS,
];

/// Runs a target by its name, for the entry points of `cargo fuzz`.
///
/// # Panics
/// When the target's promise is broken, or there is no such target.
pub fn run(name: &str, data: &[u8]) {
    let target = ALL.iter().find(|target| target.name == name).expect("a target of this name");
    (target.run)(data);
}
