//! Probes and hooks of a program, from its first container.

use std::time::Duration;

use evenkeel_api::decode::IntOrString;
use evenkeel_api::kubernetes::{self, LifecycleHandler, PodSpec};

use crate::lifecycle::{Hook, Lifecycle};
use crate::probe::{Check, Probe};

/// The first `readinessProbe`; without one, the first port must accept connections.
pub(super) fn readiness(spec: &PodSpec) -> Probe {
    let first_port = || spec.tcp_ports().next().map_or(Check::Runs, |port| Check::Tcp(port.container_port.0));
    let wanted = spec.containers.iter().find_map(|container| container.readiness_probe.as_ref());
    // By default one machine probes more often than a cluster.
    wanted.map_or_else(
        || Probe::new(first_port()),
        |wanted| {
            let defaults = Probe::new(check(spec, wanted).unwrap_or_else(first_port));
            timed(wanted, defaults)
        },
    )
}

/// The other probes and the hooks.
pub(super) fn lifecycle(spec: &PodSpec) -> Lifecycle {
    let containers = || spec.containers.iter();
    let probe = |wanted: Option<&kubernetes::Probe>| {
        let wanted = wanted?;
        Some(timed(wanted, Probe { period: Duration::from_secs(10), ..Probe::new(check(spec, wanted)?) }))
    };
    let lifecycle = || containers().filter_map(|container| container.lifecycle.as_ref());
    Lifecycle {
        startup: probe(containers().find_map(|container| container.startup_probe.as_ref())),
        liveness: probe(containers().find_map(|container| container.liveness_probe.as_ref())),
        post_start: lifecycle().find_map(|lifecycle| hook(spec, lifecycle.post_start.as_ref()?)),
        pre_stop: lifecycle().find_map(|lifecycle| hook(spec, lifecycle.pre_stop.as_ref()?)),
        grace: spec.termination_grace_period_seconds.map(|seconds| Duration::from_secs(u64::from(seconds))),
    }
}

fn check(spec: &PodSpec, wanted: &kubernetes::Probe) -> Option<Check> {
    let number = |port: &IntOrString| spec.target_port(port);
    if let Some(get) = &wanted.http_get {
        let headers = get.http_headers.iter().map(|header| (header.name.clone(), header.value.clone())).collect();
        let path = get.path.clone().unwrap_or_else(|| "/".to_owned());
        return number(&get.port).map(|port| Check::Http { port, path, headers });
    }
    if let Some(socket) = &wanted.tcp_socket {
        return number(&socket.port).map(Check::Tcp);
    }
    if let Some(grpc) = &wanted.grpc {
        return Some(Check::Grpc { port: grpc.port.0, service: grpc.service.clone().unwrap_or_default() });
    }
    wanted.exec.as_ref().map(|exec| Check::Exec(exec.command.clone()))
}

fn timed(wanted: &kubernetes::Probe, defaults: Probe) -> Probe {
    let seconds = |value: Option<u32>| value.filter(|seconds| *seconds > 0).map(|s| Duration::from_secs(u64::from(s)));
    Probe {
        period: seconds(wanted.period_seconds).unwrap_or(defaults.period),
        timeout: seconds(wanted.timeout_seconds).unwrap_or(defaults.timeout),
        failures: wanted.failure_threshold.unwrap_or(defaults.failures).max(1),
        successes: wanted.success_threshold.unwrap_or(defaults.successes).max(1),
        initial_delay: seconds(wanted.initial_delay_seconds).unwrap_or(defaults.initial_delay),
        ..defaults
    }
}

fn hook(spec: &PodSpec, handler: &LifecycleHandler) -> Option<Hook> {
    if let Some(exec) = &handler.exec {
        return Some(Hook::Exec(exec.command.clone()));
    }
    if let Some(get) = &handler.http_get {
        return Hook::get(&get.port, get.path.as_ref(), |port| spec.target_port(port));
    }
    handler.sleep.as_ref().map(|sleep| Hook::Sleep(Duration::from_secs(u64::from(sleep.seconds))))
}

#[cfg(test)]
mod tests {
    use evenkeel_api::Resource;

    use super::*;

    fn spec(fields: &str) -> PodSpec {
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec: {{terminationGracePeriodSeconds: 7, \
             containers: [{{name: web, ports: [{{name: web, containerPort: 80}}], {fields}}}]}}\n"
        );
        let (objects, found) = evenkeel_api::load(&[("app.yaml".into(), text.into())]);
        assert!(!found.has_errors(), "{found}");
        match objects.first().map(|object| object.resource.clone()) {
            Some(Resource::Pod(pod)) => pod.spec.clone(),
            _ => panic!("a Pod"),
        }
    }

    #[test]
    fn every_kind_of_probe_and_hook_is_read_with_its_times() {
        let of = |fields: &str| lifecycle(&spec(fields));
        let liveness = |fields: &str| of(&format!("livenessProbe: {{{fields}}}")).liveness.expect("it is said");
        let get = liveness("httpGet: {port: web, httpHeaders: [{name: a, value: b}]}, initialDelaySeconds: 3");
        let headers = vec![("a".to_owned(), "b".to_owned())];
        assert_eq!(get.check, Check::Http { port: 80, path: "/".to_owned(), headers });
        assert_eq!((get.period, get.initial_delay), (Duration::from_secs(10), Duration::from_secs(3)));
        assert_eq!(liveness("tcpSocket: {port: 81}, periodSeconds: 2").period, Duration::from_secs(2));
        assert_eq!(liveness("grpc: {port: 82, service: db}").check, Check::Grpc { port: 82, service: "db".to_owned() });
        let exec = Check::Exec(vec!["true".to_owned(), "x".to_owned()]);
        assert_eq!(of("startupProbe: {exec: {command: [true-ish, x]}}").startup.map(|probe| probe.failures), Some(3));
        assert_eq!(liveness("exec: {command: [\"true\", x]}").check, exec);
        let hooks = of("lifecycle: {preStop: {sleep: {seconds: 2}}, postStart: {httpGet: {port: web, path: /warm}}}");
        assert_eq!(hooks.pre_stop, Some(Hook::Sleep(Duration::from_secs(2))));
        assert_eq!(hooks.post_start, Some(Hook::Get { port: 80, path: "/warm".to_owned() }));
        assert_eq!(hooks.grace, Some(Duration::from_secs(7)));
        assert_eq!(of("lifecycle: {}"), Lifecycle { grace: Some(Duration::from_secs(7)), ..Lifecycle::default() });
        assert_eq!(readiness(&spec("readinessProbe: {tcpSocket: {port: web}, successThreshold: 2}")).successes, 2);
    }
}
