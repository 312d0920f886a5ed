//! The agent's pages: readiness for kubelet, metrics for Prometheus.

use std::io::{self, BufRead as _, BufReader, Read as _, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use anyhow::Context;

use super::State;

/// How long a client of the page may take.
const PAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum length of a request's first line, in bytes.
const MAX_LINE_BYTES: u64 = 1024;

/// Serves the pages from now on.
pub fn serve(address: SocketAddr, state: Arc<State>) -> anyhow::Result<()> {
    let listener = TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // One at a time: kubelet and Prometheus ask every few seconds.
            if let Err(error) = answer(stream, &state) {
                tracing::debug!(%error, "a request of the page");
            }
        }
    });
    Ok(())
}

fn answer(mut stream: TcpStream, state: &State) -> io::Result<()> {
    stream.set_read_timeout(Some(PAGE_TIMEOUT))?;
    stream.set_write_timeout(Some(PAGE_TIMEOUT))?;
    let mut line = String::new();
    BufReader::new(&stream).take(MAX_LINE_BYTES).read_line(&mut line)?;
    let (status, body) = match line.split(' ').nth(1) {
        Some("/readyz") if state.is_installed.load(Relaxed) => ("200 OK", "ok\n".to_owned()),
        Some("/readyz") => {
            ("503 Service Unavailable", "the plugin is not in the node's network configuration\n".to_owned())
        }
        Some("/metrics") => ("200 OK", metrics(state)),
        _ => ("404 Not Found", "pages: /readyz, /metrics\n".to_owned()),
    };
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}

fn metrics(state: &State) -> String {
    let counts = &state.counts;
    let all = [("captured", &counts.captured), ("skipped", &counts.skipped), ("failed", &counts.failed)];
    let lines =
        all.map(|(result, count)| format!("evenkeel_cni_pods_total{{result=\"{result}\"}} {}\n", count.load(Relaxed)));
    let ready = u8::from(state.is_installed.load(Relaxed));
    let installs = state.installs.load(Relaxed);
    format!(
        "# HELP evenkeel_cni_pods_total Pods that the CNI plugin has asked about.\n# TYPE evenkeel_cni_pods_total counter\n{}\
         # HELP istio_cni_install_ready Whether the plugin is in the node's network configuration.\n\
         # TYPE istio_cni_install_ready gauge\nistio_cni_install_ready {ready}\n\
         # HELP istio_cni_installs_total How often the plugin or its configuration was written: others have changed or removed it.\n\
         # TYPE istio_cni_installs_total counter\nistio_cni_installs_total{{result=\"SUCCESS\"}} {installs}\n{}",
        lines.concat(),
        state.findings.metrics()
    )
}
