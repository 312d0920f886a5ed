//! Session affinity: the hash that a route's policies compute for a request, and the cookies that they set.

use std::borrow::Cow;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};

use evenkeel_base::re2::Regex;
use evenkeel_http::{Headers, RequestHead};
use evenkeel_runtime_config::cookie::{Cookie, find};
use evenkeel_runtime_config::hash::xxhash64;
use evenkeel_runtime_config::hash_policy::{HashPolicy, HashSource};
use evenkeel_runtime_config::metadata::MetadataMatch;
use evenkeel_runtime_config::route::{ForwardAction, WeightedCluster};
use evenkeel_runtime_config::view::ConnectionView;
use evenkeel_upstream::{Cluster, Target};

use super::request::Request;

/// The session affinity of a request.
pub(super) struct Affinity<'c> {
    hash: Option<u64>,
    metadata_match: Option<&'c MetadataMatch>,
    cookies: NewCookies,
}

impl<'c> Affinity<'c> {
    /// Looks at the request as the client sent it, before the route edits it. The hash is computed only for clusters that balance by hash,
    /// so that no other sets cookies.
    pub fn new(
        action: &ForwardAction,
        leg: &'c WeightedCluster,
        cluster: &Cluster,
        request: &Request,
        view: &ConnectionView,
    ) -> Self {
        let mut affinity = Self { hash: None, metadata_match: leg.metadata_match.as_ref(), cookies: Vec::new() };
        let config = cluster.config();
        if config.load_balancer.follows_hash() {
            let own = config.hash_policies.as_slice();
            let policies = if own.is_empty() { action.hash_policies.as_slice() } else { own };
            let client = request.stream.client.unwrap_or(view.remote).ip();
            let peers = Peers { client, remote: view.direct_remote, local: view.local };
            affinity.hash = hash(policies, &request.head, peers, &mut affinity.cookies);
        }
        affinity
    }

    /// The criteria by which a host is picked.
    pub fn target(&self) -> Target<'c> {
        Target { hash: self.hash, metadata_match: self.metadata_match, ..Target::default() }
    }

    /// Sets the client's new cookies.
    pub fn edit_response(&self, headers: &mut Headers) {
        self.cookies.iter().for_each(|cookie| headers.append(b"set-cookie", cookie.as_bytes()));
    }
}

/// Cookies that policies gave the client, as `set-cookie` values.
type NewCookies = Vec<String>;

/// The addresses of a request's connection.
#[derive(Debug, Clone, Copy)]
struct Peers {
    /// The client, as `x-forwarded-for` or the socket says.
    client: IpAddr,
    /// The ends of the connection. Cookies are made from them, so that concurrent requests on one connection get the same.
    remote: SocketAddr,
    local: SocketAddr,
}

/// The hash of a request, `None` when no policy applies. Cookies for its client are added to `cookies`.
fn hash(policies: &[HashPolicy], head: &RequestHead, peers: Peers, cookies: &mut NewCookies) -> Option<u64> {
    let mut hash: Option<u64> = None;
    for policy in policies {
        let new = match &policy.source {
            HashSource::Header { name, rewrite } => header_hash(head, name, rewrite.as_ref()),
            HashSource::Cookie(cookie) => cookie_hash(head, cookie, peers, cookies),
            HashSource::SourceIp => Some(address_hash(peers.client)),
            HashSource::QueryParameter(name) => query_parameter(head.path(), name).map(|value| xxhash64(value, 0)),
        };
        if let Some(new) = new {
            // Rotated, so that two policies that see the same value do not cancel each other out.
            hash = Some(hash.map_or(0, |before| before.rotate_left(1)) ^ new);
        }
        if policy.terminal && hash.is_some() {
            break;
        }
    }
    hash
}

/// The hash of a client's address.
pub(crate) fn address_hash(address: IpAddr) -> u64 {
    let mut text = [0; LONGEST_ADDRESS];
    let mut rest = text.as_mut_slice();
    // The longest address fits.
    _ = write!(rest, "{address}");
    let length = LONGEST_ADDRESS - rest.len();
    xxhash64(&text[..length], 0)
}

/// Length of the longest IPv6 address, one that ends in an IPv4 address, in bytes.
const LONGEST_ADDRESS: usize = 45;

type Rewrite = (Regex, Box<str>);

/// The hash of all values of the header, independent of their order.
fn header_hash(head: &RequestHead, name: &str, rewrite: Option<&Rewrite>) -> Option<u64> {
    let rewritten = |value| xxhash64(&rewritten(value, rewrite), 0);
    match name {
        ":authority" => return Some(rewritten(head.authority())),
        ":method" => return Some(rewritten(head.method())),
        ":path" => return Some(rewritten(head.path())),
        _ => {}
    }
    let mut values = head.headers.find_all(name.as_bytes());
    let first = values.next()?;
    let Some(second) = values.next() else { return Some(rewritten(first)) };
    let all = [first, second].into_iter().chain(values);
    let mut all: Vec<_> = all.map(|value| self::rewritten(value, rewrite)).collect();
    all.sort_unstable();
    Some(all.iter().fold(0, |seed, value| xxhash64(value, seed)))
}

fn rewritten<'v>(value: &'v [u8], rewrite: Option<&Rewrite>) -> Cow<'v, [u8]> {
    match rewrite {
        None => Cow::Borrowed(value),
        Some((pattern, substitution)) => pattern.replace_all(value, substitution.as_bytes()),
    }
}

fn cookie_hash(head: &RequestHead, cookie: &Cookie, peers: Peers, cookies: &mut NewCookies) -> Option<u64> {
    match find(head.headers.find_all(b"cookie"), &cookie.name) {
        Some(value) if !value.is_empty() => return Some(xxhash64(value, 0)),
        _ => cookie.ttl_seconds?,
    };
    let ends = format!("{}{}", peers.remote, peers.local);
    let value = format!("{:016x}", xxhash64(ends.as_bytes(), 0));
    cookies.push(cookie.set(&value));
    Some(xxhash64(value.as_bytes(), 0))
}

/// The first value of a query parameter, as it is written in the path.
fn query_parameter<'p>(path: &'p [u8], name: &str) -> Option<&'p [u8]> {
    let path = path.split(|byte| *byte == b'#').next()?;
    let start = path.iter().position(|byte| *byte == b'?')? + 1;
    path.get(start..)?.split(|byte| *byte == b'&').find_map(|pair| {
        let equals = pair.iter().position(|byte| *byte == b'=').unwrap_or(pair.len());
        let (own, value) = pair.split_at(equals);
        (own == name.as_bytes()).then(|| value.get(1..).unwrap_or_default())
    })
}

#[cfg(test)]
mod tests {
    use evenkeel_runtime_config::hash_policy::HashSource as Source;

    use super::*;

    fn head(path: &str, headers: &[(&str, &str)]) -> RequestHead {
        let mut head = RequestHead::default();
        head.set_path(path.as_bytes());
        head.set_authority(b"a.test");
        headers.iter().for_each(|(name, value)| head.headers.append(name.as_bytes(), value.as_bytes()));
        head
    }

    fn peers() -> Peers {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        Peers { client: [192, 0, 2, 1].into(), remote: at(1000), local: at(80) }
    }

    fn hash_of(policies: Vec<(Source, bool)>, head: &RequestHead) -> (Option<u64>, NewCookies) {
        let policies: Vec<_> = policies.into_iter().map(|(source, terminal)| HashPolicy { source, terminal }).collect();
        let mut cookies = Vec::new();
        (hash(&policies, head, peers(), &mut cookies), cookies)
    }

    fn header(name: &str) -> Source {
        Source::Header { name: name.into(), rewrite: None }
    }

    fn cookie(ttl_seconds: Option<u64>) -> Source {
        let attributes = vec![("SameSite".into(), "Strict".into()), ("Secure".into(), "".into())];
        Source::Cookie(Cookie { name: "user".into(), ttl_seconds, path: "/".into(), attributes })
    }

    #[test]
    fn values_are_found() {
        let head = head(
            "/p?a=1&q=x%20y&q=z&flag#f",
            &[("x-user", "jane"), ("cookie", "a=1; user=\"bob\""), ("cookie", "b=2")],
        );
        let check = |source: Source, expected: Option<&[u8]>| {
            let name = format!("{source:?}");
            assert_eq!(hash_of(vec![(source, false)], &head).0, expected.map(|value| xxhash64(value, 0)), "{name}");
        };
        check(header("x-user"), Some(b"jane"));
        check(header("x-other"), None);
        check(header(":authority"), Some(b"a.test"));
        check(cookie(None), Some(b"bob"));
        check(Source::SourceIp, Some(b"192.0.2.1"));
        check(Source::QueryParameter("q".into()), Some(b"x%20y"));
        check(Source::QueryParameter("flag".into()), Some(b""));
        check(Source::QueryParameter("none".into()), None);
    }

    #[test]
    fn policies_combine_until_a_terminal_one_applies() {
        let head = head("/?q=1", &[("x-user", "jane")]);
        let (user, query) = (xxhash64(b"jane", 0), xxhash64(b"1", 0));
        let q = || Source::QueryParameter("q".into());
        let check = |policies, expected| assert_eq!(hash_of(policies, &head).0, expected);
        check(vec![(header("x-user"), false), (q(), false)], Some(user.rotate_left(1) ^ query));
        check(vec![(header("x-user"), true), (q(), false)], Some(user));
        check(vec![(header("x-none"), true), (q(), false)], Some(query));
        check(vec![(header("x-user"), false), (header("x-user"), false)], Some(user.rotate_left(1) ^ user));
        check(vec![], None);
    }

    #[test]
    fn the_order_of_a_headers_values_makes_no_difference() {
        let one = hash_of(vec![(header("x"), false)], &head("/", &[("x", "b"), ("x", "a")]));
        let other = hash_of(vec![(header("x"), false)], &head("/", &[("x", "a"), ("x", "b")]));
        assert_eq!(one.0, Some(xxhash64(b"b", xxhash64(b"a", 0))));
        assert_eq!(one, other);
    }

    #[test]
    fn a_header_is_hashed_as_rewritten() {
        let pattern = Regex::anywhere("^/user/([0-9]+)/.*$").expect("a pattern");
        let source = Source::Header { name: ":path".into(), rewrite: Some((pattern, "\\1".into())) };
        assert_eq!(hash_of(vec![(source, false)], &head("/user/42/cart", &[])).0, Some(xxhash64(b"42", 0)));
    }

    #[test]
    fn a_client_without_the_cookie_gets_one() {
        let value = format!("{:016x}", xxhash64(b"127.0.0.1:1000127.0.0.1:80", 0));
        let made = Some(xxhash64(value.as_bytes(), 0));
        let empty = head("/", &[("cookie", "user=")]);
        for head in [&head("/", &[]), &empty] {
            let set = format!("user=\"{value}\"; Max-Age=10; Path=/; SameSite=Strict; Secure; HttpOnly");
            assert_eq!(hash_of(vec![(cookie(Some(10)), false)], head), (made, vec![set]));
            let session = format!("user=\"{value}\"; Path=/; SameSite=Strict; Secure; HttpOnly");
            assert_eq!(hash_of(vec![(cookie(Some(0)), false)], head), (made, vec![session]));
            assert_eq!(hash_of(vec![(cookie(None), false)], head), (None, vec![]));
        }
    }
}
