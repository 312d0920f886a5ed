//! Whether routes that are sorted by precedence decide as routes in the written order do.

use evenkeel_model::{
    DirectResponse, HeaderMatch, Headers, HttpAction, HttpMatch, HttpRoute, MatchOrder, RouteOrder, StringMatch,
};

use super::conditions::Condition;

/// A condition, and the rule that it belongs to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ordered<'a> {
    pub(super) condition: &'a Condition,
    /// Conditions of rules with the same number have the same effect.
    pub(super) rule: usize,
}

/// Two conditions that some request meets, of which the second would decide. `all` are in the written order.
pub(super) fn inversion<'a>(all: &[Ordered<'a>]) -> Option<(&'a Condition, &'a Condition)> {
    let mut sorted: Vec<(usize, MatchOrder)> =
        all.iter().enumerate().map(|(at, one)| (at, place(&one.condition.read))).collect();
    // A stable sort, as that of the routes.
    sorted.sort_by_key(|(_, place)| *place);
    for (position, (at, _)) in sorted.iter().enumerate() {
        let Some(first) = all.get(*at) else { continue };
        let later = sorted.iter().skip(position + 1).filter(|(other, _)| other < at);
        for other in later.filter_map(|(other, _)| all.get(*other)) {
            if other.rule != first.rule && overlap(&first.condition.original, &other.condition.original) {
                return Some((other.condition, first.condition));
            }
        }
    }
    None
}

/// The place of a condition among those of its host, as the Gateway API sorts them.
fn place(read: &HttpMatch) -> MatchOrder {
    let action = HttpAction::DirectResponse(DirectResponse { status: 500, body: [].into() });
    let route = HttpRoute {
        name: "".into(),
        matches: vec![read.clone()],
        action,
        headers: Headers::default(),
        fault: None,
        cors: None,
        session: None,
        origin: read.origin.clone(),
    };
    route.place(RouteOrder::ByPrecedence)
}

/// Whether some request may meet both. Expressions are taken to match everything.
pub(super) fn overlap(one: &HttpMatch, other: &HttpMatch) -> bool {
    let methods = match (&one.method, &other.method) {
        (Some(StringMatch::Exact(one)), Some(StringMatch::Exact(other))) => one == other,
        _ => true,
    };
    methods
        && paths_overlap(one, other)
        && values_overlap(&one.headers, &other.headers)
        && values_overlap(&one.query_params, &other.query_params)
}

fn values_overlap(one: &[HeaderMatch], other: &[HeaderMatch]) -> bool {
    let contradicts = |a: &HeaderMatch, b: &HeaderMatch| match (&a.value, &b.value) {
        (StringMatch::Exact(one), StringMatch::Exact(other)) => a.name == b.name && one != other,
        _ => false,
    };
    !one.iter().any(|a| other.iter().any(|b| contradicts(a, b)))
}

fn paths_overlap(one: &HttpMatch, other: &HttpMatch) -> bool {
    let fold = |text: &str| {
        if one.ignore_uri_case || other.ignore_uri_case { text.to_ascii_lowercase() } else { text.to_owned() }
    };
    // Without the slash at its end: as a prefix of whole parts it matches the text before that, too.
    let prefix = |text: &str| fold(text.trim_end_matches('/'));
    match (&one.uri, &other.uri) {
        (Some(StringMatch::Exact(one)), Some(StringMatch::Exact(other))) => fold(one) == fold(other),
        (Some(StringMatch::Exact(path)), Some(StringMatch::Prefix(start)))
        | (Some(StringMatch::Prefix(start)), Some(StringMatch::Exact(path))) => fold(path).starts_with(&prefix(start)),
        (Some(StringMatch::Prefix(one)), Some(StringMatch::Prefix(other))) => {
            let (one, other) = (prefix(one), prefix(other));
            one.starts_with(&other) || other.starts_with(&one)
        }
        _ => true,
    }
}
