//! Resolves the host that a ClientHello names.

use std::sync::Arc;

use evenkeel_runtime_config::dynamic_forward_proxy::SniForwardProxy;
use evenkeel_runtime_config::dynamic_metadata::DynamicMetadata;
use evenkeel_runtime_config::view::ConnectionView;

use super::names::{Around, Called, Known, Names, Waiting, read_authority};
use crate::info::ResponseFlags;
use crate::network::{Close, ConnectionContext, Decision, Filter, Hooks, Setup};
use crate::remark::Remark;
use crate::resolution::LookupError;
use crate::verdict::FilterVerdict;

/// `envoy.filters.network.sni_dynamic_forward_proxy`.
#[derive(Debug)]
pub struct NetworkFilter {
    port: u16,
    names: Names,
}

impl Filter for NetworkFilter {
    type Config = SniForwardProxy;
    type State = Option<Box<Waiting>>;

    fn verdict(_: &SniForwardProxy) -> FilterVerdict<'_> {
        FilterVerdict::Never
    }

    fn new(config: Arc<Self::Config>, _: &Setup<'_>) -> Self {
        Self { port: config.port, names: Names::new(&config.cache) }
    }

    fn hooks(&self) -> Hooks {
        Hooks::NEW_CONNECTION
    }

    /// Without a name, or with one that does not resolve, the cluster has no host for the connection (`UH`), as in Envoy.
    fn new_connection(&self, state: &mut Self::State, context: &mut ConnectionContext<'_>) -> Decision {
        let around = Around { services: context.services, connection: context.connection, now: context.now };
        let known = match state.take() {
            Some(waiting) if context.woken.is_some() => self.names.take(&waiting, around),
            _ => {
                let Some(called) = called(self.port, context.connection) else { return Decision::Continue };
                match self.names.look(&called, around) {
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
            Known::Resolved(host) => context.facts.dynamic_host = Some(host),
            Known::Failed(LookupError::CacheOverflow | LookupError::PendingOverflow) => {
                let flag = ResponseFlags::UPSTREAM_OVERFLOW.short_names().next();
                return Decision::Close(Close { flag, ..Close::new("dns_cache_overflow") });
            }
            Known::Failed(LookupError::Failed(_)) | Known::Unknown => {}
        }
        Decision::Continue
    }

    fn explain(config: &SniForwardProxy, connection: &ConnectionView, _: &mut DynamicMetadata) -> Option<Remark> {
        Some(match called(config.port, connection) {
            Some(called) => {
                Remark::ByState(format!("resolves {} when the connection comes, for port {}", called.name, called.port))
            }
            None => Remark::NoHost("its ClientHello names no host to resolve".to_owned()),
        })
    }
}

/// The host that the ClientHello names. The name has no port; one that has is none.
fn called(port: u16, connection: &ConnectionView) -> Option<Called> {
    let name = connection.server_name.as_ref()?;
    read_authority(name.as_bytes(), port).filter(|_| !name.contains(':'))
}
