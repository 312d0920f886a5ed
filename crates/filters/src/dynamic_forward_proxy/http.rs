//! Resolves the host that a request calls.

use std::sync::Arc;

use evenkeel_runtime_config::dynamic_forward_proxy::{HostRewrite, HttpForwardProxy};

use super::names::{Around, Known, Names, Waiting, read_authority};
use crate::http::{Decision, Filter, Hooks, Reply, RequestContext, Setup};
use crate::info::ResponseFlags;
use crate::remark::Remark;
use crate::resolution::LookupError;
use crate::verdict::FilterVerdict;

/// `envoy.filters.http.dynamic_forward_proxy`.
#[derive(Debug)]
pub struct HttpFilter {
    names: Names,
}

impl Filter for HttpFilter {
    type Config = HttpForwardProxy;
    type State = Option<Box<Waiting>>;
    const HOOKS: Hooks = Hooks::REQUEST_HEAD;

    fn verdict(_: &HttpForwardProxy) -> FilterVerdict<'_> {
        FilterVerdict::Never
    }

    fn new(config: Arc<Self::Config>, _: &Setup<'_>) -> Self {
        Self { names: Names::new(&config.cache) }
    }

    fn request_head(&self, state: &mut Self::State, context: &mut RequestContext<'_>) -> Decision {
        let known = match state.take() {
            Some(waiting) if context.woken.is_some() => self.names.take(&waiting, around(context)),
            _ => {
                let facts =
                    context.route.cluster.and_then(|cluster| context.services.clusters().forward_proxy(cluster));
                let Some(facts) = facts else { return Decision::Continue };
                rewrite_host(context);
                let default_port = if facts.is_secure { 443 } else { 80 };
                let Some(called) = read_authority(context.head.authority(), default_port) else {
                    return fail(LookupError::Failed("no_host_name".into()));
                };
                match self.names.look(&called, around(context)) {
                    Known::Unknown => {
                        let (waiting, pause) = self.names.ask(called, context.services);
                        *state = Some(Box::new(waiting));
                        return Decision::Pause(pause);
                    }
                    known => known,
                }
            }
        };
        match known {
            Known::Resolved(host) => {
                context.info.dynamic_host = Some(host);
                Decision::Continue
            }
            Known::Failed(error) => fail(error),
            Known::Unknown => fail(LookupError::Failed("no_answer".into())),
        }
    }

    fn remark(&self, _: &Self::State, context: &RequestContext<'_>) -> Option<Remark> {
        let host = context.info.dynamic_host.as_ref()?;
        Some(Remark::ByState(format!("{} is at {}", host.name, host.address()?)))
    }
}

fn around<'a>(context: &'a RequestContext<'_>) -> Around<'a> {
    Around { services: context.services, connection: context.connection, now: context.now }
}

/// Replaces the host as the route says, before it is resolved.
fn rewrite_host(context: &mut RequestContext<'_>) {
    match context.per_route() {
        Some(HostRewrite::Literal(host)) if !host.is_empty() => context.head.set_authority(host.as_bytes()),
        Some(HostRewrite::Header(name)) => {
            if let Some(host) = context.head.headers.find(name.as_bytes()).filter(|host| !host.is_empty()) {
                let host = host.to_vec();
                context.head.set_authority(&host);
            }
        }
        Some(HostRewrite::Literal(_)) | None => {}
    }
}

/// Envoy's replies.
fn fail(error: LookupError) -> Decision {
    Decision::Reply(match error {
        LookupError::CacheOverflow => Reply::new(503, "DNS cache overflow", "dns_cache_overflow"),
        LookupError::PendingOverflow => Reply::new(
            503,
            "Dynamic forward proxy pending request overflow",
            "dynamic_forward_proxy_pending_request_overflow",
        ),
        LookupError::Failed(reason) => Reply {
            flags: ResponseFlags::DNS_RESOLUTION_FAILED,
            ..Reply::new(503, "DNS resolution failure", format!("dns_resolution_failure{{{reason}}}"))
        },
    })
}
