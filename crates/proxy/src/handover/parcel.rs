//! A connection being handed to another process: its descriptors, the bytes read but not yet passed on, and its
//! metadata.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use evenkeel_filters::ConnectionInfo;
use evenkeel_runtime_config::proxy_protocol::Tlv;
use evenkeel_runtime_config::view::ConnectionView;
use evenkeel_upstream::turn;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// A connection handed from one process to another.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) packed: Box<PackedConnection>,
    /// The client's socket; for a TCP connection, followed by the upstream's.
    pub(crate) fds: Vec<OwnedFd>,
    /// Bytes read from the client and not yet used, followed by those read from the upstream.
    pub(crate) bytes: Vec<u8>,
}

/// The listener of a socket that is handed over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PackedListener {
    /// Its configured address; and its name, if that has port 0.
    Address(SocketAddr, Option<String>),
    /// The path of its Unix socket.
    Pipe(String),
    /// The configured address of a UDP listener; and its name, if that has port 0.
    Datagram(SocketAddr, Option<String>),
}

/// Metadata of a connection that is handed over.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PackedConnection {
    /// The listener that accepted it.
    pub(crate) listener: PackedListener,
    #[serde(flatten)]
    pub(crate) connection: Facts,
    /// Number of requests served on it.
    pub(crate) requests: u32,
    /// `http/1.1` where the listener had to detect the protocol; empty where it needed no detection.
    pub(crate) detected: Option<String>,
    /// Proxy state of a TCP connection; `None` for an HTTP/1 connection between two requests.
    pub(crate) tcp: Option<TcpPart>,
}

/// The transferable part of a [`ConnectionInfo`]. What TLS adds to it is not transferred.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Facts {
    /// The socket's peer.
    pub(crate) direct_remote: SocketAddr,
    /// The client's address.
    pub(crate) remote: SocketAddr,
    /// The address the client connected to.
    pub(crate) local: SocketAddr,
    /// The socket's own address; older processes do not send it.
    #[serde(default)]
    pub(crate) direct_local: Option<SocketAddr>,
    /// The TLVs of a PROXY protocol header: types and values.
    #[serde(default)]
    pub(crate) tlvs: Vec<(u8, Vec<u8>)>,
    /// Server name from a ClientHello that is passed through.
    #[serde(default)]
    pub(crate) server_name: Option<String>,
    /// How long ago it was accepted, in milliseconds.
    pub(crate) age_ms: u64,
}

/// State of a TCP connection beyond that of any connection.
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
    /// Bytes passed on.
    pub(crate) passed: u64,
    /// Bytes read and not yet passed on.
    pub(crate) held: usize,
    /// The source has sent its end of stream.
    pub(crate) ended: bool,
    /// The end of stream was passed on.
    pub(crate) closed: bool,
}

impl Facts {
    /// The transferable part of `info`.
    pub(crate) fn of(info: &ConnectionInfo) -> Self {
        let ConnectionView { direct_remote, remote, local, tlvs, server_name, .. } = &info.view;
        let age = turn::now().saturating_duration_since(Instant::from_std(info.accepted));
        Self {
            direct_remote: *direct_remote,
            remote: *remote,
            local: *local,
            direct_local: Some(info.direct_local),
            tlvs: tlvs.iter().flat_map(|tlvs| &**tlvs).map(|tlv| (tlv.kind, tlv.value.clone())).collect(),
            server_name: server_name.as_deref().map(str::to_owned),
            age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// The same connection in this process, under the id given to it here.
    pub(crate) fn info(&self, id: u64) -> ConnectionInfo {
        let now = turn::now();
        // `Instant` may not reach back far enough; then the connection counts as new.
        let accepted = now.checked_sub(Duration::from_millis(self.age_ms)).unwrap_or(now);
        let mut info = ConnectionInfo::new(id, accepted.into_std(), self.remote, self.local);
        let tlvs: Arc<[Tlv]> =
            self.tlvs.iter().map(|(kind, value)| Tlv { kind: *kind, value: value.clone() }).collect();
        info.view.direct_remote = self.direct_remote;
        info.direct_local = self.direct_local.unwrap_or(self.local);
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
        info.direct_local = address("192.0.2.8:15006");
        info.view.tlvs = Some([Tlv { kind: 0xea, value: b"vpc".to_vec() }].into());
        info.view.server_name = Some("web.example".into());
        let text = serde_json::to_string(&Facts::of(&info)).expect("JSON");
        let other = serde_json::from_str::<Facts>(&text).expect("the same JSON").info(8);
        let seen = |info: &ConnectionInfo| {
            let ConnectionView { direct_remote, remote, tlvs, local, server_name, tls, .. } = info.view.clone();
            (direct_remote, remote, tlvs, local, server_name, tls)
        };
        assert_eq!((other.id, seen(&other), other.direct_local), (8, seen(&info), info.direct_local));
        let ages = other.accepted.duration_since(info.accepted);
        assert!(ages < Duration::from_secs(60), "{ages:?}");
    }

    /// Fields that an older process does not send.
    #[test]
    fn what_was_not_said_is_not_known() {
        let text = r#"{"direct_remote":"192.0.2.1:1","remote":"192.0.2.1:1","local":"192.0.2.9:80","age_ms":5}"#;
        let info = serde_json::from_str::<Facts>(text).expect("it lacks nothing").info(1);
        assert!(info.view.tlvs.is_none() && info.view.server_name.is_none());
    }
}
