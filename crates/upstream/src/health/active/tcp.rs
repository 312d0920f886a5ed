//! `TcpHealthCheck`: a connection can be made and, if configured, the expected bytes come back.

use evenkeel_runtime_config::health_check::TcpProbe;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Check, CheckTarget, MAX_RESPONSE_BYTES, Verdict, holds_in_order};
use crate::alpn::WantedProtocol;
use crate::stream::Stream;

/// Checks one host.
pub(super) struct Prober {
    probe: TcpProbe,
    kept: Option<Stream>,
}

impl Check for Prober {
    type Probe = TcpProbe;

    fn wanted(_: &Self::Probe) -> WantedProtocol {
        WantedProtocol::Bytes
    }

    fn new(probe: Self::Probe) -> Self {
        Self { probe, kept: None }
    }

    async fn check(&mut self, target: &CheckTarget) -> Verdict {
        // With nothing to send, only a new connection shows whether the host still accepts any.
        let reusable = target.reuse_connection && !self.probe.send.is_empty();
        let kept = self.kept.take().filter(|_| reusable);
        let mut stream = match kept {
            Some(stream) => stream,
            None => match target.connect().await {
                Ok(stream) => stream,
                Err(_) => return Verdict::NetworkFailure,
            },
        };
        if !self.probe.send.is_empty() && stream.write_all(&self.probe.send).await.is_err() {
            return Verdict::NetworkFailure;
        }
        let mut received = Vec::new();
        while !holds_in_order(&received, &self.probe.receive) {
            match stream.read_buf(&mut received).await {
                Ok(read) if read > 0 && received.len() <= MAX_RESPONSE_BYTES => {}
                _ => return Verdict::NetworkFailure,
            }
        }
        self.kept = Some(stream).filter(|_| reusable);
        Verdict::Healthy { degraded: false }
    }
}
