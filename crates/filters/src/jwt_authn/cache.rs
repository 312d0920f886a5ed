//! The verified tokens that a worker keeps for a provider, so that a known token costs a look-up.
//!
//! There are two generations. Tokens are added to the young one; when it is full, it becomes the old one, and the former old
//! one is dropped. A token found in the old generation moves to the young one. So used tokens stay, without an order to
//! maintain.

use std::collections::HashMap;
use std::rc::Rc;

use evenkeel_runtime_config::jwt_authn::TokenCache;

use super::accepted::Accepted;

/// Kept for a provider without `jwt_cache_config`: tokens per worker, and bytes of a token.
const DEFAULT: TokenCache = TokenCache { tokens: 1_000, token_bytes: 4096 };

/// The verified tokens of one provider.
#[derive(Debug)]
pub(super) struct Cache {
    limits: TokenCache,
    young: HashMap<Box<[u8]>, Rc<Accepted>>,
    old: HashMap<Box<[u8]>, Rc<Accepted>>,
}

impl Cache {
    pub(super) fn new(limits: Option<TokenCache>) -> Self {
        Self { limits: limits.unwrap_or(DEFAULT), young: HashMap::new(), old: HashMap::new() }
    }

    pub(super) fn get(&mut self, token: &[u8]) -> Option<Rc<Accepted>> {
        if let Some(known) = self.young.get(token) {
            return Some(Rc::clone(known));
        }
        let (token, known) = self.old.remove_entry(token)?;
        self.put(token, Rc::clone(&known));
        Some(known)
    }

    pub(super) fn insert(&mut self, token: &[u8], accepted: &Rc<Accepted>) {
        if token.len() <= self.limits.token_bytes {
            self.put(token.into(), Rc::clone(accepted));
        }
    }

    pub(super) fn remove(&mut self, token: &[u8]) {
        self.young.remove(token);
        self.old.remove(token);
    }

    fn put(&mut self, token: Box<[u8]>, accepted: Rc<Accepted>) {
        if self.young.len() >= self.limits.tokens.div_ceil(2) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(token, accepted);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_jwt::Times;

    use super::*;

    fn accepted() -> Rc<Accepted> {
        Rc::new(Accepted {
            provider: 0,
            issuer: "me".into(),
            subject: "".into(),
            audiences: Vec::new(),
            times: Times::default(),
            keys: None,
            headers: Vec::new(),
            metadata: None,
        })
    }

    #[test]
    fn keeps_what_is_used_and_never_more_than_its_limit() {
        let mut cache = Cache::new(Some(TokenCache { tokens: 10, token_bytes: 8 }));
        let token = |number: usize| format!("t{number}").into_bytes();
        cache.insert(&token(0), &accepted());
        for number in 1..1_000 {
            cache.insert(&token(number), &accepted());
            assert!(cache.get(&token(0)).is_some(), "{number}: used each time");
            assert!(cache.len() <= 10, "{}", cache.len());
        }
        assert!(cache.get(&token(1)).is_none() && cache.get(&token(999)).is_some());
        cache.remove(&token(999));
        assert!(cache.get(&token(999)).is_none());
        cache.insert(b"more than 8 bytes", &accepted());
        assert!(cache.get(b"more than 8 bytes").is_none());
    }
}
