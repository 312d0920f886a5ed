//! One leader among the replicas of a control plane, by a Lease (`coordination.k8s.io/v1`).
//!
//! The leader renews the Lease; whoever else wants it watches how long the holder has not. As in client-go, no two clocks are
//! compared: a candidate measures with its own clock how long it has seen the same record, and the leader counts its time
//! from before its last renewal. So with clocks that run equally fast there are never two leaders, however far they are apart.

mod record;

use std::future::Future;
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::sync::watch;

use crate::reason::reason;
use record::{Observed, acquired, released, renewed};

/// How long a Lease counts after its last renewal, and how often it is renewed.
#[derive(Debug, Clone, Copy)]
pub struct LeaseTimes {
    /// How long others wait for a holder that does not renew.
    pub duration: Duration,
    /// How long a leader leads after its last renewal: less than `duration`.
    pub deadline: Duration,
    /// Interval between renewals, and between the looks of a candidate.
    pub retry: Duration,
}

/// As in client-go.
impl Default for LeaseTimes {
    fn default() -> Self {
        Self { duration: Duration::from_secs(15), deadline: Duration::from_secs(10), retry: Duration::from_secs(2) }
    }
}

/// Whether this process leads.
#[derive(Debug, Clone)]
pub struct Leadership(watch::Receiver<Option<Instant>>);

impl Leadership {
    /// Whether it leads at `now`. A process that was stopped for a while no longer does, before anybody says so.
    pub fn leads(&self, now: Instant) -> bool {
        self.0.borrow().is_some_and(|until| now < until)
    }

    /// Waits until it leads.
    pub async fn begins(&mut self) {
        while !self.leads(Instant::now()) {
            if self.0.changed().await.is_err() {
                // Nobody will say so any more.
                std::future::pending::<()>().await;
            }
        }
    }
}

/// A candidate for a Lease.
#[derive(Debug)]
pub struct Candidate {
    leases: Api<Lease>,
    name: String,
    identity: String,
    times: LeaseTimes,
    until: watch::Sender<Option<Instant>>,
    observed: Option<Observed>,
    /// Whether the last attempt failed, which has been logged.
    is_failing: bool,
}

impl Candidate {
    /// Creates a candidate for the Lease `name` in a namespace. `identity`: another one in each process, such as the Pod's name.
    pub fn new(client: Client, namespace: &str, name: &str, identity: &str, times: LeaseTimes) -> Self {
        Self {
            leases: Api::namespaced(client, namespace),
            name: name.to_owned(),
            identity: identity.to_owned(),
            times,
            until: watch::Sender::new(None),
            observed: None,
            is_failing: false,
        }
    }

    /// Whether this process leads, now and later.
    pub fn leadership(&self) -> Leadership {
        Leadership(self.until.subscribe())
    }

    /// Tries to get the Lease, and to keep it, until `stop` completes. Then it is released, so that nobody has to wait.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        tokio::pin!(stop);
        loop {
            tokio::select! {
                () = &mut stop => break,
                () = self.step() => {}
            }
            tokio::select! {
                () = &mut stop => break,
                () = tokio::time::sleep(self.times.retry) => {}
            }
        }
        self.release().await;
    }

    /// Takes, renews or observes the Lease once.
    async fn step(&mut self) {
        let begin = Instant::now();
        let led = self.leads(begin);
        let attempt = match tokio::time::timeout(self.times.deadline / 2, self.attempt(begin)).await {
            Ok(Ok(leads)) => Ok(leads),
            Ok(Err(error)) => Err(reason(&error)),
            Err(_) => Err("the API server has not answered in time".to_owned()),
        };
        // After a failure the last renewal counts until its deadline.
        let leads = attempt.as_ref().copied().unwrap_or_else(|_| self.leads(Instant::now()));
        self.note(attempt.err());
        match (led, leads) {
            (false, true) => tracing::info!(lease = self.name, identity = self.identity, "this process leads"),
            (true, false) => {
                tracing::warn!(lease = self.name, identity = self.identity, "this process leads no longer")
            }
            _ => {}
        }
        if !leads {
            self.until.send_if_modified(|until| until.take().is_some());
        }
    }

    /// Logs the first of several failures as a warning.
    fn note(&mut self, failure: Option<String>) {
        let was_failing = std::mem::replace(&mut self.is_failing, failure.is_some());
        match failure {
            Some(reason) if was_failing => tracing::debug!(lease = self.name, reason, "still no Lease"),
            Some(reason) => {
                tracing::warn!(
                    lease = self.name,
                    reason,
                    "the Lease is neither taken nor renewed; tried again until it is"
                )
            }
            None => {}
        }
    }

    /// Returns whether this process leads afterwards.
    async fn attempt(&mut self, begin: Instant) -> Result<bool, kube::Error> {
        let Some(lease) = self.leases.get_opt(&self.name).await? else {
            let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
            let lease = acquired(Lease { metadata, spec: None }, &self.identity, self.times.duration);
            return self.written(self.leases.create(&PostParams::default(), &lease).await, begin);
        };
        let observed = Observed::of(&lease, self.observed.take(), begin);
        let is_ours = observed.is_held_by(&self.identity);
        let is_free = observed.is_free(self.times.duration, begin);
        self.observed = Some(observed);
        if !is_ours && !is_free {
            return Ok(false);
        }
        // The version makes the API server refuse it if anybody has been faster.
        let lease = if is_ours { renewed(lease) } else { acquired(lease, &self.identity, self.times.duration) };
        self.written(self.leases.replace(&self.name, &PostParams::default(), &lease).await, begin)
    }

    fn written(&mut self, answer: Result<Lease, kube::Error>, begin: Instant) -> Result<bool, kube::Error> {
        match answer {
            Ok(_) => {
                // Others measure from when they see the renewal, which is later than its beginning.
                self.until.send_replace(Some(begin + self.times.deadline));
                Ok(true)
            }
            // Somebody else has been faster. If that was no candidate, the next attempt comes before the deadline.
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => {
                Ok(self.leads(Instant::now()))
            }
            Err(error) => Err(error),
        }
    }

    fn leads(&self, now: Instant) -> bool {
        self.until.borrow().is_some_and(|until| now < until)
    }

    /// Gives the Lease back if this process leads.
    async fn release(self) {
        if !self.leads(Instant::now()) {
            return;
        }
        self.until.send_replace(None);
        let releasing = async {
            let lease = self.leases.get(&self.name).await?;
            if Observed::of(&lease, None, Instant::now()).is_held_by(&self.identity) {
                self.leases.replace(&self.name, &PostParams::default(), &released(lease)).await?;
            }
            Ok::<_, kube::Error>(())
        };
        match tokio::time::timeout(self.times.retry, releasing).await {
            Ok(Ok(())) => tracing::info!(lease = self.name, "the Lease is released"),
            Ok(Err(error)) => {
                tracing::debug!(lease = self.name, %error, "the Lease is not released; it ends by itself")
            }
            Err(_) => tracing::debug!(lease = self.name, "the Lease is not released in time; it ends by itself"),
        }
    }
}
