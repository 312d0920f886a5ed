//! Which of the compressors of a chain compresses a response, by the client's `accept-encoding` (RFC 9110 section 12.5.3).

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use evenkeel_runtime_config::compression::Coding;
use evenkeel_runtime_config::compressor::Compressor;

use super::tokens;

const IDENTITY: &[u8] = b"identity";
const ANY: &[u8] = b"*";

/// The compressors that a request has met, and their common choice.
#[derive(Debug, Default)]
pub struct Encodings {
    met: RefCell<Vec<(Arc<Compressor>, Coding)>>,
    chosen: Cell<Option<Choice>>,
}

/// What `accept-encoding` leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// This coding, which it names.
    Named(Coding),
    /// The first one's, since it takes any.
    Any(Coding),
    /// No compression, which it prefers.
    Identity,
    /// No compression: it takes none of those that there are.
    Invalid,
}

impl Choice {
    /// The coding of the response.
    pub(crate) fn coding(self) -> Option<Coding> {
        match self {
            Self::Named(coding) | Self::Any(coding) => Some(coding),
            Self::Identity | Self::Invalid => None,
        }
    }
}

impl Encodings {
    /// Adds a compressor, which uses this coding for the request's route.
    pub(crate) fn meet(&self, compressor: &Arc<Compressor>, coding: Coding) {
        self.met.borrow_mut().push((Arc::clone(compressor), coding));
    }

    /// The choice, which the first compressor that asks makes for all of them.
    pub(crate) fn choice(&self, accepted: &[u8], content_type: Option<&[u8]>) -> Choice {
        if let Some(chosen) = self.chosen.get() {
            return chosen;
        }
        let met = self.met.borrow();
        let mut able: Vec<(Coding, bool)> = Vec::new();
        for (compressor, coding) in &*met {
            let takes = content_type.is_none_or(|kind| kind.is_empty() || compressor.responses.bodies.takes(kind));
            if takes && !able.iter().any(|(known, _)| known == coding) {
                able.push((*coding, compressor.choose_first));
            }
        }
        let chosen = choose(accepted, &able);
        self.chosen.set(Some(chosen));
        chosen
    }
}

/// `able`: the codings that there are, in order, each with whether the client's order decides if it likes several alike.
fn choose(accepted: &[u8], able: &[(Coding, bool)]) -> Choice {
    let wishes: Vec<(&[u8], f32)> = tokens(accepted).filter_map(wish).collect();
    let refused = |coding: Coding| wishes.iter().any(|(name, q)| *q == 0.0 && *name == coding.token().as_bytes());
    let able: Vec<_> = able.iter().copied().filter(|(coding, _)| !refused(*coding)).collect();
    if wishes.is_empty() || able.is_empty() {
        return Choice::Invalid;
    }
    let find = |name: &[u8]| able.iter().find(|(coding, _)| coding.token().as_bytes() == name).copied();
    let mut best: (&[u8], f32) = (IDENTITY, 0.0);
    for (name, q) in wishes {
        let known = find(name);
        let first = known.is_some_and(|(_, first)| first);
        if (known.is_some() || name == IDENTITY || name == ANY) && (q > best.1 || (q == best.1 && first)) {
            best = (name, q);
        }
    }
    match best {
        (_, 0.0) => Choice::Invalid,
        (IDENTITY, _) => Choice::Identity,
        (ANY, _) => able.first().map_or(Choice::Invalid, |(coding, _)| Choice::Any(*coding)),
        (name, _) => find(name).map_or(Choice::Invalid, |(coding, _)| Choice::Named(coding)),
    }
}

/// One element of the list: a coding and how much it is liked; `None`: the number is none.
fn wish(element: &[u8]) -> Option<(&[u8], f32)> {
    let (name, parameters) = match element.iter().position(|byte| *byte == b';') {
        None => return Some((element, 1.0)),
        Some(at) => element.split_at(at),
    };
    let name = name.trim_ascii_end();
    let Some(at) = parameters.iter().position(|byte| *byte == b'=') else { return Some((name, 1.0)) };
    let (key, value) = parameters.split_at(at);
    if !key.trim_ascii_start().strip_prefix(b";").is_some_and(|key| key.trim_ascii().eq_ignore_ascii_case(b"q")) {
        return Some((name, 1.0));
    }
    let value = std::str::from_utf8(value.strip_prefix(b"=")?).ok()?.trim();
    let q: f32 = value.parse().ok().filter(|q: &f32| q.is_finite())?;
    Some((name, q))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_decides_by_its_numbers_and_then_by_order() {
        use Coding::{Brotli, Gzip, Zstd};
        let (one, three) = ([(Gzip, false)], [(Gzip, false), (Brotli, false), (Zstd, false)]);
        let keen = [(Gzip, true), (Brotli, true)];
        for (accepted, able, expected) in [
            ("gzip", &one[..], Choice::Named(Gzip)),
            ("deflate, gzip;q=0.5", &one, Choice::Named(Gzip)),
            ("gzip;q=0", &one, Choice::Invalid),
            ("gzip;q=0, *", &one, Choice::Invalid),
            ("*;q=0, gzip", &one, Choice::Named(Gzip)),
            ("identity, gzip;q=0.9", &one, Choice::Identity),
            ("identity;q=0.5, gzip;q=0.9", &one, Choice::Named(Gzip)),
            ("*", &one, Choice::Any(Gzip)),
            ("deflate, br", &one, Choice::Invalid),
            ("", &one, Choice::Invalid),
            ("gzip;q=x", &one, Choice::Invalid),
            ("gzip;q=nan", &one, Choice::Invalid),
            ("gzip ; Q = 0.3 , br ;q=0.4", &three, Choice::Named(Brotli)),
            ("gzip, br, zstd", &three, Choice::Named(Gzip)),
            ("zstd, br", &three, Choice::Named(Zstd)),
            ("*", &three, Choice::Any(Gzip)),
            ("gzip;q=0, *", &three, Choice::Any(Brotli)),
            // Each of them wants to be the first: the last one named is.
            ("gzip, br", &keen, Choice::Named(Brotli)),
            ("gzip", &[], Choice::Invalid),
        ] {
            assert_eq!(choose(accepted.as_bytes(), able), expected, "{accepted}");
        }
    }
}
