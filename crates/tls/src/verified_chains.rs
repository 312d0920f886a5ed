//! Caches for certificates of known peers. A workload opens many connections with one certificate: it is parsed once
//! per thread and kept once for all its connections, and the signatures of its chain are checked once while it is
//! valid.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use aws_lc_rs::digest;
use rustls_pki_types::{CertificateDer, UnixTime};

use crate::peer::{PeerCertificate, SanError};

/// Maximum number of certificates in a thread's cache, and of chains in a verifier's; with more, the cache is emptied.
const MAX_KNOWN: usize = 1024;

/// SHA-256 over a chain, certificate by certificate: two chains with one key are the same bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ChainKey([u8; 32]);

impl ChainKey {
    pub(crate) fn of<'c>(chain: impl IntoIterator<Item = &'c CertificateDer<'c>>) -> Self {
        let mut context = digest::Context::new(&digest::SHA256);
        for certificate in chain {
            context.update(&certificate.len().to_be_bytes());
            context.update(certificate);
        }
        let mut key = [0; 32];
        key.copy_from_slice(context.finish().as_ref());
        Self(key)
    }
}

thread_local! {
    static PARSED: RefCell<HashMap<ChainKey, Arc<PeerCertificate>>> = RefCell::default();
}

/// Parses the leaf of a verified chain. Do not call it with an unverified chain, which anybody could use to fill the
/// cache.
pub(crate) fn parse_verified(chain: &[CertificateDer<'_>]) -> Result<Arc<PeerCertificate>, SanError> {
    let key = ChainKey::of(chain);
    if let Some(known) = PARSED.with_borrow(|parsed| parsed.get(&key).cloned()) {
        return Ok(known);
    }
    let certificate = Arc::new(PeerCertificate::parse(chain)?);
    PARSED.with_borrow_mut(|parsed| {
        if parsed.len() >= MAX_KNOWN {
            parsed.clear();
        }
        parsed.insert(key, certificate.clone());
    });
    Ok(certificate)
}

/// Chains that were accepted with one set of roots and names, and the time in which all their certificates are valid. A
/// change of roots or names makes a new verifier with an empty cache.
#[derive(Debug, Default)]
pub(crate) struct VerifiedChains(Mutex<HashMap<ChainKey, Validity>>);

/// Seconds since 1970, both included.
#[derive(Debug, Clone, Copy)]
struct Validity {
    from: u64,
    until: u64,
}

impl VerifiedChains {
    /// Whether the chain was accepted before and is valid at `now`.
    pub(crate) fn holds(&self, key: &ChainKey, now: UnixTime) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(key).is_some_and(|validity| (validity.from..=validity.until).contains(&now.as_secs()))
    }

    /// Remembers a chain that was accepted at `now`.
    pub(crate) fn insert<'c>(
        &self,
        key: ChainKey,
        chain: impl IntoIterator<Item = &'c CertificateDer<'c>>,
        now: UnixTime,
    ) {
        // The validity begins at the time of the check, even if the certificates say earlier.
        let mut validity = Validity { from: now.as_secs(), until: u64::MAX };
        for certificate in chain {
            let Ok((from, until)) = PeerCertificate::validity(certificate) else { return };
            validity = Validity { from: validity.from.max(from), until: validity.until.min(until) };
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(key, validity);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn certificate(days: std::ops::Range<i64>) -> CertificateDer<'static> {
        let day = |days: i64| time::OffsetDateTime::UNIX_EPOCH + time::Duration::days(days);
        let mut params = rcgen::CertificateParams::new(vec!["a.example".to_owned()]).expect("a name");
        (params.not_before, params.not_after) = (day(days.start), day(days.end));
        let key = rcgen::KeyPair::generate().expect("a key");
        params.self_signed(&key).expect("a certificate").der().clone()
    }

    fn at(day: u64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(day * 86_400))
    }

    #[test]
    fn a_chain_is_known_while_all_of_it_is_valid_and_not_before_it_was_checked() {
        let chain = [certificate(10..30), certificate(0..20)];
        let key = ChainKey::of(&chain);
        let known = VerifiedChains::default();
        assert!(!known.holds(&key, at(15)));
        known.insert(key, &chain, at(12));
        for (day, expected) in [(9, false), (11, false), (12, true), (20, true), (21, false)] {
            assert_eq!(known.holds(&key, at(day)), expected, "day {day}");
        }
        assert!(!known.holds(&ChainKey::of(&chain[..1]), at(15)), "another chain");
    }

    #[test]
    fn a_certificate_is_held_once() {
        let (one, other) = ([certificate(0..10)], [certificate(0..10)]);
        let parse = |chain| parse_verified(chain).expect("a certificate");
        assert!(Arc::ptr_eq(&parse(&one), &parse(&one)));
        assert!(!Arc::ptr_eq(&parse(&one), &parse(&other)));
        assert_ne!(ChainKey::of(&one), ChainKey::of(&other));
    }
}
