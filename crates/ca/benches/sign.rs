//! Measures how many certificates an authority signs per second of CPU: `cargo bench -p evenkeel-ca`.

#![allow(clippy::print_stdout, reason = "a benchmark prints its result")]

use std::fs;
use std::time::{Duration, SystemTime};

use evenkeel_ca::{Authority, DEFAULT_TTL};
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, SanType};

/// Number of different requests that are signed in turn.
const REQUESTS: usize = 64;
/// Number of certificates per round.
const ROUND: usize = 4000;
/// Number of rounds, of which the median is taken.
const ROUNDS: usize = 9;
/// Required number of certificates per second of CPU.
const BAR: f64 = 5000.0;

fn main() {
    let folder = tempfile::tempdir().expect("a directory");
    let now = SystemTime::now();
    let authority = Authority::open(folder.path(), "cluster.local", now).expect("an authority");
    let identity = "spiffe://cluster.local/ns/default/sa/web".parse().expect("an id");
    let requests: Vec<String> = (0..REQUESTS).map(|_| request("spiffe://cluster.local/ns/default/sa/web")).collect();
    let mut rates: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let before = cpu_time();
            for request in requests.iter().cycle().take(ROUND) {
                let issued = authority.sign(request.as_bytes(), &identity, DEFAULT_TTL, now).expect("a certificate");
                assert_eq!(issued.chain.len(), 1);
            }
            ROUND as f64 / (cpu_time() - before).as_secs_f64()
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    let median = rates[ROUNDS / 2];
    let verdict = if median >= BAR { "met" } else { "missed" };
    println!("P-256: {median:.0} certificates per second of CPU (bar {BAR:.0}: {verdict}); rounds {rates:.0?}");
}

fn request(identity: &str) -> String {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.subject_alt_names = vec![SanType::URI(identity.try_into().expect("a name"))];
    params.serialize_request(&key).expect("a request").pem().expect("PEM")
}

/// Returns the CPU time that this thread has used.
fn cpu_time() -> Duration {
    let text = fs::read_to_string("/proc/thread-self/schedstat").expect("the kernel counts");
    let nanoseconds = text.split(' ').next().and_then(|field| field.parse().ok()).expect("a number");
    Duration::from_nanos(nanoseconds)
}
