//! The admin interface's socket, which is passed on in a hot restart.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use evenkeel_base::files::{Readers, write_atomically};
use tokio::task::AbortHandle;

use super::error::RunError;
use crate::admin::{self, Admin};
use crate::options::Settings;

/// The admin interface's socket. It is served only while this process is the active one.
pub(super) struct AdminPort {
    /// The configured address.
    address: SocketAddr,
    socket: std::net::TcpListener,
    admin: Rc<Admin>,
    serving: Cell<Option<AbortHandle>>,
}

impl AdminPort {
    /// Uses the predecessor's socket if its address is the same, or else binds a new one.
    pub(super) async fn bind(
        address: SocketAddr,
        handed: Option<(SocketAddr, OwnedFd)>,
        admin: Admin,
    ) -> Result<Self, RunError> {
        let failed = |error| RunError::Admin { address, error };
        let socket = match handed {
            Some((theirs, socket)) if theirs == address => std::net::TcpListener::from(socket),
            _ => admin::bind(address).await.and_then(tokio::net::TcpListener::into_std).map_err(failed)?,
        };
        socket.set_nonblocking(true).map_err(failed)?;
        Ok(Self { address, socket, admin: Rc::new(admin), serving: Cell::new(None) })
    }

    /// Starts answering, and publishes the address.
    pub(super) fn open(&self, settings: &Settings) -> Result<(), RunError> {
        let failed = |error| RunError::Admin { address: self.address, error };
        let bound = self.socket.local_addr().map_err(failed)?;
        self.admin.own.set_admin(bound);
        self.serve().map_err(failed)?;
        if let Some(path) = &settings.admin_address_path {
            let text = bound.to_string();
            write_atomically(path, text.as_bytes(), Readers::All)
                .map_err(|error| RunError::Write { path: path.clone(), error })?;
        }
        tracing::info!(address = %bound, "admin interface");
        if !bound.ip().to_canonical().is_loopback() {
            tracing::warn!(
                address = %bound,
                "the admin interface is not on loopback: whoever reaches it can read the configuration and recent requests"
            );
        }
        Ok(())
    }

    pub(super) fn serve(&self) -> io::Result<()> {
        let listener = tokio::net::TcpListener::from_std(self.socket.try_clone()?)?;
        let task = tokio::task::spawn_local(admin::serve(listener, self.admin.clone()));
        self.serving.set(Some(task.abort_handle()));
        Ok(())
    }

    /// Stops accepting; requests in flight are still answered.
    pub(super) fn close(&self) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
        }
    }

    /// A duplicate of the socket, for a successor.
    pub(super) fn copy(&self) -> Option<(SocketAddr, OwnedFd)> {
        Some((self.address, self.socket.try_clone().ok()?.into()))
    }
}
