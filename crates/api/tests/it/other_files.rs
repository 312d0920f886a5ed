//! Files of other tools beside manifests: they are named, and stop nothing.

use evenkeel_base::Severity;

/// The findings of a file as `severity code`, without those about single fields, and its objects.
fn read(name: &str, text: &str) -> (Vec<String>, Vec<String>) {
    let (objects, found) = evenkeel_api::load(&[(name.into(), text.into())]);
    let matters = found.iter().filter(|finding| finding.severity != Severity::Info || finding.code != "no-effect");
    let found = matters.map(|finding| format!("{} {}", finding.severity, finding.code)).collect();
    (found, objects.iter().map(ToString::to_string).collect())
}

#[track_caller]
fn check(name: &str, text: &str, found: &[&str], objects: &[&str]) {
    let expected = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    assert_eq!(read(name, text), (expected(found), expected(objects)), "{name}\n{text}");
}

const SKIPPED: &[&str] = &["info no-kubernetes-object"];
const TEMPLATE: &[&str] = &["warning template"];
const SERVICE: &str =
    r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "NAME"}, "spec": {"ports": [{"port": 80}]}}"#;

#[test]
fn json_may_have_a_value_on_each_line() {
    check("prices.json", "{\"shelf\": 1, \"price\": 4}\n{\"shelf\": 2, \"price\": 5}\n", SKIPPED, &[]);
    check("prices.json", "\n{\"a\": 1}\n[2]\n\"three\"\n", SKIPPED, &[]);
    check("prices.json", "[{\"shelf\": 1}, {\"shelf\": 2}]\n", SKIPPED, &[]);
    let two = [SERVICE.replace("NAME", "a"), SERVICE.replace("NAME", "b")];
    check("two.json", &two.join("\n"), &[], &["Service default/a", "Service default/b"]);
    // Only what is JSON throughout is read so, and mistakes stay mistakes.
    check("two.json", &format!("{}\n{{\"a\": 1", two[0]), &["error yaml-syntax"], &["Service default/a"]);
    let twice = SERVICE.replace("NAME", "a").replace("\"kind\"", "\"kind\": \"Pod\", \"kind\"");
    assert!(read("two.json", &format!("{twice}\n{}", two[1])).0.iter().any(|found| found.starts_with("error ")));
    // The line of a finding is that of the file.
    let misspelt = two[1].replace("ports", "prots");
    let (_, found) = evenkeel_api::load(&[("two.json".into(), format!("{}\n{misspelt}\n", two[0]).into())]);
    let finding = found.iter().find(|finding| finding.code == "unknown-field").expect("a finding");
    assert_eq!(finding.span.line, 2);
}

const CHART: &str = "\
apiVersion: v1
kind: Service
metadata:
  name: {{ .Values.name }}
  {{- if .Values.label }}
  labels: {tier: {{ .Values.label }}}
  {{- end }}
spec: {ports: [{port: 80}]}
";

#[test]
fn templates_are_named_and_skipped() {
    check("service.yaml", CHART, TEMPLATE, &[]);
    let helm = |name: &str| {
        format!("apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{ports: [{{port: 80}}]}}\n")
    };
    check("service.yaml", &helm("'{{ include \"a.name\" . }}'"), TEMPLATE, &[]);
    check("service.yaml", "{{- if .Values.on }}\nkind: Service\n{{- end }}\n", TEMPLATE, &[]);
    check("service.yaml", &helm("{{ name }}"), TEMPLATE, &[]);
    check("service.yaml", &format!("{{% if on %}}\n{}{{% endif %}}\n", helm("a")), TEMPLATE, &[]);
    check(
        "service.yaml",
        &format!("#@ load(\"@ytt:data\", \"data\")\n{}", helm("#@ data.values.name\n ")),
        TEMPLATE,
        &[],
    );
    let (_, found) = evenkeel_api::load(&[("service.yaml".into(), CHART.into())]);
    let finding = found.iter().next().expect("a finding");
    assert!(finding.span.line == 4 && finding.message.contains("a template for Helm"), "{finding:?}");
    assert!(finding.help.as_deref().is_some_and(|help| help.contains("helm template")), "{finding:?}");
    // Braces are no mistake where they are text.
    let annotated = "apiVersion: v1\nkind: Namespace\nmetadata: {name: a, annotations: {x: '{{ .Values.x }}'}}\n";
    check("a.yaml", annotated, &[], &["Namespace a"]);
    // Other mistakes are not taken for a template.
    check("a.yaml", &helm("A_"), &["error bad-name"], &[]);
    check("a.yaml", &helm("[a"), &["error yaml-syntax"], &[]);
}

/// What a template would protect stays closed, as for any text that cannot be read.
#[test]
fn a_template_of_a_policy_closes() {
    let policy = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {namespace: shop, name: {{ .Values.name }}}\n";
    check("policy.yaml", policy, TEMPLATE, &["AuthorizationPolicy shop/policy.yaml:1"]);
}

#[test]
fn kustomizations_are_named_and_not_applied() {
    let kind = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n";
    check("kustomization.yaml", &format!("{kind}resources: [a.yaml]\n"), SKIPPED, &[]);
    check("kustomization.yaml", &format!("{kind}namespace: shop\nresources: [a.yaml]\n"), &["warning kustomize"], &[]);
    check("kustomization.yaml", "resources: [a.yaml]\n", &[SKIPPED[0], SKIPPED[0]], &[]);
    check("kustomization.yaml", "namePrefix: a-\n", &["info no-kubernetes-object", "warning kustomize"], &[]);
    check(
        "a.yaml",
        "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\npatches: []\n",
        &["warning kustomize"],
        &[],
    );
    let text = format!("{kind}patches: [{{path: p.yaml}}]\ncommonLabels: {{a: b}}\n");
    let (_, found) = evenkeel_api::load(&[("kustomization.yaml".into(), text.into())]);
    let finding = found.iter().next().expect("a finding");
    assert!(finding.span.line == 3 && finding.message.contains("`patches`, `commonLabels`"), "{finding:?}");
    assert!(finding.help.as_deref().is_some_and(|help| help.contains("kustomize build")), "{finding:?}");
}

#[test]
fn patches_are_the_files_that_a_kustomization_names_as_such() {
    let check = |text: &str, expected: &[&str]| {
        assert_eq!(evenkeel_api::patch_files(&"k/kustomization.yaml".into(), text), expected, "{text}");
    };
    check("resources: [a.yaml]\nnamespace: x\n", &[]);
    check("patches: [{path: ./a.yaml, target: {kind: Pod}}, {patch: 'x: y'}]", &["a.yaml"]);
    check("patchesStrategicMerge: [p/a.yaml, \"a: b\\nc: d\"]", &["p/a.yaml"]);
    check(
        "patchesJson6902: [{path: a.json}]\nreplacements: [{path: r.yaml}]\ntransformers: [t.yaml]",
        &["a.json", "r.yaml", "t.yaml"],
    );
    // What is outside is not Kustomize's to take, either.
    check("patches: [{path: ../a.yaml}, {path: /a.yaml}, {path: a//b.yaml}, {path: ''}]", &[]);
    check("patches: x\n", &[]);
    check("patches: [", &[]);
}

/// Settings of other programs with tags of their own, keys twice, or fields that objects have, too.
#[test]
fn settings_of_other_programs_are_skipped() {
    check("template.yaml", "Resources: {Bucket: {Name: !Sub \"${Stack}-x\"}}\n", SKIPPED, &[]);
    check("mkdocs.yml", "site: x\nemoji: !!python/name:a.b\n", SKIPPED, &[]);
    check("locale.json", "{\"a\": 1, \"a\": 2}\n", SKIPPED, &[]);
    check("values.yaml", "kind: Deployment\nmetadata: {annotations: {}}\nreplicas: 1\n", SKIPPED, &[]);
    check("dashboard.json", "{\"kind\": \"Dashboard\", \"metadata\": {\"name\": \"x\"}}\n", SKIPPED, &[]);
    // A mistake stays one in what is meant as an object.
    check("a.yaml", "kind: Service\nmetadata: {name: a}\nspec: {ports: [{port: 80}]}\n", &["error missing-field"], &[]);
    check("a.yaml", "metadata: {name: a}\nspec: {}\n", &["error missing-field", "error missing-field"], &[]);
    check(
        "a.yaml",
        "apiVersion: v1\nkind: Service\nmetadata: {name: a, name: b}\nspec: {ports: [{port: 80}]}\n",
        &["error duplicate-key"],
        &[],
    );
    check("a.yaml", "a: [\n", &["error yaml-syntax"], &[]);
    let policy = "kind: AuthorizationPolicy\nmetadata: {namespace: shop}\na: 1\na: 2\n";
    assert!(read("policy.yaml", policy).0.iter().any(|found| found.starts_with("error ")));
}

#[test]
fn texts_with_variables_are_templates() {
    let service = |port: &str| {
        format!("apiVersion: v1\nkind: Service\nmetadata: {{name: a}}\nspec:\n  ports:\n  - port: {port}\n")
    };
    check("service.yaml", &service("${PORT}"), TEMPLATE, &[]);
    check("service.yaml", &service("eighty"), &["error wrong-type"], &[]);
    // A script is none.
    let script = format!(
        "{}---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: s}}\ndata: {{run: \"echo ${{A}}\"}}\n",
        service("eighty")
    );
    assert_eq!(read("service.yaml", &script).0, ["error wrong-type"]);
}

/// Without a policy for TLS to backends, they would be called without it: they are closed instead.
#[test]
fn what_protects_connections_and_is_not_supported_closes() {
    let of = |kind: &str| {
        format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: {kind}\nmetadata: {{name: a}}\nspec: {{targetRefs: [{{group: '', kind: Service, name: web}}]}}\n"
        )
    };
    // Without its `validation` it is refused, and what it names is closed.
    check("a.yaml", &of("BackendTLSPolicy"), &["error missing-field"], &["BackendTLSPolicy default/a"]);
    let pool = "apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: a}\n";
    check("a.yaml", pool, &["warning unsupported-kind"], &[]);
}
