//! Routes of a VirtualService: resolves every name and looks up every destination.

use evenkeel_api::Object;
use evenkeel_api::istio;
use evenkeel_base::hostname::Hostname;
use evenkeel_base::suggest::one_of;
use evenkeel_base::{Diagnostic, Diagnostics, Spanned};

use super::destination_rules::missing_host_help;
use super::http_fields::{
    cors_of, direct_response_of, fault_of, header_matches, headers_of, millionths, mirror_share, parameter_matches,
    redirect_of, retries_of, rewrite_of, string_match, text,
};
use super::shared;
use super::tracking::Cx;
use crate::{
    Destination, DestinationState, GatewayRef, Headers, HttpAction, HttpMatch, HttpRoute, L4Match, L4Route, Labels,
    Millionths, Mirror, TlsRoute, WeightedDestination,
};

/// A route that delegates: what the delegate's routes inherit.
pub(super) struct RootRoute<'a> {
    /// As written.
    pub(super) written: &'a Spanned<istio::HttpRoute>,
    /// Its conditions.
    pub(super) matches: Vec<HttpMatch>,
    /// `mirror`.
    pub(super) mirror: Option<Destination>,
    /// `mirrors`.
    pub(super) mirrors: Vec<Mirror>,
}

/// Reads the routes of one VirtualService.
pub(super) struct Reader<'a, 't> {
    pub(super) cx: &'a Cx<'t>,
    pub(super) object: &'a Object,
    /// Where the VirtualService applies.
    pub(super) gateways: &'a [GatewayRef],
    /// The route that delegates to this VirtualService.
    pub(super) root: Option<&'a RootRoute<'a>>,
    pub(super) diagnostics: &'a mut Diagnostics,
}

impl Reader<'_, '_> {
    pub(super) fn http(&mut self, routes: &[Spanned<istio::HttpRoute>]) -> Vec<HttpRoute> {
        let mut all = Vec::new();
        for route in routes {
            match &route.delegate {
                Some(delegate) => all.extend(self.delegated(route, delegate)),
                None => all.extend(self.http_route(route)),
            }
        }
        all
    }

    /// The decoder has checked that a route has exactly one action. What it does not say, the route that delegates to
    /// it does (Istio's `mergeHTTPRoute`).
    pub(super) fn http_route(&mut self, route: &Spanned<istio::HttpRoute>) -> Option<HttpRoute> {
        let root = self.root.map(|root| &**root.written);
        let direct = route.direct_response.as_ref().or(root.and_then(|root| root.direct_response.as_ref()));
        let action = match (&route.redirect, direct) {
            (Some(redirect), _) => HttpAction::Redirect(redirect_of(redirect)),
            (None, Some(response)) => HttpAction::DirectResponse(direct_response_of(response)?),
            (None, None) => HttpAction::Route {
                destinations: route.route.iter().map(|d| self.http_destination(d)).collect(),
                rewrite: route.rewrite.as_ref().or(root.and_then(|root| root.rewrite.as_ref())).map(rewrite_of),
                timeout: route.timeout.or(root.and_then(|root| root.timeout)),
                retries: route.retries.as_ref().or(root.and_then(|root| root.retries.as_ref())).map(retries_of),
                mirrors: self.mirrors(route),
            },
        };
        let headers = route.headers.as_ref().or(root.and_then(|root| root.headers.as_ref()));
        let fault = route.fault.as_ref().or(root.and_then(|root| root.fault.as_ref()));
        let cors = route.cors_policy.as_ref().or(root.and_then(|root| root.cors_policy.as_ref()));
        Some(HttpRoute {
            name: text(&route.name),
            matches: route.matches.iter().map(|m| self.http_match(m)).collect(),
            action,
            headers: headers.map(headers_of).unwrap_or_default(),
            fault: fault.and_then(fault_of),
            cors: cors.map(cors_of),
            session: None,
            origin: route.span.clone(),
        })
    }

    /// The services that get copies of a route's requests, as in Istio: `mirror` first, each field by itself from the
    /// route that delegates here if this one does not have it.
    fn mirrors(&mut self, route: &istio::HttpRoute) -> Vec<Mirror> {
        let root = self.root;
        let own = route.mirror.as_ref().map(|mirror| self.destination(mirror));
        let first = own.or_else(|| root.and_then(|root| root.mirror.clone()));
        let share = mirror_share([Some(route), root.map(|root| &**root.written)]);
        let first = first.map(|destination| Mirror { destination, share });
        let more = match (route.mirrors.as_slice(), root) {
            ([], Some(root)) => root.mirrors.clone(),
            (own, _) => self.listed_mirrors(own),
        };
        first.into_iter().chain(more).filter(|mirror| mirror.share > Millionths(0)).collect()
    }

    pub(super) fn listed_mirrors(&mut self, written: &[istio::HttpMirrorPolicy]) -> Vec<Mirror> {
        let mirror = |mirror: &istio::HttpMirrorPolicy| Mirror {
            destination: self.destination(&mirror.destination),
            share: mirror.percentage.as_ref().map_or(Millionths::ALL, millionths),
        };
        written.iter().map(mirror).collect()
    }

    pub(super) fn http_match(&self, matched: &Spanned<istio::HttpMatch>) -> HttpMatch {
        HttpMatch {
            name: text(&matched.name),
            uri: matched.uri.as_ref().map(string_match),
            by_parts: false,
            ignore_uri_case: matched.ignore_uri_case,
            scheme: matched.scheme.as_ref().map(string_match),
            method: matched.method.as_ref().map(string_match),
            authority: matched.authority.as_ref().map(string_match),
            headers: header_matches(&matched.headers),
            without_headers: header_matches(&matched.without_headers),
            query_params: parameter_matches(&matched.query_params),
            port: matched.port.map(|p| p.0),
            source_labels: matched.source_labels.clone(),
            source_namespace: matched.source_namespace.as_ref().map(|n| n.0.clone()),
            gateways: self.gateway_refs(&matched.gateways),
            stat_prefix: text(&matched.stat_prefix),
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
                let rest = self.l4_match(subnets, m.port, &m.source_labels, m.source_namespace.as_ref(), &m.gateways);
                (names, rest)
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
                let rest = self.l4_match(subnets, m.port, &m.source_labels, m.source_namespace.as_ref(), &m.gateways);
                L4Match { source_subnet: m.source_subnet, ..rest }
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
            source_subnet: None,
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

    pub(super) fn destination(&mut self, written: &Spanned<istio::Destination>) -> Destination {
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

    pub(super) fn warn(&mut self, code: &'static str, span: &evenkeel_base::Span, message: String, help: String) {
        let finding = Diagnostic::warning(code, span.clone(), message).with_help(help);
        self.diagnostics.push(finding.about(self.object.reference()));
    }
}
