//! Candidates for a Lease of a real API server: one leads, and another one when that is gone.

use std::time::{Duration, Instant};

use evenkeel_k8s::lease::{Candidate, Leadership, LeaseTimes};
use evenkeel_testkit::kubernetes::ApiServer;
use tokio::sync::oneshot;

use crate::fixture::admin;

const TIMES: LeaseTimes = LeaseTimes {
    duration: Duration::from_secs(4),
    deadline: Duration::from_secs(3),
    retry: Duration::from_millis(300),
};

/// A running candidate.
struct Running {
    leadership: Leadership,
    stop: Option<oneshot::Sender<()>>,
    task: tokio::task::JoinHandle<()>,
}

async fn start(server: &ApiServer, namespace: &str, identity: &str) -> Running {
    let candidate = Candidate::new(admin(server).await, namespace, "evenkeel-status", identity, TIMES);
    let leadership = candidate.leadership();
    let (stop, stopped) = oneshot::channel::<()>();
    let task = tokio::spawn(candidate.run(async move { drop(stopped.await) }));
    Running { leadership, stop: Some(stop), task }
}

impl Running {
    fn leads(&self) -> bool {
        self.leadership.leads(Instant::now())
    }

    async fn begins(&mut self) {
        tokio::time::timeout(Duration::from_secs(60), self.leadership.begins()).await.expect("it leads in time");
    }

    async fn end(&mut self) {
        drop(self.stop.take());
        (&mut self.task).await.expect("no panic");
    }
}

#[tokio::test]
async fn another_candidate_leads_when_the_leader_ends_dies_or_is_cut_off() {
    let server = ApiServer::start();
    let namespace = server.namespace("system");
    let mut first = start(&server, &namespace, "first").await;
    first.begins().await;
    let mut second = start(&server, &namespace, "second").await;
    tokio::time::sleep(TIMES.duration * 2).await;
    assert!(first.leads() && !second.leads(), "the holder renews");

    // It gives the Lease back: nobody waits for its end.
    first.end().await;
    let begin = Instant::now();
    second.begins().await;
    assert!(begin.elapsed() < TIMES.duration, "{:?}", begin.elapsed());

    // It dies: the next one waits for its end.
    let mut third = start(&server, &namespace, "third").await;
    tokio::time::sleep(TIMES.retry * 3).await;
    assert!(!third.leads());
    second.task.abort();
    third.begins().await;
    assert!(!second.leads(), "two lead at once");

    // Nobody can renew: nobody leads for longer than the deadline, and somebody does afterwards.
    server.pause();
    tokio::time::sleep(TIMES.deadline + TIMES.retry).await;
    assert!(!third.leads(), "its last renewal counts for {:?}", TIMES.deadline);
    server.resume();
    third.begins().await;
    let lease = server.kubectl(&["get", "lease", "evenkeel-status", "--namespace", &namespace, "--output=yaml"]);
    assert!(lease.contains("holderIdentity: third") && lease.contains("leaseTransitions: 3"), "{lease}");
}

#[tokio::test]
async fn of_many_candidates_one_leads_at_any_time() {
    let server = ApiServer::shared();
    let namespace = server.namespace("system");
    let mut all = Vec::new();
    for number in 0..5 {
        all.push(start(server, &namespace, &format!("candidate-{number}")).await);
    }
    for _ in 0..4 {
        let mut leaders = Vec::new();
        let end = Instant::now() + Duration::from_secs(60);
        while leaders.is_empty() {
            assert!(Instant::now() < end, "nobody leads");
            tokio::time::sleep(Duration::from_millis(50)).await;
            let now = Instant::now();
            leaders = (0..all.len()).filter(|at| all[*at].leadership.leads(now)).collect();
            assert!(leaders.len() <= 1, "{} lead at once", leaders.len());
        }
        let mut leader = all.remove(leaders[0]);
        leader.end().await;
    }
}
