//! The socket between plugin and agent: what is wanted for which Pod, and its network namespace, as an open file, in one direction, a
//! verdict in the other. Both are JSON, and end with the writing half of the connection.

use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

use crate::configuration::PodName;

/// Maximum size of a message, in bytes. A namespace and a name have at most 63 and 253, an error is a sentence.
const MAX_MESSAGE_BYTES: u64 = 4096;
/// How long the plugin waits for the agent, which asks the API server. The runtime tries again.
const PLUGIN_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the agent waits for a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// What the plugin wants for a Pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The Pod.
    #[serde(flatten)]
    pub pod: PodName,
    /// What is wanted. A plugin of an earlier version does not say.
    #[serde(default)]
    pub task: Task,
}

/// What is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Task {
    /// The rules are loaded.
    #[default]
    Load,
    /// It is verified that they are.
    Verify,
}

/// What the agent did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// The rules are loaded, or were found.
    Captured,
    /// The Pod has no sidecar, or captures nothing.
    Skipped,
    /// The Pod must not start, and why.
    Failed(String),
}

/// Asks the agent for something in the network namespace of a Pod.
pub fn ask(socket: &Path, request: &Request, network: &impl AsFd) -> io::Result<Verdict> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PLUGIN_TIMEOUT))?;
    stream.set_write_timeout(Some(PLUGIN_TIMEOUT))?;
    let request = serde_json::to_vec(request)?;
    let descriptors = [network.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut carried = SendAncillaryBuffer::new(&mut space);
    if !carried.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("no room for a descriptor"));
    }
    let sent = sendmsg(&stream, &[IoSlice::new(&request)], &mut carried, SendFlags::NOSIGNAL)?;
    stream.write_all(request.get(sent..).unwrap_or_default())?;
    stream.shutdown(Shutdown::Write)?;
    Ok(serde_json::from_slice(&read_rest(&stream, Vec::new())?)?)
}

/// Reads a request, and the network namespace.
pub(crate) fn receive(stream: &UnixStream) -> io::Result<(Request, OwnedFd)> {
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    let mut first = vec![0; 1024];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut carried = RecvAncillaryBuffer::new(&mut space);
    let length = recvmsg(stream, &mut [IoSliceMut::new(&mut first)], &mut carried, RecvFlags::CMSG_CLOEXEC)?.bytes;
    let mut network = None;
    for message in carried.drain() {
        if let RecvAncillaryMessage::ScmRights(mut received) = message {
            network = received.next();
        }
    }
    first.truncate(length);
    let request = serde_json::from_slice(&read_rest(stream, first)?)?;
    let network = network.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no network namespace came"))?;
    Ok((request, network))
}

/// Writes the answer.
pub(crate) fn answer(mut stream: &UnixStream, verdict: &Verdict) -> io::Result<()> {
    stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
    stream.write_all(&serde_json::to_vec(verdict)?)
}

fn read_rest(stream: &UnixStream, mut read: Vec<u8>) -> io::Result<Vec<u8>> {
    stream.take(MAX_MESSAGE_BYTES).read_to_end(&mut read)?;
    Ok(read)
}
