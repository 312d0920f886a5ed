//! The network filter: a service decides about a connection once its client has sent data.

use std::sync::Arc;

use evenkeel_runtime_config::dynamic_metadata::DynamicMetadata;
use evenkeel_runtime_config::ext_authz::NetworkExtAuthz;
use evenkeel_runtime_config::view::ConnectionView;
use evenkeel_stats::{ScopeName, Writer};

use super::answer::Verdict;
use super::check;
use super::counts::{ConnectionStats, Connections, OfConnections};
use super::service::{self, PendingCheck, Reply as CheckReply};
use crate::format::{Record, header_value};
use crate::http::Woken;
use crate::info::{ConnectionInfo, StreamInfo};
use crate::network::{Close, ConnectionContext, ConnectionFacts, Data, Decision, End, Filter, Hooks, Setup};
use crate::remark::Remark;
use crate::verdict::FilterVerdict;

/// The namespace of the dynamic metadata that services set, whatever the filter's name.
const NAMESPACE: &str = "envoy.filters.network.ext_authz";

/// `envoy.filters.network.ext_authz`.
#[derive(Debug)]
pub struct NetworkFilter {
    config: Arc<NetworkExtAuthz>,
    counts: Writer<ConnectionStats>,
}

/// The progress of the decision about a connection.
#[derive(Debug, Default)]
pub enum Admission {
    /// The client has sent nothing.
    #[default]
    New,
    /// The service is asked.
    Pending(Box<Call>),
    /// The connection may proceed.
    Admitted,
}

/// A call that a connection waits for.
#[derive(Debug)]
pub struct Call(PendingCheck);

impl Filter for NetworkFilter {
    type Config = NetworkExtAuthz;
    type State = Admission;

    fn verdict(_: &NetworkExtAuthz) -> FilterVerdict<'_> {
        FilterVerdict::Outside
    }

    fn new(config: Arc<NetworkExtAuthz>, setup: &Setup<'_>) -> Self {
        let name = ScopeName::plain(&format!("ext_authz.{}.", config.stat_prefix));
        Self { counts: setup.registry.scope(name).writer(), config }
    }

    fn hooks(&self) -> Hooks {
        Hooks::DATA.and(Hooks::COMPLETE)
    }

    fn data(&self, state: &mut Admission, _: &mut Data<'_>, context: &mut ConnectionContext<'_>) -> Decision {
        match std::mem::take(state) {
            Admission::Admitted => {
                *state = Admission::Admitted;
                Decision::Continue
            }
            Admission::New => self.ask(state, context),
            Admission::Pending(call) => {
                self.counts.shift(Connections::active, -1);
                *state = Admission::Admitted;
                let reply = match context.woken {
                    Some(Woken::Ready) => call.0.take_grpc(),
                    Some(Woken::TimedOut) | None => CheckReply::default(),
                };
                self.decide(reply, context)
            }
        }
    }

    fn explain(config: &NetworkExtAuthz, _: &ConnectionView, metadata: &mut DynamicMetadata) -> Option<Remark> {
        let asks = config.enabled_metadata.as_ref().is_none_or(|matcher| matcher.matches(Some(metadata)));
        let otherwise = if config.failure_mode_allow { "passes" } else { "is closed" };
        let cluster = &config.service.call.cluster;
        let text = format!("cluster {cluster} decides (gRPC); without its answer the connection {otherwise}");
        asks.then_some(Remark::ByState(text))
    }

    fn complete(&self, state: &mut Admission, _: &End, _: &mut ConnectionFacts) {
        if let Admission::Pending(_) = std::mem::take(state) {
            self.counts.shift(Connections::active, -1);
        }
    }
}

impl NetworkFilter {
    fn ask(&self, state: &mut Admission, context: &mut ConnectionContext<'_>) -> Decision {
        let config = &self.config;
        let metadata = &context.facts.metadata;
        if config.enabled_metadata.as_ref().is_some_and(|matcher| !matcher.matches(Some(metadata))) {
            self.counts.inc(OfConnections::disabled);
            *state = Admission::Admitted;
            return Decision::Continue;
        }
        self.counts.inc(OfConnections::total);
        self.counts.shift(Connections::active, 1);
        let message = check::connection(context.connection, &config.told, metadata);
        let callouts = context.services.callouts();
        let (stream, now) = (StreamInfo::new(context.now), context.now);
        let connection = ConnectionInfo::of_view(now, context.connection.clone());
        let record = Record::headless(&stream, &connection, (context.services.clock().wall_clock(now, now), now));
        let metadata = service::metadata(&config.service, |format| header_value(format, &record));
        let (asked, pause) = service::grpc(&config.service, callouts, message, metadata, now);
        *state = Admission::Pending(Box::new(Call(asked)));
        Decision::Pause(pause)
    }

    fn decide(&self, reply: CheckReply, context: &mut ConnectionContext<'_>) -> Decision {
        let answer = reply.answer;
        if !answer.metadata.is_empty() {
            context.facts.metadata.merge(NAMESPACE, &answer.metadata);
        }
        match answer.verdict {
            Verdict::Allowed(_) => {
                self.counts.inc(OfConnections::ok);
                Decision::Continue
            }
            Verdict::Denied(_) => {
                self.counts.inc(OfConnections::denied);
                self.close()
            }
            Verdict::Unasked => {
                self.counts.inc(OfConnections::error);
                self.close()
            }
            Verdict::Failed | Verdict::FailedWith(_) => {
                self.counts.inc(OfConnections::error);
                if self.config.failure_mode_allow {
                    self.counts.inc(OfConnections::failure_mode_allowed);
                    return Decision::Continue;
                }
                self.close()
            }
        }
    }

    // Without details, as Envoy logs it.
    fn close(&self) -> Decision {
        self.counts.inc(OfConnections::cx_closed);
        Decision::Close(Close { flag: Some("UAEX"), ..Close::default() })
    }
}
