//! A source with one set of resources for all clients.

use std::sync::Arc;

use tokio::sync::watch;
use tonic::{Extensions, Status as GrpcStatus};

use super::{Session, Source, Status};
use crate::ResourceSet;
use crate::pb::envoy::config::core::v3::Node;

/// A [`Source`] that serves the same resources to every client: a control plane for measurements and tests.
#[derive(Debug)]
pub struct Published {
    resources: watch::Receiver<Arc<ResourceSet>>,
    status: watch::Sender<Status>,
}

impl Published {
    /// Serves `set` until another one is sent, and ends all streams when the sender is dropped. The receiver shows the
    /// status of the stream whose client sent a request last.
    pub fn new(set: ResourceSet) -> (Self, watch::Sender<Arc<ResourceSet>>, watch::Receiver<Status>) {
        let (publish, resources) = watch::channel(Arc::new(set));
        let (status, observed) = watch::channel(Status::default());
        (Self { resources, status }, publish, observed)
    }
}

impl Source for Published {
    async fn connect(&self, _: &Node, _: &Extensions) -> Result<Session, GrpcStatus> {
        let status = self.status.clone();
        Ok(Session::new(self.resources.clone()).observed(move |now| _ = status.send(now)))
    }
}
