//! Certificates that the built-in authority signs per second of CPU time: it parses the request, verifies its signature, and signs.
//! No network and no file takes part.

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result};
use evenkeel_ca::authority::Authority;
use evenkeel_measure::metric::{Metric, Values};
use evenkeel_measure::rounds::{Contest, Findings};
use evenkeel_process::resources::cpu_time;
use rcgen::{CertificateParams, KeyPair, SanType};

use super::{Context, Scenario};
use crate::peers::EVENKEEL;

/// Keys as workloads have them by default.
pub const CASE: &str = "ECDSA P-256";

/// Lifetime of the certificates.
const TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// Certificates between two looks at the clock.
const AT_ONCE: u32 = 100;

/// The scenario.
pub const SCENARIO: Scenario = Scenario { name: "signing", title: "Signing of certificates", bases: &[], run };

fn run(cx: &mut Context<'_>, findings: &mut Findings) -> Result<()> {
    let state = tempfile::tempdir().context("a directory for the authority")?;
    let now = SystemTime::now();
    let authority = Authority::open(state.path(), "cluster.local", now)?;
    let name = "spiffe://cluster.local/ns/default/sa/web";
    let identity = name.parse()?;
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI(name.try_into()?)];
    let request = params.serialize_request(&KeyPair::generate()?)?;
    for round in 0..cx.plan.rounds {
        writeln!(cx.progress, "{}, round {} of {}", SCENARIO.name, round + 1, cx.plan.rounds)?;
        let (begin, before, mut signed) = (Instant::now(), cpu_time(std::process::id())?, 0_u32);
        while begin.elapsed() < cx.plan.time {
            for _ in 0..AT_ONCE {
                authority.sign(request.der(), &identity, TTL, now)?;
            }
            signed += AT_ONCE;
        }
        let spent = cpu_time(std::process::id())?.saturating_sub(before);
        let rate = f64::from(signed) / spent.as_secs_f64();
        let contest = Contest { scenario: SCENARIO.name, case: CASE, peers: vec![EVENKEEL] };
        findings.add(&contest, 0, round, Values::from([(Metric::CertificatesPerCpuSecond, rate)]));
    }
    Ok(())
}
