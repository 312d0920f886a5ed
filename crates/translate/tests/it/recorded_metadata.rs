//! What shows that an annotation or a label counts: each that the tables call honoured is changed in a mesh, or in a test of the
//! crate that reads it. The others are named in findings (`crates/api/tests/it/annotations.rs`).

use std::collections::BTreeSet;

use evenkeel_api::annotations::{ANNOTATIONS, LABELS, Verdict};

use crate::recorded::{resources_of, test_in};

/// What shows that an entry counts.
enum Evidence {
    /// A client's proxy has other resources with this value in the place of `@` than without the entry.
    Shown(&'static str, &'static str),
    /// A test has it: its file below `crates/`, its function, and a part of what that runs.
    Tested(&'static str, &'static str, &'static str),
}

use Evidence::{Shown, Tested};

/// A Service that selects by a label, and a Pod that may have it.
macro_rules! selecting {
    ($label:literal) => {
        concat!(
            "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {selector: {",
            $label,
            ": a}, ports: [{name: http, port: 80}]}\n---\n",
            "apiVersion: v1\nkind: Pod\nmetadata: {name: web-0, namespace: shop, labels: {@}}\nspec: {containers: [{name: a}]}\n",
            "status: {podIP: 10.0.0.7, phase: Running}\n"
        )
    };
}

#[rustfmt::skip]
const OF_ANNOTATIONS: &[(&str, Evidence)] = &[
    ("alpha.istio.io/canonical-serviceaccounts", Tested("translate/tests/it/decisions_services.rs", "annotations_of_a_service_name_further_identities_of_its_endpoints", "alpha.istio.io/canonical-serviceaccounts")),
    ("alpha.istio.io/kubernetes-serviceaccounts", Tested("translate/tests/it/decisions_services.rs", "annotations_of_a_service_name_further_identities_of_its_endpoints", "alpha.istio.io/kubernetes-serviceaccounts")),
    ("galley.istio.io/analyze-suppress", Tested("analyze/tests/it/findings.rs", "findings_are_suppressed_by_annotation_and_by_flag", "galley.istio.io/analyze-suppress")),
    ("gateway.istio.io/name-override", Tested("k8s/src/gateways/objects.rs", "names_labels_and_annotations_are_istios", r#"{NAME_OVERRIDE: "x"}"#)),
    ("gateway.istio.io/service-account", Tested("k8s/src/gateways/objects.rs", "names_labels_and_annotations_are_istios", r#"{SERVICE_ACCOUNT: "mine"}"#)),
    ("istio.io/autoRegistrationGroup", Tested("control/src/registration/tests.rs", "an_entry_is_made_of_the_groups_template_and_of_what_the_node_says", "istio.io/autoRegistrationGroup")),
    ("istio.io/connect-strategy", Tested("translate/tests/it/decisions_releases.rs", "connections_may_race_to_the_addresses_of_a_host", "istio.io/connect-strategy")),
    ("istio.io/connectedAt", Tested("control/src/registration/tests.rs", "an_entry_is_made_of_the_groups_template_and_of_what_the_node_says", "istio.io/connectedAt")),
    ("istio.io/disconnectedAt", Tested("control/src/registration/tests.rs", "an_entry_is_made_of_the_groups_template_and_of_what_the_node_says", "istio.io/disconnectedAt")),
    ("istio.io/dry-run", Tested("evenkeel/tests/it/attacks/policies.rs", "what_is_tried_or_only_logged_is_told_and_not_enforced", "istio.io/dry-run")),
    ("istio.io/workloadController", Tested("control/src/registration/tests.rs", "an_entry_is_made_of_the_groups_template_and_of_what_the_node_says", "istio.io/workloadController")),
    ("networking.istio.io/address-type", Tested("model/tests/it/gateway_api_status.rs", "a_gateway_is_programmed_where_clients_reach_it", "networking.istio.io/address-type")),
    ("networking.istio.io/exportTo", Tested("translate/tests/it/decisions_mesh.rs", "objects_without_export_to_are_seen_by_whom_the_mesh_says", "networking.istio.io/exportTo")),
    ("networking.istio.io/service-type", Tested("k8s/tests/it/gateways.rs", "what_is_deployed_follows_its_gateway", "networking.istio.io/service-type")),
    ("networking.istio.io/traffic-distribution", Tested("translate/tests/it/decisions_services.rs", "services_prefer_or_require_what_is_near", "networking.istio.io/traffic-distribution")),
    ("prometheus.istio.io/merge-metrics", Tested("inject/tests/it/pods.rs", "the_program_s_metrics_are_merged_unless_it_says_otherwise", "prometheus.istio.io/merge-metrics")),
    ("prometheus.istio.io/scrape-targets", Tested("local/src/workloads/mod.rs", "agents_know_their_ports_and_where_programs_show_metrics", "prometheus.istio.io/scrape-targets")),
    ("proxy.istio.io/config", Tested("inject/tests/it/pods.rs", "rules_are_those_of_annotations", "proxy.istio.io/config")),
    ("proxy.istio.io/health-checks-enabled", Tested("translate/tests/it/decisions_workloads.rs", "the_health_of_an_entry_counts_if_its_annotation_says_so", "proxy.istio.io/health-checks-enabled")),
    ("sidecar.istio.io/agentLogLevel", Tested("inject/tests/it/pods.rs", "the_agent_reads_the_arguments_after_their_expansion", "sidecar.istio.io/agentLogLevel")),
    ("sidecar.istio.io/componentLogLevel", Tested("inject/tests/it/pods.rs", "the_agent_reads_the_arguments_after_their_expansion", "sidecar.istio.io/componentLogLevel")),
    ("sidecar.istio.io/extraStatTags", Tested("agent/tests/it/bootstrap.rs", "further_tags_of_statistics_are_those_of_the_config_and_the_annotation", "sidecar.istio.io/extraStatTags")),
    ("sidecar.istio.io/inject", Tested("control/tests/it/webhooks.rs", "an_api_server_gives_pods_their_sidecars", "sidecar.istio.io/inject")),
    ("sidecar.istio.io/interceptionMode", Tested("inject/tests/it/pods.rs", "rules_are_those_of_annotations", "sidecar.istio.io/interceptionMode: NONE")),
    ("sidecar.istio.io/logLevel", Tested("local/src/workloads/mod.rs", "proxies_have_the_settings_of_proxy_config", "sidecar.istio.io/logLevel")),
    ("sidecar.istio.io/statsHistogramBuckets", Tested("agent/tests/it/bootstrap.rs", "histograms_have_the_buckets_of_the_annotation", "sidecar.istio.io/statsHistogramBuckets")),
    ("sidecar.istio.io/statsInclusionPrefixes", Tested("agent/tests/it/bootstrap.rs", "what_istio_keeps_of_the_statistics_stays_beside_what_the_owner_includes", "sidecar.istio.io/statsInclusionPrefixes")),
    ("sidecar.istio.io/statsInclusionRegexps", Tested("agent/tests/it/bootstrap.rs", "what_istio_keeps_of_the_statistics_stays_beside_what_the_owner_includes", "sidecar.istio.io/statsInclusionRegexps")),
    ("sidecar.istio.io/statsInclusionSuffixes", Tested("agent/tests/it/bootstrap.rs", "what_istio_keeps_of_the_statistics_stays_beside_what_the_owner_includes", "sidecar.istio.io/statsInclusionSuffixes")),
    ("status.sidecar.istio.io/port", Tested("inject/tests/it/pods.rs", "rules_are_those_of_annotations", "status.sidecar.istio.io/port")),
    ("traffic.sidecar.istio.io/excludeInboundPorts", Tested("inject/tests/it/pods.rs", "rules_are_those_of_annotations", "traffic.sidecar.istio.io/excludeInboundPorts")),
    ("traffic.sidecar.istio.io/excludeInterfaces", Tested("inject/tests/it/pods.rs", "rules_are_those_of_annotations", "traffic.sidecar.istio.io/excludeInterfaces")),
    ("traffic.sidecar.istio.io/excludeOutboundIPRanges", Tested("inject/tests/it/pods.rs", "rules_are_those_of_annotations", "traffic.sidecar.istio.io/excludeOutboundIPRanges")),
    ("traffic.sidecar.istio.io/excludeOutboundPorts", Tested("inject/tests/it/pods.rs", "rules_are_those_of_annotations", "traffic.sidecar.istio.io/excludeOutboundPorts")),
    ("traffic.sidecar.istio.io/includeInboundPorts", Tested("inject/tests/it/pods.rs", "rules_are_those_of_annotations", "traffic.sidecar.istio.io/includeInboundPorts")),
    ("traffic.sidecar.istio.io/includeOutboundIPRanges", Tested("inject/tests/it/pods.rs", "rules_are_those_of_annotations", "traffic.sidecar.istio.io/includeOutboundIPRanges")),
    ("traffic.sidecar.istio.io/includeOutboundPorts", Tested("inject/tests/it/pods.rs", "rules_are_those_of_annotations", "traffic.sidecar.istio.io/includeOutboundPorts")),
];

#[rustfmt::skip]
const OF_LABELS: &[(&str, Evidence)] = &[
    ("experimental.istio.io/disable-gateway-port-translation", Tested("translate/tests/it/decisions_gateway_ports.rs", "gateways_listen_on_the_target_ports_of_their_services_or_on_the_port_itself", "experimental.istio.io/disable-gateway-port-translation")),
    ("gateway.networking.k8s.io/gateway-name", Shown("a", selecting!("gateway.networking.k8s.io/gateway-name"))),
    ("istio-injection", Tested("translate/tests/it/recorded_metadata.rs", "a_namespace_takes_its_pods_out_of_the_mesh", "istio-injection: disabled")),
    ("istio-locality", Tested("agent/tests/it/bootstrap.rs", "the_node_says_where_its_workload_runs", "istio-locality")),
    ("istio.io/gateway-name", Shown("a", selecting!("istio.io/gateway-name"))),
    ("istio.io/persistent-session", Tested("translate/tests/it/decisions_services.rs", "endpoints_that_end_keep_only_their_sessions", "istio.io/persistent-session:")),
    ("istio.io/persistent-session-header", Tested("translate/tests/it/decisions_services.rs", "endpoints_that_end_keep_only_their_sessions", "istio.io/persistent-session-header")),
    ("networking.istio.io/enable-autoallocate-ip", Tested("translate/tests/it/decisions_services.rs", "an_entrys_label_says_that_it_gets_no_address", "networking.istio.io/enable-autoallocate-ip")),
    ("networking.istio.io/gatewayPort", Tested("translate/tests/it/decisions_clusters.rs", "another_network_is_reached_through_its_gateways", "networking.istio.io/gatewayPort: '15900'")),
    ("security.istio.io/tlsMode", Tested("translate/tests/it/decisions_services.rs", "workload_entries_are_endpoints", "security.istio.io/tlsMode")),
    ("service.istio.io/canonical-name", Shown("a", selecting!("service.istio.io/canonical-name"))),
    ("service.istio.io/canonical-revision", Shown("a", selecting!("service.istio.io/canonical-revision"))),
    ("sidecar.istio.io/inject", Tested("control/tests/it/webhooks.rs", "an_api_server_gives_pods_their_sidecars", "sidecar.istio.io/inject")),
    ("topology.istio.io/network", Tested("translate/tests/it/decisions_clusters.rs", "another_network_is_reached_through_its_gateways", "topology.istio.io/network: n2")),
    ("topology.istio.io/subzone", Tested("agent/tests/it/bootstrap.rs", "the_node_says_where_its_workload_runs", "topology.istio.io/subzone")),
];

/// An entry that counts has evidence here, and the evidence holds: an entry cannot become blind unnoticed.
#[test]
fn every_honoured_name_changes_something() {
    for (table, evidence) in [(ANNOTATIONS, OF_ANNOTATIONS), (LABELS, OF_LABELS)] {
        let honoured = table.iter().filter(|known| known.verdict == Verdict::Honoured).map(|known| known.name);
        let shown: BTreeSet<&str> = evidence.iter().map(|(name, _)| *name).collect();
        let missing: Vec<&str> = honoured.filter(|name| !shown.contains(name)).collect();
        assert!(missing.is_empty(), "nothing shows that these count: {missing:#?}");
        for (name, evidence) in evidence {
            assert!(table.iter().any(|known| known.name == *name), "{name} is in no table");
            match evidence {
                Shown(value, document) => {
                    let with = resources_of(&document.replace('@', &format!("{name}: {value}")));
                    assert_ne!(with, resources_of(&document.replace('@', "")), "{name}");
                }
                Tested(file, function, part) => {
                    let body = test_in(file, function);
                    assert!(
                        body.lines().any(|line| line.contains(part)),
                        "{name}: {part:?} is not in {function} of {file}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_namespace_takes_its_pods_out_of_the_mesh() {
    let mesh = |labels: &str| {
        let namespace =
            format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop, labels: {{{labels}}}}}\n---\n");
        resources_of(&(namespace + &selecting!("app").replace('@', "app: a")))
    };
    assert_ne!(mesh("istio-injection: disabled"), mesh("istio-injection: enabled"));
}
