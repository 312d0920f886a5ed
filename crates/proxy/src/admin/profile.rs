//! `/debug/pprof/…`: records on a thread of its own, since that takes as long as the query says.

use http::{StatusCode, Uri};
use tokio::sync::oneshot;

use super::Reply;

pub(super) async fn page(uri: &Uri) -> Reply {
    let (path, query) = (uri.path().to_owned(), uri.query().unwrap_or_default().to_owned());
    let (done, recorded) = oneshot::channel();
    let thread = std::thread::Builder::new().name("profile".to_owned()).spawn(move || {
        // The client may have disconnected.
        let _ = done.send(evenkeel_profile::answer(&path, &query));
    });
    let failed = |reason: &str| Reply::error(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n"));
    if let Err(error) = thread {
        return failed(&format!("no thread for the profile: {error}"));
    }
    match recorded.await {
        Ok(evenkeel_profile::Answer { status, content_type, body }) => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            Reply { status, content_type, encoding: None, body }
        }
        Err(_) => failed("the profile could not be recorded"),
    }
}
