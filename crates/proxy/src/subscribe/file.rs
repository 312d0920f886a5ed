//! Resources from a file (`path_config_source`): read at the start, and again when the file is replaced or changed.

use std::os::unix::fs::MetadataExt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_xds::client::{Client, ClientResponse, Protocol, ResponseError};
use evenkeel_xds::json::read_text;
use evenkeel_xds::pb::envoy::config::core::v3::Node;
use evenkeel_xds::pb::envoy::service::discovery::v3::{DiscoveryResponse, Resource};
use evenkeel_xds::{Any, ResourceType, Schema};
use prost::{Message, Name};
use tokio::time::MissedTickBehavior;

use super::key::StreamKey;
use super::subscriptions::StreamSubscriptions;
use crate::state::Shared;

/// Maximum size of such a file, in bytes; that of a bootstrap.
const MAX_FILE_BYTES: u64 = 64 * 1024 * 1024;
/// Interval of checks.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// The task that follows a file.
pub(super) struct File {
    pub key: StreamKey,
    pub kind: ResourceType,
    pub path: Arc<str>,
    pub wanted: Rc<StreamSubscriptions>,
    pub shared: Shared,
}

/// What shows that a file was replaced or changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    bytes: u64,
    changed_s: i64,
    changed_ns: i64,
}

/// Why a file is not used.
#[derive(Debug, thiserror::Error)]
enum FileError {
    #[error("cannot read {0}: {1}")]
    Unreadable(Arc<str>, std::io::Error),
    #[error("{0} has {1} bytes, more than {MAX_FILE_BYTES}")]
    TooLong(Arc<str>, u64),
    #[error("{0}: the name of a file with resources ends in .yaml, .yml, .json or .pb")]
    Format(Arc<str>),
    #[error("{0}: no DiscoveryResponse: {1}")]
    Binary(Arc<str>, prost::DecodeError),
    #[error("{0}")]
    Invalid(String),
    #[error(transparent)]
    Response(#[from] ResponseError),
}

impl File {
    pub async fn run(self) {
        let mut client = Client::new(Protocol::Sotw, Node::default());
        client.on_connect();
        let mut looks = tokio::time::interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seen = None;
        loop {
            tokio::select! {
                _ = looks.tick() => {}
                changed = self.wanted.changed() => {
                    if changed.is_err() {
                        self.shared.state.borrow_mut().streams.remove(&self.key);
                        return;
                    }
                    // What was not asked for before may be in the same file.
                    seen = None;
                }
            }
            self.wanted.tell(&mut client);
            // A file gets no requests.
            while client.poll_request().is_some() {}
            if let Err(error) = self.look(&mut client, &mut seen).await {
                self.report(&error);
            }
        }
    }

    /// Applies the file if it is another one than the one seen before.
    async fn look(&self, client: &mut Client, seen: &mut Option<Identity>) -> Result<(), FileError> {
        let (path, known) = (self.path.clone(), *seen);
        let look = tokio::task::spawn_blocking(move || read_if_changed(&path, known));
        let Ok(content) = look.await else { return Ok(()) };
        let Some(Content { identity, bytes }) = content? else { return Ok(()) };
        *seen = Some(identity);
        let response = DiscoveryResponse { type_url: self.kind.type_url().to_owned(), ..parse(&self.path, &bytes)? };
        let mut update = client.on_response(ClientResponse::Sotw(response))?;
        update.added.retain(|received| self.wanted.wants(self.kind, &received.name));
        let source = self.key.source();
        let rejected = self.shared.state.borrow_mut().apply(&source, &update);
        self.shared.settle();
        client.answer(&update, &rejected);
        self.shared.state.borrow_mut().stream_connected(&self.key);
        tracing::info!(source = %self.key, resources = update.added.len(), refused = rejected.len(), "file read");
        Ok(())
    }

    /// Says once why a file is not used; what was read of it before stays.
    fn report(&self, error: &FileError) {
        let mut state = self.shared.state.borrow_mut();
        let text = error.to_string();
        let is_known = state.streams.get(&self.key).and_then(|stream| stream.last_error.as_ref()) == Some(&text);
        if !is_known {
            tracing::warn!(source = %self.key, "{text}; what was read before stays");
        }
        state.stream_failed(&self.key, text);
    }
}

struct Content {
    identity: Identity,
    bytes: Vec<u8>,
}

/// Reads a file unless it is the known one.
fn read_if_changed(path: &Arc<str>, known: Option<Identity>) -> Result<Option<Content>, FileError> {
    let unreadable = |error| FileError::Unreadable(path.clone(), error);
    let metadata = std::fs::metadata(&**path).map_err(unreadable)?;
    let identity = Identity {
        device: metadata.dev(),
        inode: metadata.ino(),
        bytes: metadata.len(),
        changed_s: metadata.ctime(),
        changed_ns: metadata.ctime_nsec(),
    };
    if known == Some(identity) {
        return Ok(None);
    }
    if metadata.len() > MAX_FILE_BYTES {
        return Err(FileError::TooLong(path.clone(), metadata.len()));
    }
    let bytes = std::fs::read(&**path).map_err(unreadable)?;
    Ok(Some(Content { identity, bytes }))
}

/// Reads a `DiscoveryResponse`; as in Envoy the ending of the name says in which format it is.
fn parse(path: &Arc<str>, bytes: &[u8]) -> Result<DiscoveryResponse, FileError> {
    let mut response = match path.rsplit_once('.').map(|(_, ending)| ending) {
        Some("pb") => DiscoveryResponse::decode(bytes).map_err(|error| FileError::Binary(path.clone(), error))?,
        Some("yaml" | "yml" | "json") => {
            let text = String::from_utf8_lossy(bytes);
            let read = read_text::<DiscoveryResponse>(&Schema::acquire(), path, &text);
            match read.message {
                Some(message) if !read.diagnostics.has_errors() => message,
                _ => return Err(FileError::Invalid(read.diagnostics.to_string())),
            }
        }
        _ => return Err(FileError::Format(path.clone())),
    };
    response.resources = response.resources.into_iter().map(unwrapped).collect();
    Ok(response)
}

/// The resource in a wrapper with a name and a version.
fn unwrapped(any: Any) -> Any {
    if any.type_url != Resource::type_url() {
        return any;
    }
    Resource::decode(&*any.value).ok().and_then(|wrapper| wrapper.resource).unwrap_or(any)
}
