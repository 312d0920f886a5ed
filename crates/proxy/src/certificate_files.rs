//! Reloads certificates that are replaced in place: their files are checked at intervals, off the control thread.

use std::time::{Duration, SystemTime};

use evenkeel_tls::FileChange;

use crate::state::Shared;

/// Interval of checks.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

impl Shared {
    /// Checks the files for the life of the process.
    pub async fn follow_certificate_files(&self) {
        let secrets = self.state.borrow().builder.secrets().clone();
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            let store = secrets.clone();
            let looked = tokio::task::spawn_blocking(move || store.look_at_files(SystemTime::now())).await;
            let news = looked.unwrap_or_default();
            for news in &news {
                match news {
                    FileChange::Replaced { files } => tracing::info!(files, "certificate replaced"),
                    FileChange::Refused { files, reason } => {
                        tracing::error!(files, reason, "the new certificate cannot be used; the one before stays");
                    }
                }
            }
            if !news.is_empty() {
                self.settled.notify_waiters();
            }
        }
    }
}
