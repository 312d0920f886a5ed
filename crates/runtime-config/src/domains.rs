//! Index of virtual hosts by domain.

use std::sync::Arc;

use rustc_hash::FxBuildHasher;

use crate::FastMap;

/// DNS names have at most 253 bytes; with a port and brackets, no host that can match a domain is longer than this.
pub const LONGEST_HOST_BYTES: usize = 320;

/// A map from names to values. A growing table uses a persistent map, so that its successor shares all unchanged parts;
/// other tables use a flat one, which is faster to search.
pub trait Names: Default {
    /// The value of a name.
    type Value;
    /// Looks a name up.
    fn find(&self, name: &[u8]) -> Option<&Self::Value>;
    /// Inserts a name; returns its previous value.
    fn put(&mut self, name: Box<[u8]>, value: Self::Value) -> Option<Self::Value>;
    /// Removes a name.
    fn take(&mut self, name: &[u8]);
    /// Whether there are no names.
    fn is_empty(&self) -> bool;
}

impl<V> Names for FastMap<Box<[u8]>, V> {
    type Value = V;

    fn find(&self, name: &[u8]) -> Option<&V> {
        self.get(name)
    }

    fn put(&mut self, name: Box<[u8]>, value: V) -> Option<V> {
        self.insert(name, value)
    }

    fn take(&mut self, name: &[u8]) {
        self.remove(name);
    }

    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}

/// Names in a map whose clones share all unchanged parts.
pub type SharedNames<V> = imbl::GenericHashMap<Arc<[u8]>, V, FxBuildHasher, imbl::shared_ptr::DefaultSharedPtr>;

impl<V: Clone> Names for SharedNames<V> {
    type Value = V;

    fn find(&self, name: &[u8]) -> Option<&V> {
        self.get(name)
    }

    fn put(&mut self, name: Box<[u8]>, value: V) -> Option<V> {
        self.insert(name.into(), value)
    }

    fn take(&mut self, name: &[u8]) {
        self.remove(name);
    }

    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}

/// The domains of a route table, in lower case.
#[derive(Debug)]
pub struct DomainIndex<N: Names = FastMap<Box<[u8]>, usize>> {
    exact: N,
    /// `*suffix` without the star, by length, longest first.
    suffix: Vec<(usize, N)>,
    /// `prefix*` without the star, by length, longest first.
    prefix: Vec<(usize, N)>,
    any: Option<N::Value>,
}

/// Why a domain was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DomainError {
    /// The domain is listed already, by this or another virtual host.
    #[error("the domain is listed twice in this route configuration; each may appear once")]
    Duplicate,
    /// `a*b`, or several stars.
    #[error("a domain may have one \"*\", at its start or its end")]
    Wildcard,
    /// No characters.
    #[error("a domain must not be empty")]
    Empty,
}

impl<N: Names> Default for DomainIndex<N> {
    fn default() -> Self {
        Self { exact: N::default(), suffix: Vec::new(), prefix: Vec::new(), any: None }
    }
}

impl<N: Names<Value: Clone> + Clone> Clone for DomainIndex<N> {
    fn clone(&self) -> Self {
        let Self { exact, suffix, prefix, any } = self;
        Self { exact: exact.clone(), suffix: suffix.clone(), prefix: prefix.clone(), any: any.clone() }
    }
}

impl<N: Names> DomainIndex<N> {
    /// Adds a domain of a virtual host; an existing one is replaced, and that is an error.
    pub fn insert(&mut self, domain: &str, host: N::Value) -> Result<(), DomainError> {
        let domain = domain.to_ascii_lowercase();
        let before = match Form::of(&domain)? {
            Form::Any => self.any.replace(host),
            Form::Suffix(suffix) => of_length(&mut self.suffix, suffix.len()).put(suffix.as_bytes().into(), host),
            Form::Prefix(prefix) => of_length(&mut self.prefix, prefix.len()).put(prefix.as_bytes().into(), host),
            Form::Exact(_) => self.exact.put(domain.into_bytes().into(), host),
        };
        before.map_or(Ok(()), |_| Err(DomainError::Duplicate))
    }

    /// Removes a domain, if `mine` tells that it belongs to the virtual host being removed.
    pub fn remove(&mut self, domain: &str, mine: impl Fn(&N::Value) -> bool) {
        let domain = domain.to_ascii_lowercase();
        let take = |names: &mut N, name: &str| {
            if names.find(name.as_bytes()).is_some_and(&mine) {
                names.take(name.as_bytes());
            }
        };
        match Form::of(&domain) {
            Ok(Form::Any) if self.any.as_ref().is_some_and(&mine) => self.any = None,
            Ok(Form::Suffix(suffix)) => {
                take(of_length(&mut self.suffix, suffix.len()), suffix);
                self.suffix.retain(|(_, names)| !names.is_empty());
            }
            Ok(Form::Prefix(prefix)) => {
                take(of_length(&mut self.prefix, prefix.len()), prefix);
                self.prefix.retain(|(_, names)| !names.is_empty());
            }
            Ok(Form::Exact(name)) => take(&mut self.exact, name),
            Ok(Form::Any) | Err(_) => {}
        }
    }

    /// The virtual host for a host name: exact domain, longest `*suffix`, longest `prefix*`, `*`.
    pub fn find(&self, host: &[u8]) -> Option<&N::Value> {
        if self.exact.is_empty() && self.suffix.is_empty() && self.prefix.is_empty() {
            return self.any.as_ref();
        }
        let mut buffer = [0; LONGEST_HOST_BYTES];
        match lower_case(host, &mut buffer) {
            Some(lower) => self.find_lower(lower),
            None => self.any.as_ref(),
        }
    }

    /// Like `find`, for a lower-case name.
    pub fn find_lower(&self, host: &[u8]) -> Option<&N::Value> {
        let suffix = |length: usize| host.len().checked_sub(length).filter(|rest| *rest > 0).map(|rest| &host[rest..]);
        let prefix = |length: usize| host.get(..length).filter(|_| length < host.len());
        self.exact
            .find(host)
            .or_else(|| self.suffix.iter().find_map(|(length, names)| names.find(suffix(*length)?)))
            .or_else(|| self.prefix.iter().find_map(|(length, names)| names.find(prefix(*length)?)))
            .or(self.any.as_ref())
    }

    /// The virtual host with exactly this domain, in lower case.
    pub fn find_exact(&self, host: &[u8]) -> Option<&N::Value> {
        self.exact.find(host)
    }

    /// The virtual host with the domain `*`.
    pub fn any(&self) -> Option<&N::Value> {
        self.any.as_ref()
    }
}

/// The form of a domain.
enum Form<'d> {
    Any,
    Exact(&'d str),
    Suffix(&'d str),
    Prefix(&'d str),
}

impl<'d> Form<'d> {
    fn of(domain: &'d str) -> Result<Self, DomainError> {
        match domain {
            "" => Err(DomainError::Empty),
            "*" => Ok(Self::Any),
            _ => match (domain.strip_prefix('*'), domain.strip_suffix('*')) {
                _ if domain.matches('*').count() > 1 => Err(DomainError::Wildcard),
                (Some(suffix), _) => Ok(Self::Suffix(suffix)),
                (_, Some(prefix)) => Ok(Self::Prefix(prefix)),
                _ if domain.contains('*') => Err(DomainError::Wildcard),
                _ => Ok(Self::Exact(domain)),
            },
        }
    }
}

/// A host name in lower case; `None` if it is too long.
pub fn lower_case<'b>(host: &[u8], buffer: &'b mut [u8; LONGEST_HOST_BYTES]) -> Option<&'b [u8]> {
    let lower = buffer.get_mut(..host.len())?;
    lower.copy_from_slice(host);
    lower.make_ascii_lowercase();
    Some(lower)
}

/// The map for names of one length.
fn of_length<N: Names>(lengths: &mut Vec<(usize, N)>, length: usize) -> &mut N {
    let at = match lengths.iter().position(|(there, _)| *there == length) {
        Some(at) => at,
        None => {
            let at = lengths.partition_point(|(longer, _)| *longer > length);
            lengths.insert(at, (length, N::default()));
            at
        }
    };
    &mut lengths[at].1
}
