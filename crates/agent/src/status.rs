//! Readiness of the workload, written to `status.json` in the state directory.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use evenkeel_base::files::{Readers, write_atomically};
use evenkeel_process::manager::Manager;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::watch;

use crate::admin;
use crate::certificate::CurrentCertificate;
use crate::dns::Names;

/// File of the status in the state directory.
pub const STATUS_FILE: &str = "status.json";

/// How often readiness is checked while the workload starts, when somebody waits for it.
const POLL_STARTING: Duration = Duration::from_millis(5);
/// Maximum number of checks at that interval: a start that takes longer waits for something outside.
const MAX_STARTING_POLLS: u32 = 400;
/// How often readiness is checked otherwise.
const POLL: Duration = Duration::from_millis(500);

/// The contents of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Whether the workload may start: it has its certificate, DNS answers, and the proxy has its configuration.
    pub ready: bool,
    /// What the workload waits for, when it is not ready.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub waiting_for: Option<String>,
    /// The SPIFFE id of the certificate.
    pub identity: Option<String>,
    /// End of the certificate's validity, RFC 3339.
    pub cert_expiry: Option<String>,
    /// Which proxy runs: `evenkeel`, `envoy` or `none`.
    pub proxy: String,
}

impl Status {
    /// Reads the status an agent wrote to its state directory.
    ///
    /// # Errors
    /// If the file cannot be read; `InvalidData` if an agent did not write it.
    pub fn read(state: &Path) -> io::Result<Self> {
        let text = std::fs::read(state.join(STATUS_FILE))?;
        serde_json::from_slice(&text).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }
}

/// The conditions of readiness.
pub(crate) struct Watcher {
    /// Told whether the workload is ready.
    pub(crate) ready: watch::Sender<bool>,
    pub(crate) state: PathBuf,
    pub(crate) proxy: &'static str,
    /// The proxy's admin port, if there is one.
    pub(crate) admin_port: Option<u16>,
    pub(crate) certificate: watch::Receiver<Option<CurrentCertificate>>,
    /// The DNS proxy's names, if there is one.
    pub(crate) names: Option<Names>,
    /// Notified when the workload is ready for the first time.
    pub(crate) manager: Manager,
}

impl Watcher {
    /// Writes the file whenever its contents change, until the future is dropped.
    pub(crate) async fn run(self: Arc<Self>) {
        let (mut last, mut told) = (None, false);
        let mut starting = MAX_STARTING_POLLS;
        loop {
            let status = self.status().await;
            self.ready.send_if_modified(|ready| std::mem::replace(ready, status.ready) != status.ready);
            if status.ready && !std::mem::replace(&mut told, status.ready) {
                self.manager.ready();
            }
            starting = if status.ready { 0 } else { starting.saturating_sub(1) };
            if last.as_ref() != Some(&status) {
                match write(&self.state, &status) {
                    Ok(()) => last = Some(status),
                    Err(error) => tracing::warn!(%error, "{STATUS_FILE} cannot be written"),
                }
            }
            tokio::time::sleep(if starting > 0 { POLL_STARTING } else { POLL }).await;
        }
    }

    async fn status(&self) -> Status {
        let certificate = self.certificate.borrow().clone();
        let waiting_for = if certificate.is_none() {
            Some("a certificate from the control plane".to_owned())
        } else if self.names.as_ref().is_some_and(|names| names.current().awaits_names()) {
            Some("the DNS names of the mesh".to_owned())
        } else {
            match self.admin_port {
                Some(port) => admin::ready(port).await.err().map(|said| format!("the proxy ({said})")),
                None => None,
            }
        };
        Status {
            ready: waiting_for.is_none(),
            waiting_for,
            identity: certificate.as_ref().map(|current| current.identity.clone()),
            cert_expiry: certificate.and_then(|current| rfc3339(current.not_after)),
            proxy: self.proxy.to_owned(),
        }
    }
}

/// Replaces the file as a whole, so that nobody reads half of it.
fn write(state: &Path, status: &Status) -> io::Result<()> {
    let text = serde_json::to_vec_pretty(status)?;
    write_atomically(&state.join(STATUS_FILE), &text, Readers::All)
}

fn rfc3339(time: SystemTime) -> Option<String> {
    OffsetDateTime::from(time).format(&Rfc3339).ok()
}
