//! The number of cases that tests try.

/// How many cases, of random or repeated ones, a test tries: `usual` of them, and `all` where `THOROUGH=1` is in the environment
/// (`make thorough`).
pub fn cases(usual: usize, all: usize) -> usize {
    if std::env::var_os("THOROUGH").is_some_and(|value| value == "1") { all } else { usual }
}
