//! Reads the pages of every proxy once a second, while somebody looks.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evenkeel_filters::edges::Edges;
use futures_util::StreamExt as _;
use futures_util::stream;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::collector::{Collector, Pages, Reading};
use crate::node::{Inventory, NodeKey};
use crate::security;
use crate::source::{ProxyRole, ReplicaStatus, Source};
use crate::traffic;

/// Time from one reading of all proxies to the next, at least.
const PERIOD: Duration = Duration::from_secs(1);
/// Proxies that are read at a time.
const AT_A_TIME: usize = 8;
/// Reading goes on for this long after somebody has looked.
const ATTENTION: Duration = Duration::from_secs(15);
/// How long a page waits for the first reading.
const FIRST_READING: Duration = Duration::from_secs(2);

/// The collector, and who looks at it.
#[derive(Debug)]
pub(crate) struct Watched {
    collector: Mutex<Collector>,
    looked: watch::Sender<Option<Instant>>,
    read: watch::Sender<Option<Instant>>,
}

impl Default for Watched {
    fn default() -> Self {
        Self {
            collector: Mutex::new(Collector::default()),
            looked: watch::Sender::new(None),
            read: watch::Sender::new(None),
        }
    }
}

impl Watched {
    /// Uses what was collected. Begins to collect if nobody has looked lately, and then waits for the first reading, for a while.
    pub(crate) async fn look<T>(&self, use_it: impl FnOnce(&Collector) -> T) -> T {
        let now = Instant::now();
        self.looked.send_replace(Some(now));
        let mut read = self.read.subscribe();
        let is_recent = |at: &Option<Instant>| at.is_some_and(|at| now.saturating_duration_since(at) < ATTENTION);
        // The pages that can be shown without it say so.
        let _ = tokio::time::timeout(FIRST_READING, read.wait_for(is_recent)).await;
        use_it(&self.collector.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the proxies for as long as somebody looks, until aborted.
    pub(crate) async fn keep_reading(&self, source: Arc<dyn Source>) {
        let mut looked = self.looked.subscribe();
        loop {
            let is_looking = |at: &Option<Instant>| at.is_some_and(|at| at.elapsed() < ATTENTION);
            if looked.wait_for(is_looking).await.is_err() {
                return;
            }
            let next = Instant::now() + PERIOD;
            self.read_all(&source).await;
            tokio::time::sleep_until(next).await;
        }
    }

    async fn read_all(&self, source: &Arc<dyn Source>) {
        // Readings begin at least a second apart, so each has a second of its own.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let inventory = Inventory::new(source.replicas());
        let with_proxies = inventory.replicas.iter().filter(|replica| replica.proxy != ProxyRole::None);
        let pending: Vec<_> = with_proxies
            .map(|replica| async {
                let pages = read(&**source, replica, &inventory).await;
                Reading { replica: replica.key.clone(), pages }
            })
            .collect();
        let readings: Vec<Reading> = stream::iter(pending).buffer_unordered(AT_A_TIME).collect().await;
        self.collector.lock().unwrap_or_else(PoisonError::into_inner).add(inventory, readings, now_ms);
        self.read.send_replace(Some(Instant::now()));
    }
}

async fn read(source: &dyn Source, replica: &ReplicaStatus, inventory: &Inventory) -> Result<Pages, String> {
    let metrics = source.proxy_page(&replica.key, traffic::PAGE).await?;
    let edges = source.proxy_page(&replica.key, security::PAGE).await;
    let other = "it reports no edges, as a stock Envoy: what is known of its calls is what the other sides report";
    let edges: Edges = serde_json::from_slice(&edges.map_err(|error| format!("{error}: {other}"))?)
        .map_err(|error| format!("{error}: {other}"))?;
    let is_gateway = replica.proxy == ProxyRole::Gateway;
    Ok(Pages {
        traffic: traffic::report(&String::from_utf8_lossy(&metrics), &NodeKey::of(replica), is_gateway),
        edges: security::report(edges, replica, inventory),
    })
}
