//! Routes of a VirtualService: resolves every name and looks up every destination.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_api::Object;
use evenkeel_api::decode::HeaderName;
use evenkeel_api::istio::{self, DerivePort};
use evenkeel_base::hostname::Hostname;
use evenkeel_base::suggest::one_of;
use evenkeel_base::{Diagnostic, Diagnostics, Spanned};

use super::destination_rules::missing_host_help;
use super::shared;
use super::tracking::Cx;
use crate::{
    Destination, DestinationState, DirectResponse, GatewayRef, HeaderMatch, HeaderOperations, Headers, HttpAction,
    HttpMatch, HttpRoute, L4Match, L4Route, Labels, Redirect, RedirectPort, RetryPolicy, Rewrite, StringMatch,
    TlsRoute, WeightedDestination,
};

/// Reads the routes of one VirtualService.
pub(super) struct Reader<'a, 't> {
    pub(super) cx: &'a Cx<'t>,
    pub(super) object: &'a Object,
    /// Where the VirtualService applies.
    pub(super) gateways: &'a [GatewayRef],
    pub(super) diagnostics: &'a mut Diagnostics,
}

impl Reader<'_, '_> {
    pub(super) fn http(&mut self, routes: &[Spanned<istio::HttpRoute>]) -> Vec<HttpRoute> {
        routes.iter().filter_map(|route| self.http_route(route)).collect()
    }

    /// The decoder has checked that a route has exactly one action.
    fn http_route(&mut self, route: &Spanned<istio::HttpRoute>) -> Option<HttpRoute> {
        let action = match (&route.redirect, &route.direct_response) {
            (Some(redirect), _) => HttpAction::Redirect(redirect_of(redirect)),
            (None, Some(response)) => HttpAction::DirectResponse(DirectResponse {
                status: u16::try_from(response.status.value).ok()?,
                body: response.body.as_ref().and_then(|b| b.string.as_deref()).unwrap_or_default().as_bytes().into(),
            }),
            (None, None) => HttpAction::Route {
                destinations: route.route.iter().map(|d| self.http_destination(d)).collect(),
                rewrite: route.rewrite.as_ref().map(rewrite_of),
                timeout: route.timeout,
                retries: route.retries.as_ref().map(retries_of),
            },
        };
        Some(HttpRoute {
            name: text(&route.name),
            matches: route.matches.iter().map(|m| self.http_match(m)).collect(),
            action,
            headers: route.headers.as_ref().map(headers_of).unwrap_or_default(),
            origin: route.span.clone(),
        })
    }

    fn http_match(&self, matched: &Spanned<istio::HttpMatch>) -> HttpMatch {
        HttpMatch {
            name: text(&matched.name),
            uri: matched.uri.as_ref().map(string_match),
            ignore_uri_case: matched.ignore_uri_case,
            scheme: matched.scheme.as_ref().map(string_match),
            method: matched.method.as_ref().map(string_match),
            authority: matched.authority.as_ref().map(string_match),
            headers: header_matches(&matched.headers),
            without_headers: header_matches(&matched.without_headers),
            query_params: matched
                .query_params
                .iter()
                .map(|(n, m)| HeaderMatch { name: shared(n), value: string_match(m) })
                .collect(),
            port: matched.port.map(|p| p.0),
            source_labels: matched.source_labels.clone(),
            source_namespace: matched.source_namespace.as_ref().map(|n| n.0.clone()),
            gateways: self.gateway_refs(&matched.gateways),
            origin: matched.span.clone(),
        }
    }

    fn http_destination(&mut self, written: &istio::HttpRouteDestination) -> WeightedDestination {
        WeightedDestination {
            destination: self.destination(&written.destination),
            weight: written.weight.unwrap_or(0),
            headers: written.headers.as_ref().map(headers_of).unwrap_or_default(),
        }
    }

    pub(super) fn tls(&mut self, routes: &[Spanned<istio::TlsRoute>]) -> Vec<TlsRoute> {
        let mut built = Vec::new();
        for route in routes {
            let matches = route.matches.iter().map(|m| {
                let names = m.sni_hosts.iter().map(|h| h.value.clone()).collect();
                let subnets = &m.destination_subnets;
                (names, self.l4_match(subnets, m.port, &m.source_labels, m.source_namespace.as_ref(), &m.gateways))
            });
            let matches = matches.collect();
            built.push(TlsRoute {
                matches,
                destinations: self.l4_destinations(&route.route),
                origin: route.span.clone(),
            });
        }
        built
    }

    pub(super) fn tcp(&mut self, routes: &[Spanned<istio::TcpRoute>]) -> Vec<L4Route> {
        let mut built = Vec::new();
        for route in routes {
            let matches = route.matches.iter().map(|m| {
                let subnets = &m.destination_subnets;
                self.l4_match(subnets, m.port, &m.source_labels, m.source_namespace.as_ref(), &m.gateways)
            });
            let matches = matches.collect();
            built.push(L4Route {
                matches,
                destinations: self.l4_destinations(&route.route),
                origin: route.span.clone(),
            });
        }
        built
    }

    fn l4_match(
        &self,
        subnets: &[evenkeel_base::cidr::IpNet],
        port: Option<evenkeel_api::decode::Port>,
        source_labels: &Labels,
        source_namespace: Option<&evenkeel_api::decode::Label>,
        gateways: &[Spanned<String>],
    ) -> L4Match {
        L4Match {
            destination_subnets: subnets.to_vec(),
            port: port.map(|p| p.0),
            source_labels: source_labels.clone(),
            source_namespace: source_namespace.map(|n| n.0.clone()),
            gateways: self.gateway_refs(gateways),
        }
    }

    fn l4_destinations(&mut self, written: &[istio::RouteDestination]) -> Vec<WeightedDestination> {
        let weighted = |d: &istio::RouteDestination| WeightedDestination {
            destination: self.destination(&d.destination),
            weight: d.weight.unwrap_or(0),
            headers: Headers::default(),
        };
        written.iter().map(weighted).collect()
    }

    fn gateway_refs(&self, written: &[Spanned<String>]) -> Vec<GatewayRef> {
        written.iter().map(|g| GatewayRef::parse(g, &self.object.namespace)).collect()
    }

    fn destination(&mut self, written: &Spanned<istio::Destination>) -> Destination {
        let namespace = &self.object.namespace;
        let full = Hostname::resolve(written.host.as_str(), namespace, &self.cx.mesh().cluster_domain);
        let host = full.unwrap_or_else(|_| written.host.value.clone());
        let port = written.port.as_ref().map(|p| p.number.0);
        let state = self.look_up(written, &host, port);
        Destination {
            host,
            subset: written.subset.as_ref().map(|s| shared(s)),
            port,
            state,
            origin: written.host.span.clone(),
        }
    }

    /// Looks up a destination; reports it if it does not exist.
    fn look_up(&mut self, written: &istio::Destination, host: &Hostname, port: Option<u16>) -> DestinationState {
        let object = self.object;
        let Some(service) = self.cx.destination(host, &object.namespace) else {
            let hidden = self.cx.services_of(host).first().map(|(_, service)| service);
            let message = match hidden {
                Some(service) => format!(
                    "{object}: the Service `{host}` is not exported to this namespace; routes to it answer 503 ({})",
                    service.origin
                ),
                None => format!("{object}: there is no Service `{host}`; routes to it answer 503"),
            };
            let help = match hidden {
                Some(_) => "add this namespace to its `exportTo`".to_owned(),
                None => missing_host_help(self.cx, host, &object.namespace),
            };
            self.warn("missing-service", &written.host.span, message, help);
            return DestinationState::UnknownHost;
        };
        let numbers = || {
            one_of(service.ports.iter().map(|p| p.number.to_string()).collect::<Vec<_>>().iter().map(String::as_str))
        };
        match (port, &written.port) {
            (Some(number), Some(selector)) if service.port(number).is_none() => {
                let message = format!("{object}: the Service `{host}` has no port {number}; routes to it answer 503");
                let help = format!("its ports: {}", numbers());
                self.warn("missing-port", &selector.span, message, help);
                return DestinationState::UnknownPort;
            }
            (None, _) if service.ports.len() > 1 && self.gateways.iter().any(|g| *g != GatewayRef::Mesh) => {
                let message = format!(
                    "{object}: the destination `{host}` has several ports and none is chosen; a gateway uses the request's own port"
                );
                let help = format!("add `port: {{number: …}}`; its ports: {}", numbers());
                self.warn("ambiguous-port", &written.host.span, message, help);
            }
            _ => {}
        }
        let Some(subset) = &written.subset else { return DestinationState::Known };
        let rule = self.cx.destination_rule_for(service, &object.namespace);
        if rule.is_some_and(|r| r.subset(subset).is_some()) {
            return DestinationState::Known;
        }
        let message = format!(
            "{object}: no DestinationRule for `{host}` defines the subset `{}`; routes to it answer 503",
            subset.value
        );
        let help = match rule {
            Some(rule) if !rule.subsets.is_empty() => {
                format!("its subsets: {}", one_of(rule.subsets.iter().map(|s| &*s.name)))
            }
            _ => format!("add a DestinationRule with the host `{}` and this subset", written.host.value),
        };
        self.warn("missing-subset", &subset.span, message, help);
        DestinationState::UnknownSubset
    }

    fn warn(&mut self, code: &'static str, span: &evenkeel_base::Span, message: String, help: String) {
        let finding = Diagnostic::warning(code, span.clone(), message).with_help(help);
        self.diagnostics.push(finding.about(self.object.reference()));
    }
}

fn text(text: &Option<String>) -> Arc<str> {
    shared(text.as_deref().unwrap_or_default())
}

fn string_match(written: &istio::StringMatch) -> StringMatch {
    match (&written.exact, &written.prefix, &written.regex) {
        (Some(exact), _, _) => StringMatch::Exact(shared(exact)),
        (None, Some(prefix), _) => StringMatch::Prefix(shared(prefix)),
        (None, None, Some(regex)) => StringMatch::Regex(regex.0.clone()),
        (None, None, None) => StringMatch::Present,
    }
}

fn header_matches(written: &BTreeMap<HeaderName, istio::StringMatch>) -> Vec<HeaderMatch> {
    written.iter().map(|(name, m)| HeaderMatch { name: name.0.clone(), value: string_match(m) }).collect()
}

fn headers_of(written: &istio::Headers) -> Headers {
    let operations = |o: &Option<istio::HeaderOperations>| o.as_ref().map(header_operations).unwrap_or_default();
    Headers { request: operations(&written.request), response: operations(&written.response) }
}

fn header_operations(written: &istio::HeaderOperations) -> HeaderOperations {
    let pairs = |map: &BTreeMap<HeaderName, String>| map.iter().map(|(n, v)| (n.0.clone(), shared(v))).collect();
    HeaderOperations {
        set: pairs(&written.set),
        add: pairs(&written.add),
        remove: written.remove.iter().map(|n| n.0.clone()).collect(),
    }
}

fn redirect_of(written: &istio::HttpRedirect) -> Redirect {
    let optional = |t: &Option<String>| t.as_deref().map(shared);
    Redirect {
        uri: optional(&written.uri),
        authority: optional(&written.authority),
        scheme: optional(&written.scheme),
        port: match (written.port, written.derive_port) {
            (Some(port), _) => Some(RedirectPort::Number(port.0)),
            (None, Some(DerivePort::FromProtocolDefault)) => Some(RedirectPort::ProtocolDefault),
            (None, Some(DerivePort::FromRequestPort)) => Some(RedirectPort::Request),
            (None, None) => None,
        },
        // The decoder has checked that it is a redirect status.
        code: written.redirect_code.as_ref().and_then(|c| u16::try_from(c.value).ok()).unwrap_or(301),
    }
}

fn rewrite_of(written: &istio::HttpRewrite) -> Rewrite {
    let regex = |r: &istio::RegexRewrite| (r.regex.0.clone(), shared(&r.rewrite));
    Rewrite {
        uri: written.uri.as_deref().map(shared),
        authority: written.authority.as_deref().map(shared),
        uri_regex: written.uri_regex_rewrite.as_ref().map(regex),
    }
}

pub(super) fn retries_of(written: &istio::HttpRetry) -> RetryPolicy {
    RetryPolicy {
        attempts: written.attempts.unwrap_or(0),
        per_try_timeout: written.per_try_timeout,
        retry_on: written.retry_on.as_ref().map(|c| shared(c)),
        avoid_previous_hosts: written.retry_ignore_previous_hosts.unwrap_or(true),
        avoid_previous_localities: written.retry_remote_localities.unwrap_or(false),
        back_off: written.backoff,
    }
}
