//! The pages below `/debug/pprof/`, as Go's programs have them, wherever a program shows them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::flame_graph::svg;
use crate::pprof::Profile;
use crate::{cpu, heap};

/// Where the pages are.
pub const PREFIX: &str = "/debug/pprof/";
/// The longest recording, in seconds.
pub const MAX_SECONDS: u64 = 120;
/// The length of a recording unless the query has another, in seconds: as in Go.
const USUAL_SECONDS: u64 = 30;

const INDEX: &str = "\
/debug/pprof/profile?seconds=30  where CPU time goes; for `go tool pprof`
/debug/pprof/heap?seconds=30     what is allocated in this time, and what of it is still held at its end; for `go tool pprof`
?format=svg                      a flame graph instead
";

/// An answer to a request.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status of HTTP.
    pub status: u16,
    /// The value of `Content-Type`.
    pub content_type: &'static str,
    /// The content.
    pub body: Vec<u8>,
}

impl Answer {
    fn text(status: u16, text: impl Into<String>) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", body: text.into().into_bytes() }
    }
}

/// Whether there is a recording: one at a time.
static IS_BUSY: AtomicBool = AtomicBool::new(false);

/// The recording of one request; when it ends, in whatever way, the next one can begin.
struct Turn;

impl Turn {
    fn begin() -> Option<Self> {
        (!IS_BUSY.swap(true, Ordering::Acquire)).then_some(Self)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        IS_BUSY.store(false, Ordering::Release);
    }
}

/// The number of seconds in a query.
///
/// # Errors
/// Why there is none.
pub fn seconds(query: &str) -> Result<u64, String> {
    let Some(text) = parameter(query, "seconds") else { return Ok(USUAL_SECONDS) };
    let seconds = text.parse().ok().filter(|seconds| (1..=MAX_SECONDS).contains(seconds));
    seconds.ok_or_else(|| format!("seconds: a whole number from 1 to {MAX_SECONDS}"))
}

fn parameter<'q>(query: &'q str, name: &str) -> Option<&'q str> {
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

/// Answers a request for a page, after its seconds. It takes its thread for so long.
pub fn answer(path: &str, query: &str) -> Answer {
    let record = match path.strip_prefix(PREFIX) {
        Some("") => return Answer::text(200, INDEX),
        Some("profile") => cpu::record,
        Some("heap") => heap::record,
        _ => return Answer::text(404, format!("no such page; there are:\n{INDEX}")),
    };
    let wants_picture = match parameter(query, "format") {
        None | Some("pprof") => false,
        Some("svg") => true,
        Some(_) => return Answer::text(400, "format: pprof or svg\n"),
    };
    let seconds = match seconds(query) {
        Ok(seconds) => seconds,
        Err(reason) => return Answer::text(400, reason + "\n"),
    };
    let Some(turn) = Turn::begin() else {
        return Answer::text(409, "another profile is being recorded; ask again when it is done\n");
    };
    let recorded = record(Duration::from_secs(seconds)).map(Profile::of);
    drop(turn);
    let written = recorded.and_then(|profile| {
        let picture = || svg(&profile, "evenkeel").into_bytes();
        if wants_picture { Ok(picture()) } else { profile.write() }
    });
    match written {
        Ok(body) if wants_picture => Answer { status: 200, content_type: "image/svg+xml", body },
        Ok(body) => Answer { status: 200, content_type: "application/octet-stream", body },
        Err(error) => Answer::text(500, format!("no profile: {error}\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_have_bounds() {
        let check = |path: &str, query: &str, expected: u16| {
            let answer = answer(path, query);
            assert_eq!(answer.status, expected, "{path}?{query}: {}", String::from_utf8_lossy(&answer.body));
        };
        check("/debug/pprof/", "", 200);
        check("/debug/pprof/goroutine", "", 404);
        for seconds in ["0", "121", "x", "-1", "", "1.5"] {
            check("/debug/pprof/profile", &format!("seconds={seconds}"), 400);
        }
        check("/debug/pprof/heap", "seconds=1&format=png", 400);
        assert_eq!([seconds(""), seconds("a=b&seconds=120")], [Ok(30), Ok(120)]);
    }
}
