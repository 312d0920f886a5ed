//! Resolves the host that a ClientHello names.

use std::sync::Arc;

use evenkeel_runtime_config::dynamic_forward_proxy::SniForwardProxy;

use super::names::{Around, Known, Names, Waiting, read_authority};
use crate::info::ResponseFlags;
use crate::network::{Close, ConnectionContext, Decision, Filter, Hooks, Setup};
use crate::resolution::LookupError;

/// `envoy.filters.network.sni_dynamic_forward_proxy`.
#[derive(Debug)]
pub struct NetworkFilter {
    port: u16,
    names: Names,
}

impl Filter for NetworkFilter {
    type Config = SniForwardProxy;
    type State = Option<Box<Waiting>>;

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
                let Some(name) = &context.connection.server_name else { return Decision::Continue };
                // The name has no port; one that has is none.
                let called = read_authority(name.as_bytes(), self.port).filter(|_| !name.contains(':'));
                let Some(called) = called else { return Decision::Continue };
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
}
