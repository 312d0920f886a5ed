//! `istio.metadata_exchange` of a listener: the server's side of the exchange over TCP.

use std::rc::Rc;
use std::sync::Arc;

use evenkeel_runtime_config::metadata_exchange::MetadataExchange;
use evenkeel_runtime_config::view::ConnectionView;

use super::exchange::Exchange;
use crate::network::{ConnectionContext, Data, Decision, Filter, Hooks, Setup};
use crate::verdict::FilterVerdict;

/// `istio.metadata_exchange`.
#[derive(Debug)]
pub struct NetworkFilter {
    config: Arc<MetadataExchange>,
}

/// A connection's exchange, as long as it takes.
#[derive(Debug, Default)]
pub struct Conversation(Option<Exchange>);

impl NetworkFilter {
    fn end(state: &mut Conversation, context: &mut ConnectionContext<'_>) {
        if state.0.as_ref().is_some_and(Exchange::is_done) {
            state.0 = None;
            context.facts.finished += 1;
        }
    }
}

impl Filter for NetworkFilter {
    type Config = MetadataExchange;
    type State = Conversation;

    fn verdict(_: &MetadataExchange) -> FilterVerdict<'_> {
        FilterVerdict::Never
    }

    fn new(config: Arc<MetadataExchange>, _: &Setup<'_>) -> Self {
        Self { config }
    }

    fn hooks(&self) -> Hooks {
        Hooks::NEW_CONNECTION.and(Hooks::DATA).and(Hooks::UPSTREAM_DATA)
    }

    fn follows(&self, connection: &ConnectionView) -> bool {
        connection.application_protocol.as_deref() == Some(&*self.config.protocol)
    }

    fn new_connection(&self, state: &mut Conversation, context: &mut ConnectionContext<'_>) -> Decision {
        let view = context.connection;
        let identity = view.peer.as_ref().map(|peer| peer.uri_sans.first().map_or("", String::as_str));
        state.0 = Exchange::begin(&self.config, view.application_protocol.as_deref(), identity);
        match &state.0 {
            Some(exchange) => context.facts.peer = Some(Rc::clone(exchange.peer())),
            None => context.facts.finished += 1,
        }
        Decision::Continue
    }

    fn data(&self, state: &mut Conversation, data: &mut Data<'_>, context: &mut ConnectionContext<'_>) -> Decision {
        if let Some(exchange) = &mut state.0 {
            if let Some(greeting) = exchange.take_greeting() {
                context.facts.to_client.extend_from_slice(&greeting);
            }
            exchange.receive(data.bytes, data.ends);
        }
        Self::end(state, context);
        Decision::Continue
    }

    fn upstream_data(
        &self,
        state: &mut Conversation,
        data: &mut Data<'_>,
        context: &mut ConnectionContext<'_>,
    ) -> Decision {
        if let Some(exchange) = &mut state.0
            && let Some(greeting) = exchange.take_greeting()
        {
            data.bytes.splice(..0, greeting.iter().copied());
        }
        Self::end(state, context);
        Decision::Continue
    }
}
