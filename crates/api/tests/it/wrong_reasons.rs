//! Findings that named the wrong reason, or refused what Istio takes.

/// The findings of a DestinationRule or VirtualService as `severity code: message (help)`.
fn found(kind: &str, spec: &str) -> Vec<String> {
    let text = format!("apiVersion: networking.istio.io/v1\nkind: {kind}\nmetadata: {{name: a}}\nspec: {{{spec}}}\n");
    let (_, found) = evenkeel_api::load(&[("a.yaml".into(), text.as_str().into())]);
    let shown = found.iter().map(|finding| {
        let help = finding.help.as_deref().unwrap_or_default();
        format!("{} {}: {} ({help})", finding.severity, finding.code, finding.message)
    });
    shown.collect()
}

#[track_caller]
fn check(kind: &str, spec: &str, expected: &[&str]) {
    let found = found(kind, spec);
    assert_eq!(found.len(), expected.len(), "{spec}: {found:#?}");
    for (finding, part) in found.iter().zip(expected) {
        part.split(" … ").for_each(|part| assert!(finding.contains(part), "{spec}: {part:?} is not in {finding}"));
    }
}

#[test]
fn a_field_that_istio_has_dropped_is_a_warning_and_names_its_successor() {
    let outliers = |fields: &str| format!("host: a, trafficPolicy: {{outlierDetection: {{{fields}}}}}");
    let warning = "warning no-effect: `spec.trafficPolicy.outlierDetection.consecutiveErrors`: has no effect here, and none \
                   in Istio either (write `consecutive5xxErrors` or `consecutiveGatewayErrors`)";
    check("DestinationRule", &outliers("consecutiveErrors: 1"), &[warning]);
    check("DestinationRule", &outliers("consecutive5xxErrors: 1"), &[]);
}

#[test]
fn a_warmup_may_begin_slowly() {
    let warmup = |aggression: &str| {
        format!("host: a, trafficPolicy: {{loadBalancer: {{warmup: {{duration: 30s, aggression: {aggression}}}}}}}")
    };
    check("DestinationRule", &warmup("0.5"), &[]);
    check("DestinationRule", &warmup("2"), &[]);
    check("DestinationRule", &warmup("0"), &["error out-of-range … aggression is not above 0"]);
    check("DestinationRule", &warmup("-1"), &["error out-of-range"]);
}

/// A misspelt weight has one finding, which names it.
#[test]
fn a_misspelt_weight_is_the_only_mistake() {
    let routes = |weight: &str| {
        format!(
            "hosts: [a], http: [{{route: [{{destination: {{host: a}}, {weight}: 90}}, {{destination: {{host: b}}, {weight}: 10}}]}}]"
        )
    };
    check("VirtualService", &routes("weight"), &[]);
    check("VirtualService", &routes("wieght"), &["unknown-field … did you mean `weight`", "unknown-field"]);
    check("VirtualService", &routes("weight").replace("90", "0").replace("10", "0"), &["all weights are zero"]);
}

/// What no proxy here and none of Istio's reads has its reason; only what Kubernetes does is called a cluster's.
#[test]
fn what_has_no_effect_has_a_reason() {
    use evenkeel_api::decode::{Decode, Status};
    use evenkeel_api::{Kind, istio};
    let kinds = Kind::ALL.iter().filter(|kind| kind.is_supported() && kind.group().ends_with("istio.io"));
    let schemas = kinds.map(|kind| (kind.as_str(), kind.schema()));
    let settings =
        [("MeshConfig", istio::MeshConfig::schema()), ("ProxyConfig", <istio::ProxyConfig as Decode>::schema())];
    for (name, schema) in schemas.chain(settings) {
        crate::tables::walk(name, &schema, &mut |path, fields| {
            let unexplained = fields.iter().filter(|field| field.status == Status::Inert && field.note.is_empty());
            let names: Vec<&str> = unexplained.map(|field| field.name).filter(|name| !STATUS.contains(name)).collect();
            assert!(names.is_empty(), "{path}: {names:?}");
        });
    }
}

/// What controllers write.
const STATUS: [&str; 5] = ["status", "conditions", "validationMessages", "observedGeneration", "reason"];

#[test]
fn settings_that_agents_read_are_not_called_unknown() {
    let check = |name: &str, expected: &str| {
        let text = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\n\
             data: {{mesh: 'defaultConfig: {{proxyMetadata: {{{name}: \"x\"}}}}'}}\n"
        );
        let (_, found) = evenkeel_api::load(&[("a.yaml".into(), text.into())]);
        let messages: Vec<&str> = found.iter().map(|finding| finding.message.as_str()).collect();
        assert!(messages.len() == 1 && messages[0].contains(expected), "{name}: {messages:?}");
    };
    for name in ["FILE_MOUNTED_CERTS", "OUTPUT_CERTS", "CA_ADDR", "CA_ROOT_CA"] {
        check(name, "an agent reads it when it starts");
    }
    check("ISTIO_META_X", "node metadata only");
    check("ANYTHING", "no setting of the agent has this name");
}
