//! One worker's ways to the collectors of spans ([`evenkeel_filters::tracing`]): connection managers with the same provider
//! share one.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_filters::Services;
use evenkeel_filters::tracing::{Reporter, Tracer};
use evenkeel_runtime_config::HttpConnectionManager;
use evenkeel_runtime_config::tracing::{Provider, Tracing};
use evenkeel_stats::{Registry, ScopeName};

/// How long a worker that ends waits for collectors to accept the last spans.
const LAST_SPANS: Duration = Duration::from_secs(1);

/// The reporters of one worker.
#[derive(Default)]
pub(crate) struct Reporters(RefCell<Vec<Rc<Reporter>>>);

impl Reporters {
    /// This worker's side of a connection manager, if that traces. `outer`: its statistics scope.
    pub(crate) fn tracer(
        &self,
        manager: &HttpConnectionManager,
        registry: &Registry,
        outer: &ScopeName,
        now: Instant,
    ) -> Option<Rc<Tracer>> {
        let config = manager.tracing.as_ref()?;
        let reporter = config.provider.as_ref().map(|provider| self.of(provider, config, registry, now));
        Some(Rc::new(Tracer::new((Arc::clone(config), manager.pack_trace_reason), reporter, registry, outer)))
    }

    fn of(&self, provider: &Arc<Provider>, config: &Tracing, registry: &Registry, now: Instant) -> Rc<Reporter> {
        let mut known = self.0.borrow_mut();
        if let Some(reporter) = known.iter().find(|reporter| reporter.provider() == &**provider) {
            return Rc::clone(reporter);
        }
        let reporter = Rc::new(Reporter::new(Arc::clone(provider), Arc::clone(&config.node), registry, now));
        known.push(Rc::clone(&reporter));
        reporter
    }

    /// Sends spans that are due; forgets reporters that no connection manager uses once they have nothing to send.
    pub(crate) fn tick(&self, now: Instant, services: &dyn Services) {
        self.0.borrow_mut().retain(|reporter| {
            reporter.tick(now, services);
            if Rc::strong_count(reporter) > 1 {
                return true;
            }
            reporter.run_flush(services);
            !reporter.is_idle()
        });
    }

    /// Sends all remaining spans, and waits a moment for that.
    pub(crate) async fn finish(&self, services: &dyn Services) {
        let reports: Vec<_> =
            self.0.borrow().iter().filter_map(|reporter| reporter.flush(services.callouts())).collect();
        let all = async {
            for report in reports {
                report.await;
            }
        };
        _ = tokio::time::timeout(LAST_SPANS, all).await;
    }
}
