//! A connection on its way to another process: descriptors, the bytes that were read and not yet passed on, and what is known
//! of it.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use evenkeel_filters::ConnectionInfo;
use evenkeel_runtime_config::view::{ConnectionView, Tlv};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// A connection between two processes.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) packed: Box<PackedConnection>,
    /// The client's socket; the upstream's behind it for a TCP connection.
    pub(crate) fds: Vec<OwnedFd>,
    /// Read from the client and not yet used, and behind it what was read from the upstream.
    pub(crate) bytes: Vec<u8>,
}

/// What is known of a connection that travels.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PackedConnection {
    /// The listener that accepted it, by its configured address.
    pub(crate) listener: SocketAddr,
    /// Its name, where the address says port 0.
    pub(crate) listener_name: Option<String>,
    #[serde(flatten)]
    pub(crate) connection: Facts,
    /// Requests served on it.
    pub(crate) requests: u32,
    /// `http/1.1` where the listener had to find that out; empty where it needed nothing.
    pub(crate) detected: Option<String>,
    /// The rest of a TCP connection; `None`: it speaks HTTP/1 and is between two requests.
    pub(crate) tcp: Option<TcpPart>,
}

/// A [`ConnectionInfo`] between two processes. What TLS adds to one does not travel.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Facts {
    /// The socket's peer.
    pub(crate) direct_remote: SocketAddr,
    /// The client.
    pub(crate) remote: SocketAddr,
    /// What the client dialled.
    pub(crate) local: SocketAddr,
    /// What a PROXY protocol header said besides: types and values.
    #[serde(default)]
    pub(crate) tlvs: Vec<(u8, Vec<u8>)>,
    /// The name in a ClientHello that is passed on.
    #[serde(default)]
    pub(crate) server_name: Option<String>,
    /// How long ago it was accepted, in milliseconds.
    pub(crate) age_ms: u64,
}

/// What else there is to a TCP connection.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TcpPart {
    pub(crate) cluster: Option<String>,
    pub(crate) host: Option<String>,
    pub(crate) upstream_local: Option<SocketAddr>,
    pub(crate) started_at: SystemTime,
    pub(crate) attempts: u32,
    pub(crate) to_upstream: Half,
    pub(crate) to_downstream: Half,
}

/// One direction of a TCP connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Half {
    /// Bytes that were passed on.
    pub(crate) passed: u64,
    /// Bytes that were read and not passed on yet.
    pub(crate) held: usize,
    /// The source has ended.
    pub(crate) ended: bool,
    /// The end was passed on, too.
    pub(crate) closed: bool,
}

impl Facts {
    /// What goes along.
    pub(crate) fn of(info: &ConnectionInfo) -> Self {
        let ConnectionView { direct_remote, remote, local, tlvs, server_name, .. } = &info.view;
        let age = Instant::from_std(info.accepted).elapsed();
        Self {
            direct_remote: *direct_remote,
            remote: *remote,
            local: *local,
            tlvs: tlvs.iter().flat_map(|tlvs| &**tlvs).map(|tlv| (tlv.kind, tlv.value.clone())).collect(),
            server_name: server_name.as_deref().map(str::to_owned),
            age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// The same connection here, where it has this number.
    pub(crate) fn info(&self, id: u64) -> ConnectionInfo {
        let now = Instant::now();
        // One that is older than the clock is as old as the clock.
        let accepted = now.checked_sub(Duration::from_millis(self.age_ms)).unwrap_or(now);
        let mut info = ConnectionInfo::new(id, accepted.into_std(), self.remote, self.local);
        let tlvs: Arc<[Tlv]> =
            self.tlvs.iter().map(|(kind, value)| Tlv { kind: *kind, value: value.clone() }).collect();
        info.view.direct_remote = self.direct_remote;
        info.view.tlvs = Some(tlvs).filter(|tlvs| !tlvs.is_empty());
        info.view.server_name = self.server_name.as_deref().map(Arc::from);
        info
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_the_same_on_the_other_side() {
        let address = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let mut info =
            ConnectionInfo::new(7, Instant::now().into_std(), address("192.0.2.1:1000"), address("192.0.2.9:443"));
        info.view.direct_remote = address("[2001:db8::1]:2000");
        info.view.tlvs = Some([Tlv { kind: 0xea, value: b"vpc".to_vec() }].into());
        info.view.server_name = Some("web.example".into());
        let text = serde_json::to_string(&Facts::of(&info)).expect("JSON");
        let other = serde_json::from_str::<Facts>(&text).expect("the same JSON").info(8);
        let seen = |info: &ConnectionInfo| {
            let ConnectionView { direct_remote, remote, tlvs, local, server_name, tls, .. } = info.view.clone();
            (direct_remote, remote, tlvs, local, server_name, tls)
        };
        assert_eq!((other.id, seen(&other)), (8, seen(&info)));
        let ages = other.accepted.duration_since(info.accepted);
        assert!(ages < Duration::from_secs(60), "{ages:?}");
    }

    /// What an older process does not say.
    #[test]
    fn what_was_not_said_is_not_known() {
        let text = r#"{"direct_remote":"192.0.2.1:1","remote":"192.0.2.1:1","local":"192.0.2.9:80","age_ms":5}"#;
        let info = serde_json::from_str::<Facts>(text).expect("it lacks nothing").info(1);
        assert!(info.view.tlvs.is_none() && info.view.server_name.is_none());
    }
}
