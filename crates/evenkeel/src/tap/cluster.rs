//! Reads the proxies of a workload in a cluster together: each by one port-forward that stays open.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use evenkeel_admin::client::{Address, Connection, is_page};
use evenkeel_explain::Caller;
use evenkeel_proxy::tap::TapPage;
use tokio::sync::mpsc::{self, Sender};
use tokio::time::{Instant, sleep, timeout};

use super::TapArguments;
use super::line::Line;
use super::proxy::PERIOD;
use crate::in_cluster::{self, ClusterMesh};

/// Pages that wait to be printed; further ones wait at the proxies.
const MAX_PAGES: usize = 64;
/// Maximum size of a page, in bytes.
const MAX_PAGE_BYTES: usize = 16 << 20;
/// How long a proxy may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long to wait before a proxy that cannot be read is tried again.
const RETRY: Duration = Duration::from_secs(2);

/// What a proxy has said, or why it cannot be read.
type Read = (Arc<str>, anyhow::Result<TapPage>);

/// Prints the requests of all replicas of a workload, each with the replica's name.
pub(super) fn read(
    arguments: &TapArguments,
    mesh: &ClusterMesh,
    workload: &str,
    out: &mut dyn Write,
) -> anyhow::Result<u8> {
    let (name, namespace) = match Caller::parse(workload) {
        Caller::Workload { name, namespace: Some(namespace) } if arguments.namespace.is_none() => {
            (name, Some(namespace))
        }
        _ => (workload.to_owned(), arguments.namespace.clone()),
    };
    let replicas = mesh.replicas(&name, namespace.as_deref())?;
    if replicas.is_empty() {
        bail!("{workload} has no replica");
    }
    let runtime = in_cluster::runtime()?;
    let (sender, mut pages) = mpsc::channel(MAX_PAGES);
    for replica in &replicas {
        let address = mesh.proxy(&replica.namespace, &replica.pod)?;
        let proxy: Arc<str> = format!("{}.{}", replica.pod, replica.namespace).into();
        runtime.spawn(follow(address, proxy, sender.clone()));
    }
    drop(sender);
    let end = arguments.duration.and_then(|duration| Instant::now().checked_add(duration));
    let mut left = arguments.limit.unwrap_or(u64::MAX);
    loop {
        let next = runtime.block_on(async {
            match end {
                Some(end) => tokio::time::timeout_at(end, pages.recv()).await.ok().flatten(),
                None => pages.recv().await,
            }
        });
        // The time is over.
        let Some((proxy, page)) = next else { return Ok(0) };
        let page = match page {
            Ok(page) => page,
            Err(error) => {
                // Nothing can be done if standard error is gone.
                let _ = writeln!(std::io::stderr(), "{proxy}: {error:#}; it is tried again");
                continue;
            }
        };
        for line in arguments.lines(page) {
            let line = Line { proxy: proxy.to_string(), ..line };
            line.print(arguments.output, out)?;
            left -= u64::from(line.is_request());
            if left == 0 {
                out.flush()?;
                return Ok(0);
            }
        }
        out.flush()?;
    }
}

/// Reads a proxy until nobody prints any more. A connection that breaks is opened anew.
async fn follow(address: Address, proxy: Arc<str>, sender: Sender<Read>) {
    // Where to go on; `None`: from now.
    let mut since = None;
    loop {
        let Err(error) = follow_connection(&address, &proxy, &mut since, &sender).await else { return };
        if sender.send((proxy.clone(), Err(error))).await.is_err() {
            return;
        }
        sleep(RETRY).await;
    }
}

/// Reads a proxy by one connection. Ends without an error when nobody prints any more.
async fn follow_connection(
    address: &Address,
    proxy: &Arc<str>,
    since: &mut Option<u64>,
    sender: &Sender<Read>,
) -> anyhow::Result<()> {
    let mut connection = timeout(PATIENCE, Connection::to(address)).await.context("no connection in time")??;
    loop {
        let path = since.map_or_else(|| "/tap".to_owned(), |since| format!("/tap?since={since}"));
        let response =
            timeout(PATIENCE, connection.page(&path, MAX_PAGE_BYTES)).await.context("no answer in time")??;
        if !is_page(&response) {
            bail!("it answers {}", response.status().as_u16());
        }
        let page: TapPage = serde_json::from_slice(response.body())
            .context("it is another version of Evenkeel's proxy, or another proxy")?;
        let is_first = since.replace(page.next).is_none();
        if !is_first && sender.send((proxy.clone(), Ok(page))).await.is_err() {
            return Ok(());
        }
        sleep(PERIOD).await;
    }
}
