//! Several filters: which is called when, and which is told of the end.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_runtime_config::connection_limit::ConnectionLimit;
use evenkeel_runtime_config::custom::CustomFilter as CustomConfig;
use evenkeel_runtime_config::listener::NetworkFilterConfig;
use evenkeel_runtime_config::rbac::{FieldNames, NetworkRbac, RbacAction, RbacFilter, Rules};

use super::custom::State;
use super::fixture::Fixture;
use super::{ClosedBy, ConnectionContext, CustomFactory, CustomFilter, Data, Decision, End};

/// Refuses every connection.
fn closed() -> NetworkFilterConfig {
    let rules = Some(Arc::new(Rules::new(RbacAction::Allow, vec![], FieldNames::default())));
    let filter = RbacFilter { stat_prefix: "r".into(), rules, shadow_rules: None, shadow_stat_prefix: "".into() };
    NetworkFilterConfig::Rbac(Arc::new(NetworkRbac { filter, continuous: false, delay_deny: Duration::ZERO }))
}

fn limit(prefix: &str) -> NetworkFilterConfig {
    let config = ConnectionLimit::new(prefix.into(), 1, Duration::ZERO, true);
    NetworkFilterConfig::ConnectionLimit(Arc::new(config))
}

#[test]
fn a_filter_behind_one_that_refuses_never_knows_of_the_connection() {
    let mut chain = Fixture::new([limit("before"), closed(), limit("behind")]);
    assert!(matches!(chain.open(), Decision::Close(_)));
    let end = End { by: ClosedBy::Filter, received: 0, sent: 0 };
    chain.filters.complete(&mut chain.state, &end);
    let text = chain.registry.text();
    for line in ["connection_limit.before.active_connections: 0", "connection_limit.behind.active_connections: 0"] {
        assert!(text.contains(line), "{line} not in\n{text}");
    }
    // The first connection's slot is free again.
    chain.again();
    assert!(matches!(chain.open(), Decision::Close(close) if close.details.starts_with("rbac")));
}

#[test]
fn bytes_pass_filters_that_do_not_look_at_them() {
    let mut chain = Fixture::new([limit("only")]);
    assert!(matches!(chain.open(), Decision::Continue));
    let mut bytes = b"abc".to_vec();
    assert!(matches!(chain.data(&mut bytes, false), Decision::Continue));
    assert!(matches!(chain.upstream_data(&mut bytes, true), Decision::Continue));
    assert_eq!(bytes, b"abc");
}

/// A custom filter that counts its calls for data in the connection's state, and writes the count behind them.
struct Counting;

impl CustomFilter for Counting {
    fn data(&self, state: &mut State, data: &mut Data<'_>, _: &mut ConnectionContext<'_>) -> Decision {
        let before = state.take().and_then(|count| count.downcast::<u8>().ok()).map_or(0, |count| *count);
        data.bytes.push(b'1' + before);
        *state = Some(Box::new(before + 1));
        Decision::Continue
    }
}

#[test]
fn filters_of_the_open_arm_stand_among_the_others() {
    let custom = |factory: Arc<dyn std::any::Any + Send + Sync>| {
        NetworkFilterConfig::Custom(CustomConfig { message: "test.Counting", clusters: Vec::new(), factory })
    };
    let counting = Arc::new(CustomFactory::new(|_| Box::new(Counting)));
    let mut chain = Fixture::new([limit("first"), custom(counting)]);
    assert!(matches!(chain.open(), Decision::Continue));
    let mut bytes = b"abc".to_vec();
    assert!(matches!(chain.data(&mut bytes, false), Decision::Continue));
    assert!(matches!(chain.data(&mut bytes, true), Decision::Continue));
    assert_eq!(bytes, b"abc12");
    // A configuration that creates no filter lets nothing pass.
    let mut broken = Fixture::new([custom(Arc::new("no factory"))]);
    assert!(matches!(broken.open(), Decision::Close(_)));
}
