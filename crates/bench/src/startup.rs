//! Time from exec until `/ready` answers 200, and resident memory at that moment.

use std::time::Instant;

use anyhow::Result;
use serde_json::{Value, json};

use crate::config::Hop;
use crate::measure::Spread;
use crate::peers::{ENVOY, EVENKEEL, Setup, free_address};

/// One proxy's start-up, over the rounds.
pub struct Startup {
    /// Which proxy.
    pub peer: &'static str,
    /// Milliseconds from exec to ready.
    pub ready_millis: Spread,
    /// Resident MiB when ready.
    pub resident_mib: Spread,
}

impl Startup {
    /// The figures as JSON.
    pub fn json(&self) -> Value {
        let spread = |of: Spread| json!({"median": of.median, "min": of.min, "max": of.max});
        json!({"peer": self.peer, "ready_ms": spread(self.ready_millis), "resident_mib": spread(self.resident_mib)})
    }
}

/// Starts Evenkeel and Envoy in turn, `rounds` times each, from the one-hop bootstrap.
pub fn measure(setup: &Setup, rounds: usize) -> Result<Vec<Startup>> {
    let mut millis = [Vec::new(), Vec::new()];
    let mut mib = [Vec::new(), Vec::new()];
    let upstream = free_address()?;
    for _ in 0..rounds {
        for (index, name) in [EVENKEEL, ENVOY].into_iter().enumerate().filter(|(_, name)| setup.is_wanted(name)) {
            let (listen, admin) = (free_address()?, free_address()?);
            let file = format!("{name}-startup");
            let log = setup.file(&format!("{file}.log"));
            let hop = Hop { id: name, listen, admin, upstream, downstream_tls: None, upstream_tls: None, log };
            let start = Instant::now();
            let mut process = setup.start_proxy(name, &file, &hop)?;
            process.wait_until_ready(admin)?;
            millis[index].push(start.elapsed().as_secs_f64() * 1e3);
            mib[index].push(process.resident_kib()? as f64 / 1024.0);
        }
    }
    let [a, b] = millis;
    let [c, d] = mib;
    let row = |peer, millis: Vec<f64>, mib: Vec<f64>| {
        Some(Startup { peer, ready_millis: Spread::of(millis)?, resident_mib: Spread::of(mib)? })
    };
    Ok([row(EVENKEEL, a, c), row(ENVOY, b, d)].into_iter().flatten().collect())
}
