//! The decision about a request by sets of few and many rules that cannot match: both must cost the same.

use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Result, anyhow, ensure};
use evenkeel_base::re2::Regex;
use evenkeel_filters::rbac::{Subject, evaluate};
use evenkeel_runtime_config::dynamic_metadata::{DynamicMetadata, MetadataMatcher, ValueMatcher};
use evenkeel_runtime_config::metadata::MetadataValue;
use evenkeel_runtime_config::rbac::policy::{OutcomeMetadata, Permission, Policy, Principal};
use evenkeel_runtime_config::rbac::{FieldNames, RbacAction, Rules};
use evenkeel_runtime_config::string_match::StringMatcher;
use evenkeel_runtime_config::view::{ConnectionView, PeerIdentity, PlainRequest};

use super::Counts;

/// Requests that are counted.
pub const ITERATIONS: u64 = 500;
const FEW: usize = 10;
const MANY: usize = 1_000;
/// Names of the functions below in the record: few rules.
pub const OF_FEW: &str = "rbac: none of 10 rules about identities and tokens matches";
/// Many rules.
pub const OF_MANY: &str = "rbac: none of 1000 rules about identities and tokens matches";
/// Growth from few to many that is allowed.
const GROWTH: f64 = 1.2;

/// Returns complaints about how the counts grow with the number of rules.
pub fn complaints(counts: &Counts) -> Vec<String> {
    let (Some(&few), Some(&many)) = (counts.get(OF_FEW), counts.get(OF_MANY)) else { return Vec::new() };
    let grows = many as f64 > few as f64 * GROWTH;
    grows.then(|| format!("{OF_MANY}: {many}, more than {GROWTH} times the {few} of {OF_FEW}")).into_iter().collect()
}

/// Sets of few and many.
pub struct Sets {
    few: Rules,
    many: Rules,
}

impl Sets {
    /// Compiles them.
    pub fn new() -> Result<Self> {
        Ok(Self { few: rules(FEW)?, many: rules(MANY)? })
    }
}

/// Decides about all requests; what callgrind looks at.
pub fn run(Sets { few, many }: &Sets) -> Result<()> {
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    let uri_sans = vec!["spiffe://cluster.local/ns/shop/sa/web".to_owned()];
    let peer = Some(Arc::new(PeerIdentity { uri_sans, ..PeerIdentity::default() }));
    let connection = ConnectionView { tls: true, peer, ..ConnectionView::plaintext(nowhere, nowhere) };
    let request = PlainRequest::new("GET", "web", "/items");
    let text = |text: &str| MetadataValue::Text(text.into());
    let claims = MetadataValue::Object(vec![
        ("aud".into(), MetadataValue::List(vec![text("web"), text("api")])),
        ("iss".into(), text("https://issuer.example")),
        ("sub".into(), text("ann")),
    ]);
    let mut metadata = DynamicMetadata::default();
    metadata.merge(JWT, &[(PAYLOAD.into(), claims)]);
    let remote = nowhere.ip();
    let subject = Subject { connection: &connection, remote, request: Some(&request), metadata: Some(&metadata) };
    for _ in 0..ITERATIONS {
        ensure!(of_few(few, black_box(&subject)), "one of few rules matches");
        ensure!(of_many(many, black_box(&subject)), "one of many rules matches");
    }
    Ok(())
}

const JWT: &str = "envoy.filters.http.jwt_authn";
const PAYLOAD: &str = "payload";

#[inline(never)]
fn of_few(rules: &Rules, subject: &Subject<'_, PlainRequest>) -> bool {
    evaluate(rules, subject).allowed
}

#[inline(never)]
fn of_many(rules: &Rules, subject: &Subject<'_, PlainRequest>) -> bool {
    evaluate(rules, subject).allowed
}

/// Rules that deny, in turn by namespace, trust domain, subject and audience.
fn rules(count: usize) -> Result<Rules> {
    let policy = |number: usize| {
        Ok(Policy {
            name: format!("ns[shop]-policy[p{number:04}]-rule[0]").into(),
            permissions: vec![Permission::And(vec![Permission::Any])],
            principals: vec![Principal::And(vec![principal(number)?])],
            metadata: OutcomeMetadata::default(),
        })
    };
    let policies = (0..count).map(policy).collect::<Result<Vec<_>>>()?;
    Ok(Rules::new(RbacAction::Deny, policies, FieldNames::default()))
}

fn principal(number: usize) -> Result<Principal> {
    let exact = |text: String| StringMatcher::Exact { value: text.into_bytes().into(), ignore_case: false };
    let claim = |name: &str, value: ValueMatcher| {
        let path = vec![PAYLOAD.into(), name.into()];
        Principal::Metadata(MetadataMatcher { filter: JWT.into(), path, value, invert: false })
    };
    Ok(match number % 4 {
        0 => {
            let regex = Regex::whole(&format!(".*/ns/other-{number:04}/.*")).map_err(|error| anyhow!(error))?;
            Principal::Or(vec![Principal::Authenticated(Some(StringMatcher::Regex(regex)))])
        }
        1 => {
            let value = format!("spiffe://d{number:04}.example/").into_bytes().into();
            Principal::Or(vec![Principal::Authenticated(Some(StringMatcher::Prefix { value, ignore_case: false }))])
        }
        2 => Principal::Or(vec![Principal::And(vec![
            claim("iss", ValueMatcher::String(exact(format!("https://issuer-{number:04}.example")))),
            claim("sub", ValueMatcher::String(exact("ann".to_owned()))),
        ])]),
        _ => {
            let text = || ValueMatcher::String(exact(format!("audience-{number:04}")));
            let either = ValueMatcher::Or(vec![ValueMatcher::OneOf(Box::new(text())), text()]);
            Principal::Or(vec![claim("aud", either)])
        }
    })
}
