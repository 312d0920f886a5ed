//! WorkloadGroups as workloads of this machine, in place of virtual machines. Its replica registers itself with the control
//! plane, which makes its WorkloadEntry; there is no Pod.

use evenkeel_api::annotations::CaptureRules;
use evenkeel_api::istio::WorkloadGroup;
use evenkeel_api::kubernetes::RUN_ANNOTATION;
use evenkeel_api::{LOCAL_FILE, Object};
use evenkeel_base::{Diagnostic, Diagnostics};
use evenkeel_inject::{Membership, ProxySettings};

use super::proxy_config::ProxyConfigs;
use super::{Command, Commands, Sidecar, Workload, WorkloadKind};
use crate::lifecycle::Lifecycle;
use crate::names;
use crate::probe::{Check, Probe};

/// The workload of a group; `None`, with a note, if this machine has no command for it.
pub(super) fn workload(
    object: &Object,
    group: &WorkloadGroup,
    commands: &Commands,
    proxies: &ProxyConfigs,
    diagnostics: &mut Diagnostics,
) -> Option<Workload> {
    let annotated = object.annotations.get(RUN_ANNOTATION).map(|run| Command {
        run: run.value.clone(),
        directory: None,
        environment: Vec::new(),
    });
    let beside = commands.find(&object.namespace, &object.name);
    let Some(command) = beside.cloned().or(annotated) else {
        let message = format!("{object} has no command for this machine; its workloads run elsewhere");
        let help =
            format!("to run one here, write `workloads: {{{}: {{command: COMMAND}}}}` in {LOCAL_FILE}", object.name);
        diagnostics.push(Diagnostic::info("no-local-command", object.origin.clone(), message).with_help(help));
        return None;
    };
    let spec = &group.spec;
    let labels = spec.labels();
    let membership =
        Membership { group: object.name.to_string(), probe: spec.probe.as_ref().map(|probe| probe.to_json()) };
    let settings = proxies.of_proxy(&object.namespace, &labels);
    Some(Workload {
        name: object.name.to_string(),
        namespace: object.namespace.to_string(),
        replicas: 1,
        service_account: spec.template.service_account.as_ref().map_or("default", |account| &account.0).to_owned(),
        environment: Vec::new(),
        ports: Vec::new(),
        // The agent checks its health for the callers; here it is ready when its program runs.
        probe: Probe::new(Check::Runs),
        lifecycle: Lifecycle::default(),
        volumes: Vec::new(),
        mounts: Vec::new(),
        kind: WorkloadKind::Deployment,
        sidecar: Sidecar::Evenkeel { full: false },
        proxy: ProxySettings { membership: Some(membership), ..settings },
        capture: CaptureRules::default(),
        template_hash: names::digest(&format!("{group:?}{command:?}"), 9),
        command: Some(command),
        labels,
    })
}
