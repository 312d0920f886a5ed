//! Requests that skip a filter (`ExtensionWithMatcher`): a tree of matchers over the request's head, whose only action
//! is `SkipFilter`.

use crate::FastMap;
use crate::route_filters::RouteFilters;
use crate::string_match::StringMatcher;
use crate::view::RequestView;

/// Matches the requests that skip a filter. That of a route (`ExtensionWithMatcherPerRoute`) replaces the filter's own.
#[derive(Debug)]
pub struct SkipMatcher(pub(crate) Matcher);

/// `xds.type.matcher.v3.Matcher`.
#[derive(Debug)]
pub(crate) struct Matcher {
    pub kind: Kind,
    /// Applies if nothing else matches.
    pub otherwise: Option<OnMatch>,
}

#[derive(Debug)]
pub(crate) enum Kind {
    /// `otherwise` only.
    None,
    List(Vec<(Predicate, OnMatch)>),
    /// By the exact value of a header.
    Exact(Box<str>, FastMap<Box<[u8]>, OnMatch>),
    /// By a prefix of a header's value, longest first.
    Prefix(Box<str>, Vec<(Box<[u8]>, OnMatch)>),
}

#[derive(Debug)]
pub(crate) enum OnMatch {
    Skip,
    Matcher(Box<Matcher>),
}

#[derive(Debug)]
pub(crate) enum Predicate {
    Header(Box<str>, StringMatcher),
    Or(Vec<Predicate>),
    And(Vec<Predicate>),
    Not(Box<Predicate>),
}

/// Whether a request skips a filter that has a matcher, given the route's overrides.
pub fn is_skipped(own: &SkipMatcher, filter: &str, route: &RouteFilters<'_>, request: &impl RequestView) -> bool {
    let of_route = if route.is_empty() { None } else { route.most_specific::<SkipMatcher>(filter) };
    of_route.unwrap_or(own).0.skips(request)
}

impl Matcher {
    fn skips(&self, request: &impl RequestView) -> bool {
        let matched = match &self.kind {
            Kind::None => false,
            // A matcher that matches without a skip leaves the decision to the next one.
            Kind::List(matchers) => matchers.iter().any(|(when, then)| when.holds(request) && then.skips(request)),
            Kind::Exact(header, values) => {
                let value = request.header(header);
                value.and_then(|value| values.get(&*value)).is_some_and(|then| then.skips(request))
            }
            Kind::Prefix(header, prefixes) => request.header(header).is_some_and(|value| {
                prefixes.iter().any(|(prefix, then)| value.starts_with(prefix) && then.skips(request))
            }),
        };
        matched || self.otherwise.as_ref().is_some_and(|then| then.skips(request))
    }
}

impl OnMatch {
    fn skips(&self, request: &impl RequestView) -> bool {
        match self {
            Self::Skip => true,
            Self::Matcher(matcher) => matcher.skips(request),
        }
    }
}

impl Predicate {
    fn holds(&self, request: &impl RequestView) -> bool {
        match self {
            Self::Header(name, value) => request.header(name).is_some_and(|found| value.matches(&found)),
            Self::Or(predicates) => predicates.iter().any(|predicate| predicate.holds(request)),
            Self::And(predicates) => predicates.iter().all(|predicate| predicate.holds(request)),
            Self::Not(predicate) => !predicate.holds(request),
        }
    }
}
