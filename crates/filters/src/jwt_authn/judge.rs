//! Evaluates a requirement for a request.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_http::RequestHead;
use evenkeel_jwt::{Audiences, Jwks, Status, Token};
use evenkeel_runtime_config::dynamic_metadata::FilterMetadata;
use evenkeel_runtime_config::jwt_authn::{JwtAuthn, Lenience, Locations, Provider, Requirement};

use super::accepted::{Accepted, failed};
use super::cache::Cache;
use super::places::{self, Found, MAX_TOKENS, Place};

/// Keys of a provider, as far as they are known.
pub(super) enum Keys {
    /// These.
    Known(Arc<Jwks>),
    /// They could not be fetched.
    Failed(Status),
    /// They have to be fetched first.
    Coming,
}

/// The keys of provider `.0` have to be fetched before the request can be judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Missing(pub(super) usize);

/// Evaluates a requirement. Effects on the request are immediate, in the order of the requirements, as in Envoy.
pub(super) struct Judge<'j> {
    pub(super) bench: JudgeContext<'j>,
    pub(super) head: &'j mut RequestHead,
    /// Dynamic metadata to set, whatever the result.
    pub(super) metadata: Vec<Arc<FilterMetadata>>,
    /// The route has to be selected again.
    pub(super) reroute: bool,
    /// The last token that was accepted.
    pub(super) last: Option<Rc<Accepted>>,
}

/// A token that was accepted, and where it was.
type Good<'p> = (Rc<Accepted>, Place<'p>);

impl<'j> Judge<'j> {
    /// Removes what clients send in headers that providers fill.
    pub(super) fn sanitize(&mut self, names: &[Box<str>]) {
        names.iter().for_each(|name| self.head.headers.remove_spellings(name.as_bytes()));
    }

    pub(super) fn requirement(&mut self, requirement: &'j Requirement) -> Result<Status, Missing> {
        match requirement {
            Requirement::Nothing => Ok(Status::Ok),
            Requirement::Provider { provider, audiences, locations } => {
                self.provider(*provider, audiences.as_ref(), locations)
            }
            Requirement::Lenient { lenience, locations } => self.lenient(lenience, locations),
            Requirement::Any { children, lenience } => self.any(children, lenience.as_ref()),
            Requirement::All(children) => {
                for child in children {
                    match self.requirement(child)? {
                        Status::Ok => {}
                        status => return Ok(status),
                    }
                }
                Ok(Status::Ok)
            }
        }
    }

    /// All tokens in the provider's places have to be valid: a program may use any of them.
    fn provider(
        &mut self,
        index: usize,
        audiences: Option<&Audiences>,
        locations: &'j Locations,
    ) -> Result<Status, Missing> {
        self.sanitize(&locations.filled);
        let found = places::tokens(locations, self.head);
        let mut status = match found.len() {
            0 => Status::Missed,
            1..=MAX_TOKENS => Status::Ok,
            _ => Status::MultipleTokens,
        };
        let mut good: Vec<Good<'j>> = Vec::with_capacity(found.len().min(MAX_TOKENS));
        let mut tokens = found.iter().rev();
        while status == Status::Ok
            && let Some(token) = tokens.next()
        {
            match self.bench.known_provider(index, audiences, token)? {
                Ok(accepted) => good.push((accepted, token.place)),
                Err(bad) => status = bad,
            }
        }
        if status == Status::Ok {
            good.into_iter().for_each(|(accepted, place)| self.accept(accepted, place));
        } else if status != Status::Missed {
            let provider = self.bench.config.providers.get(index);
            self.metadata.extend(provider.and_then(|provider| failed(provider, status)));
        }
        Ok(status)
    }

    /// Tokens of any provider, wherever one may have them.
    fn lenient(&mut self, lenience: &Lenience, locations: &'j Locations) -> Result<Status, Missing> {
        self.sanitize(&locations.filled);
        if let Lenience::ExtractOnly(header) = lenience {
            return Ok(self.extract(header.as_deref(), locations));
        }
        let found = places::tokens(locations, self.head);
        let takes_bad = *lenience == Lenience::MissingOrFailed;
        if found.len() > MAX_TOKENS {
            return Ok(if takes_bad { Status::Ok } else { Status::MultipleTokens });
        }
        let mut good: Vec<Good<'j>> = Vec::new();
        for token in found.iter().rev() {
            match self.bench.any_provider(token)? {
                Ok(accepted) => good.push((accepted, token.place)),
                Err((bad, provider)) => {
                    self.metadata.extend(provider.and_then(|provider| failed(provider, bad)));
                    // One that is bad decides; the others need not be verified.
                    if !takes_bad {
                        return Ok(bad);
                    }
                }
            }
        }
        for (accepted, place) in good {
            // Of several tokens the last counts, as in the metadata.
            accepted.headers.iter().for_each(|(name, _)| self.head.headers.remove_name(name.as_bytes()));
            self.accept(accepted, place);
        }
        Ok(Status::Ok)
    }

    /// Reads tokens without verifying them, and says so in a header.
    fn extract(&mut self, header: Option<&str>, locations: &'j Locations) -> Status {
        if let Some(name) = header {
            self.head.headers.remove_spellings(name.as_bytes());
        }
        let found = places::tokens(locations, self.head);
        let any = !found.is_empty();
        let config = self.bench.config;
        let read = |found: &Found<'_, 'j>| {
            let token = Token::parse(&found.text).ok()?;
            let accepted = Accepted::new(by_issuer(config, token.issuer())?, &token, None);
            Some((Rc::new(accepted), found.place))
        };
        let good: Vec<Good<'j>> = found.iter().rev().take(MAX_TOKENS).filter_map(read).collect();
        good.into_iter().for_each(|(accepted, place)| self.accept(accepted, place));
        if any && let Some(name) = header {
            self.head.headers.set_name(name.as_bytes(), b"false");
        }
        Status::Ok
    }

    fn any(&mut self, children: &'j [Requirement], lenience: Option<&Lenience>) -> Result<Status, Missing> {
        // As in Envoy: an error of a token takes precedence over an unknown issuer, and that over a missing token.
        let mut all = Status::Missed;
        for child in children {
            match self.requirement(child)? {
                Status::Ok => return Ok(Status::Ok),
                status if !matches!(status, Status::Missed | Status::UnknownIssuer) || all == Status::Missed => {
                    all = status;
                }
                _ => {}
            }
        }
        Ok(match (lenience, all) {
            (Some(Lenience::MissingOrFailed), _) | (Some(Lenience::Missing), Status::Missed) => Status::Ok,
            (_, status) => status,
        })
    }

    /// Applies a valid token's effects to the request.
    fn accept(&mut self, accepted: Rc<Accepted>, place: Place<'_>) {
        let Some(provider) = self.bench.config.providers.get(accepted.provider) else { return };
        for (name, value) in &accepted.headers {
            self.head.headers.append(name.as_bytes(), value);
        }
        if !provider.forward {
            places::remove(place, self.head);
        }
        self.metadata.extend(accepted.metadata.clone());
        self.reroute |= provider.clear_route_cache;
        self.last = Some(accepted);
    }
}

/// The inputs to judge tokens by.
pub(super) struct JudgeContext<'j> {
    pub(super) config: &'j JwtAuthn,
    /// Verified tokens, by the index of their provider.
    pub(super) caches: &'j [RefCell<Cache>],
    /// The keys of a provider, by its index.
    pub(super) keys: &'j dyn Fn(usize) -> Keys,
    /// Whether these are the keys of a provider, by its index. Asked for every known token, so it copies no reference:
    /// all workers share the keys.
    pub(super) are_current: &'j dyn Fn(usize, &Arc<Jwks>) -> bool,
    /// Seconds since 1970.
    pub(super) now: u64,
    /// How many more keys may be tried for the request's tokens.
    pub(super) tries: usize,
    /// Tokens found in a cache.
    pub(super) hits: u64,
    /// Tokens looked for in a cache in vain.
    pub(super) misses: u64,
}

impl<'j> JudgeContext<'j> {
    /// Judges a token by a provider.
    fn known_provider(
        &mut self,
        index: usize,
        audiences: Option<&Audiences>,
        found: &Found<'_, '_>,
    ) -> Result<Result<Rc<Accepted>, Status>, Missing> {
        let Some((provider, cache)) = self.config.providers.get(index).zip(self.caches.get(index)) else {
            return Ok(Err(Status::NoValidKeys));
        };
        let audiences = audiences.unwrap_or(&provider.audiences);
        let known = cache.borrow_mut().get(&found.text);
        if let Some(known) =
            known.filter(|known| known.keys.as_ref().is_some_and(|keys| (self.are_current)(index, keys)))
        {
            self.hits += 1;
            let status = self.judge_known(provider, audiences, &known, found);
            if status == Status::Expired {
                cache.borrow_mut().remove(&found.text);
            }
            return Ok(if status == Status::Ok { Ok(known) } else { Err(status) });
        }
        self.misses += 1;
        let token = match Token::parse(&found.text) {
            Ok(token) => token,
            Err(bad) => return Ok(Err(bad)),
        };
        if !found.issuers.allow(token.issuer()) {
            return Ok(Err(Status::UnknownIssuer));
        }
        let judged = self.judge((index, provider), audiences, &token)?;
        if let Ok(accepted) = &judged {
            cache.borrow_mut().insert(&found.text, accepted);
        }
        Ok(judged)
    }

    /// Judges a token by the provider of its issuer, which is returned with an error.
    #[allow(clippy::type_complexity)]
    fn any_provider(
        &mut self,
        found: &Found<'_, '_>,
    ) -> Result<Result<Rc<Accepted>, (Status, Option<&'j Provider>)>, Missing> {
        let token = match Token::parse(&found.text) {
            Ok(token) => token,
            Err(bad) => return Ok(Err((bad, None))),
        };
        let provider = by_issuer(self.config, token.issuer()).filter(|_| found.issuers.allow(token.issuer()));
        let Some((index, provider)) = provider else { return Ok(Err((Status::UnknownIssuer, None))) };
        // Most tokens are known: their signatures are not verified again.
        let judged = self.known_provider(index, None, found)?;
        Ok(judged.map_err(|bad| (bad, Some(provider))))
    }

    /// Checks what may have changed since a token was verified, or depends on where it was found.
    fn judge_known(
        &self,
        provider: &Provider,
        audiences: &Audiences,
        known: &Accepted,
        found: &Found<'_, '_>,
    ) -> Status {
        if !found.issuers.allow(&known.issuer) {
            return Status::UnknownIssuer;
        }
        if let Err(bad) = known.times.check(self.now, provider.clock_skew_seconds) {
            return bad;
        }
        if audiences.allow(known.audiences.iter().map(|audience| &**audience)) {
            Status::Ok
        } else {
            Status::AudienceNotAllowed
        }
    }

    fn judge(
        &mut self,
        (index, provider): (usize, &Provider),
        audiences: &Audiences,
        token: &Token<'_>,
    ) -> Result<Result<Rc<Accepted>, Status>, Missing> {
        if let Err(bad) = token.times.check(self.now, provider.clock_skew_seconds) {
            return Ok(Err(bad));
        }
        if !audiences.allow(token.audiences()) {
            return Ok(Err(Status::AudienceNotAllowed));
        }
        let subject = provider.subjects.as_ref().is_none_or(|subjects| subjects.matches(token.subject().as_bytes()));
        if !subject || !self.lifetime_is_allowed(provider, token.times.expires) {
            return Ok(Err(Status::VerificationFail));
        }
        let keys = match (self.keys)(index) {
            Keys::Known(keys) => keys,
            Keys::Failed(status) => return Ok(Err(status)),
            Keys::Coming => return Err(Missing(index)),
        };
        let verified = keys.verify_within(token, &mut self.tries);
        Ok(verified.map(|()| Rc::new(Accepted::new((index, provider), token, Some(keys)))))
    }

    fn lifetime_is_allowed(&self, provider: &Provider, expires: Option<u64>) -> bool {
        match (provider.lifetime, expires) {
            (None, _) | (Some(None), Some(_)) => true,
            (Some(_), None) => false,
            (Some(Some(longest)), Some(expires)) => expires.saturating_sub(self.now) < longest.as_secs().max(1),
        }
    }
}

/// The first provider of an issuer, by name, or else the first one for any issuer.
fn by_issuer<'c>(config: &'c JwtAuthn, issuer: &str) -> Option<(usize, &'c Provider)> {
    let mut all = config.providers.iter().enumerate().map(|(index, provider)| (index, &**provider));
    let of = |wanted: &str, (_, provider): &(usize, &Provider)| *provider.issuer == *wanted;
    all.clone().find(|entry| of(issuer, entry)).or_else(|| all.find(|entry| of("", entry)))
}
