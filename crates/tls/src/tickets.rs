//! Session tickets (RFC 5077, RFC 8446 section 4.6.1). Their keys can be handed to a process that takes over from this
//! one, so that it can resume the sessions.
//!
//! The process has a few random secrets, which rotate. The key that seals a TLS context's tickets is derived from the
//! newest secret and from all settings about the context's peers, so a ticket is useless with any other context.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::{digest, hmac, rand};
use rustls::server::ProducesTickets;

use crate::identity::Identity;
use crate::trust::TrustBundle;

/// How long a secret seals new tickets; it opens them for twice as long.
const SECRET_LIFETIME: Duration = Duration::from_secs(6 * 60 * 60);
/// Number of secrets kept: the current one and the one before it, of this process and of one it took over from.
const MAX_SECRETS: usize = 3;
const SECRET_BYTES: usize = 32;
/// Bytes of a ticket that name its secret.
const NAME_BYTES: usize = 16;

/// The secrets, newest first.
static SECRETS: Mutex<Vec<Secret>> = Mutex::new(Vec::new());

#[derive(Clone)]
struct Secret {
    bytes: [u8; SECRET_BYTES],
    since: Instant,
}

impl Secret {
    fn new(bytes: [u8; SECRET_BYTES]) -> Self {
        Self { bytes, since: Instant::now() }
    }

    fn random() -> Option<Self> {
        let mut bytes = [0; SECRET_BYTES];
        rand::fill(&mut bytes).ok()?;
        Some(Self::new(bytes))
    }

    /// A name for the secret, which reveals nothing about it.
    fn name(&self) -> [u8; NAME_BYTES] {
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &self.bytes), b"ticket secret name");
        tag.as_ref().first_chunk().copied().unwrap_or_default()
    }

    /// The key of a context.
    fn key(&self, context: &[u8]) -> Option<RandomizedNonceKey> {
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &self.bytes), context);
        RandomizedNonceKey::new(&AES_256_GCM, tag.as_ref()).ok()
    }
}

/// Secrets that still open tickets, newest first; the first seals new ones.
fn secrets() -> Vec<Secret> {
    let mut secrets = SECRETS.lock().unwrap_or_else(PoisonError::into_inner);
    if secrets.first().is_none_or(|newest| newest.since.elapsed() >= SECRET_LIFETIME)
        && let Some(new) = Secret::random()
    {
        secrets.insert(0, new);
    }
    secrets.retain(|secret| secret.since.elapsed() < SECRET_LIFETIME * 2);
    secrets.truncate(MAX_SECRETS);
    secrets.clone()
}

/// The secrets, for a process that takes over. Whoever has them can read recorded tickets, so they must only go over a
/// private socket.
pub fn export() -> Vec<Vec<u8>> {
    secrets().iter().map(|secret| secret.bytes.to_vec()).collect()
}

/// Adds the secrets of the previous process. They open its tickets; new tickets are sealed with this process's own
/// secrets.
pub fn import(exported: &[Vec<u8>]) {
    let own = secrets();
    let mut secrets = SECRETS.lock().unwrap_or_else(PoisonError::into_inner);
    for bytes in exported.iter().filter_map(|bytes| <[u8; SECRET_BYTES]>::try_from(bytes.as_slice()).ok()) {
        if secrets.len() < MAX_SECRETS && !own.iter().any(|known| known.bytes == bytes) {
            secrets.push(Secret::new(bytes));
        }
    }
}

/// Seals and opens the tickets of one TLS context.
pub(crate) struct Tickets {
    context: digest::Digest,
}

impl Tickets {
    /// `rest` has all other settings that decide who may resume: a session must not outlive the rules by which its peer
    /// was accepted.
    pub(crate) fn new(identity: &Identity, trust: Option<&TrustBundle>, rest: &str) -> Self {
        let mut context = digest::Context::new(&digest::SHA256);
        // Each part is preceded by its length, so that two different contexts never give the same input.
        let mut add = |part: &[u8]| {
            context.update(&part.len().to_be_bytes());
            context.update(part);
        };
        identity.certified_key().cert.iter().for_each(|certificate| add(certificate));
        add(b"roots");
        for root in trust.iter().flat_map(|trust| trust.roots().roots.clone()) {
            add(&root.subject);
            add(&root.subject_public_key_info);
        }
        for (domain, roots) in trust.iter().filter_map(|trust| trust.domains()).flatten() {
            add(b"trust domain");
            add(domain.as_bytes());
            for root in &roots.roots {
                add(&root.subject);
                add(&root.subject_public_key_info);
            }
        }
        add(b"revocation lists");
        trust.and_then(TrustBundle::revocation).iter().flat_map(|of| of.encoded()).for_each(|list| add(list));
        add(rest.as_bytes());
        Self { context: context.finish() }
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        u32::try_from(SECRET_LIFETIME.as_secs() * 2).unwrap_or(u32::MAX)
    }

    /// Name of the secret, nonce, sealed state.
    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let secret = secrets().into_iter().next()?;
        let (name, key) = (secret.name(), secret.key(self.context.as_ref())?);
        let mut sealed = plain.to_vec();
        let nonce = key.seal_in_place_append_tag(Aad::from(&name), &mut sealed).ok()?;
        Some([&name[..], nonce.as_ref(), &sealed].concat())
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let (name, rest) = ticket.split_first_chunk::<NAME_BYTES>()?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>()?;
        let secret = secrets().into_iter().find(|secret| secret.name() == *name)?;
        let mut sealed = sealed.to_vec();
        let key = secret.key(self.context.as_ref())?;
        let plain = key.open_in_place(Nonce::from(nonce), Aad::from(name), &mut sealed).ok()?.len();
        sealed.truncate(plain);
        Some(sealed)
    }
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tickets")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tickets(context: &[u8]) -> Tickets {
        Tickets { context: digest::digest(&digest::SHA256, context) }
    }

    #[test]
    fn only_the_context_that_sealed_a_ticket_opens_it() {
        let ticket = tickets(b"one").encrypt(b"session").expect("sealed");
        assert_eq!(tickets(b"one").decrypt(&ticket).as_deref(), Some(&b"session"[..]));
        assert_eq!(tickets(b"other").decrypt(&ticket), None);
        for at in 0..ticket.len() {
            let mut damaged = ticket.clone();
            damaged[at] ^= 1;
            assert_eq!(tickets(b"one").decrypt(&damaged), None, "byte {at}");
            assert_eq!(tickets(b"one").decrypt(&ticket[..at]), None, "{at} bytes");
        }
    }

    #[test]
    fn tickets_of_the_process_before_are_opened() {
        let before = Secret::random().expect("random bytes");
        let (name, key) = (before.name(), before.key(tickets(b"c").context.as_ref()).expect("a key"));
        let mut sealed = b"session".to_vec();
        let nonce = key.seal_in_place_append_tag(Aad::from(&name), &mut sealed).expect("sealed");
        let ticket = [&name[..], nonce.as_ref(), &sealed].concat();
        assert_eq!(tickets(b"c").decrypt(&ticket), None);
        import(&[before.bytes.to_vec(), b"short".to_vec()]);
        assert_eq!(tickets(b"c").decrypt(&ticket).as_deref(), Some(&b"session"[..]));
        assert!(export().contains(&before.bytes.to_vec()) && export().len() <= MAX_SECRETS);
    }
}
