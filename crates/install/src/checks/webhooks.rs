//! The webhooks' configurations, and the certificates by which the API server calls the webhooks.

use serde_json::Value;
use x509_parser::pem::Pem;

use super::picture::{Picture, label, list, name};
use super::{Check, Verdict, must, none_of, should};

const GROUP: &str = "webhooks";
const PAGE: &str = "docs/install.md#webhooks";
/// A root that ends earlier should be replaced now.
const ROOT_LEFT_DAYS: i64 = 60;

pub(super) const CHECKS: &[Check] = &[
    Check { group: GROUP, name: "the injector is configured", is_early: false, hint: PAGE, run: injector },
    Check { group: GROUP, name: "the injector has roots", is_early: false, hint: PAGE, run: injector_roots },
    Check {
        group: GROUP,
        name: "all webhooks of the revision have the same roots",
        is_early: false,
        hint: PAGE,
        run: same_roots,
    },
    Check { group: GROUP, name: "the roots are those of the mesh", is_early: false, hint: PAGE, run: mesh_roots },
    Check { group: GROUP, name: "the roots can be read and are valid", is_early: false, hint: PAGE, run: roots_valid },
    Check { group: GROUP, name: "the roots are valid for 60 days", is_early: false, hint: PAGE, run: roots_last },
    Check {
        group: GROUP,
        name: "the injector calls the revision's Service",
        is_early: false,
        hint: PAGE,
        run: service,
    },
    Check {
        group: GROUP,
        name: "Pods are refused while the injector does not answer",
        is_early: false,
        hint: PAGE,
        run: injector_fails,
    },
    Check { group: GROUP, name: "the injector leaves the system out", is_early: false, hint: PAGE, run: leaves_out },
    Check { group: GROUP, name: "only one injector is the default", is_early: false, hint: PAGE, run: one_default },
    Check { group: GROUP, name: "revision tags name a revision", is_early: false, hint: PAGE, run: tags },
    Check { group: GROUP, name: "validation is configured", is_early: false, hint: PAGE, run: validator },
    Check { group: GROUP, name: "validation has roots", is_early: false, hint: PAGE, run: validator_roots },
    Check { group: GROUP, name: "validation answers", is_early: false, hint: PAGE, run: validator_fails },
];

const MUTATING: &str = "MutatingWebhookConfiguration";
const VALIDATING: &str = "ValidatingWebhookConfiguration";

fn the_injector(picture: &Picture) -> Result<&Value, String> {
    let name = format!("istio-sidecar-injector{}", picture.suffix());
    picture.named(MUTATING, &name)?.ok_or_else(|| format!("there is no MutatingWebhookConfiguration {name}"))
}

fn the_validator(picture: &Picture) -> Result<&Value, String> {
    let name = format!("istio-validator{}-{}", picture.suffix(), picture.namespace);
    picture.named(VALIDATING, &name)?.ok_or_else(|| format!("there is no ValidatingWebhookConfiguration {name}"))
}

fn webhooks(configuration: &Value) -> &[Value] {
    list(configuration, "/webhooks")
}

fn bundle(webhook: &Value) -> &str {
    webhook.pointer("/clientConfig/caBundle").and_then(Value::as_str).unwrap_or_default()
}

/// Names of webhooks of a configuration that are wrong.
fn wrong(configuration: &Value, is_wrong: impl Fn(&Value) -> bool) -> Vec<String> {
    let names = webhooks(configuration).iter().filter(|webhook| is_wrong(webhook));
    names.map(|webhook| webhook["name"].as_str().unwrap_or_default().to_owned()).collect()
}

fn injector(picture: &Picture) -> Result<Verdict, String> {
    Ok(the_injector(picture).map_or_else(Verdict::Failed, |_| Verdict::Passed))
}

fn injector_roots(picture: &Picture) -> Result<Verdict, String> {
    Ok(none_of(wrong(the_injector(picture)?, |webhook| bundle(webhook).is_empty()), |names| {
        Verdict::Failed(format!("{names}: the control plane has not written caBundle"))
    }))
}

fn of_revision(picture: &Picture) -> Result<Vec<&Value>, String> {
    let all = picture.all(MUTATING)?.iter().chain(picture.all(VALIDATING)?);
    let configurations = all.filter(|found| label(found, "istio.io/rev") == Some(picture.revision()));
    Ok(configurations.flat_map(webhooks).collect())
}

fn same_roots(picture: &Picture) -> Result<Verdict, String> {
    let mut bundles: Vec<&str> = of_revision(picture)?.into_iter().map(bundle).collect();
    bundles.sort_unstable();
    bundles.dedup();
    Ok(must(bundles.len() <= 1, || format!("they have {} different ones", bundles.len())))
}

/// The roots of the injector, PEM.
fn roots(picture: &Picture) -> Result<Vec<u8>, String> {
    use base64::Engine as _;
    let bundle = webhooks(the_injector(picture)?).first().map(bundle).filter(|bundle| !bundle.is_empty());
    let bundle = bundle.ok_or("there are no roots yet")?;
    base64::prelude::BASE64_STANDARD.decode(bundle).map_err(|error| format!("caBundle is no Base64: {error}"))
}

fn mesh_roots(picture: &Picture) -> Result<Verdict, String> {
    let map = picture.named("ConfigMap", "istio-ca-root-cert")?;
    let known =
        map.and_then(|map| map["data"]["root-cert.pem"].as_str()).ok_or("there is no ConfigMap istio-ca-root-cert")?;
    let found = String::from_utf8_lossy(&roots(picture)?).trim().to_owned();
    Ok(must(found == known.trim(), || "caBundle differs from the ConfigMap istio-ca-root-cert".to_owned()))
}

/// How many days the root that ends first is still valid.
fn days_left(picture: &Picture) -> Result<i64, String> {
    let pem = roots(picture)?;
    let mut left = Vec::new();
    for block in Pem::iter_from_buffer(&pem) {
        let block = block.map_err(|error| format!("no PEM: {error}"))?;
        let certificate = block.parse_x509().map_err(|error| format!("no certificate: {error}"))?;
        left.push((certificate.validity().not_after.timestamp() - picture.now_s) / 86_400);
    }
    left.into_iter().min().ok_or_else(|| "caBundle has no certificate".to_owned())
}

fn roots_valid(picture: &Picture) -> Result<Verdict, String> {
    roots(picture)?;
    Ok(match days_left(picture) {
        Ok(days) => must(days >= 0, || format!("one is invalid since {} days", -days)),
        Err(reason) => Verdict::Failed(reason),
    })
}

fn roots_last(picture: &Picture) -> Result<Verdict, String> {
    let days = days_left(picture)?;
    Ok(should(days >= ROOT_LEFT_DAYS, || {
        format!("one ends in {days} days: evenkeel ca shows how to change to a new one")
    }))
}

fn service(picture: &Picture) -> Result<Verdict, String> {
    let own = picture.control_plane();
    let elsewhere = wrong(the_injector(picture)?, |webhook| {
        let of = |field: &str| webhook.pointer(&format!("/clientConfig/service/{field}")).and_then(Value::as_str);
        of("name") != Some(&own) || of("namespace") != Some(&picture.namespace)
    });
    Ok(none_of(elsewhere, Verdict::Failed))
}

fn injector_fails(picture: &Picture) -> Result<Verdict, String> {
    let open = wrong(the_injector(picture)?, |webhook| webhook["failurePolicy"] != "Fail");
    Ok(none_of(open, |names| Verdict::Warning(format!("{names}: Pods would start without a sidecar"))))
}

fn leaves_out(picture: &Picture) -> Result<Verdict, String> {
    let catching = wrong(the_injector(picture)?, |webhook| {
        let rules = list(webhook, "/namespaceSelector/matchExpressions").iter();
        let mut rules =
            rules.filter(|rule| rule["key"] == "kubernetes.io/metadata.name" && rule["operator"] == "NotIn");
        !rules.any(|rule| list(rule, "/values").iter().any(|value| *value == picture.namespace.as_str()))
    });
    Ok(none_of(catching, |names| {
        Verdict::Warning(format!("{names}: a control plane that waits for its own webhook cannot start"))
    }))
}

fn one_default(picture: &Picture) -> Result<Verdict, String> {
    let is_default = |found: &&Value| {
        let mut rules = webhooks(found).iter().flat_map(|webhook| list(webhook, "/namespaceSelector/matchExpressions"));
        rules.any(|rule| rule["key"] == "istio-injection" && rule["operator"] == "In")
    };
    let defaults: Vec<_> = picture.all(MUTATING)?.iter().filter(is_default).map(name).collect();
    Ok(must(defaults.len() <= 1, || format!("{} would inject the same Pods", defaults.join(" and "))))
}

fn tags(picture: &Picture) -> Result<Verdict, String> {
    let all = picture.all(MUTATING)?;
    let exists = |revision: &str| {
        all.iter().any(|found| label(found, "istio.io/rev") == Some(revision) && label(found, "istio.io/tag").is_none())
    };
    let dangling = all.iter().filter_map(|found| {
        let (tag, revision) = (label(found, "istio.io/tag")?, label(found, "istio.io/rev")?);
        (!exists(revision)).then(|| format!("{tag} names {revision}"))
    });
    Ok(none_of(dangling.collect(), Verdict::Failed))
}

fn validator(picture: &Picture) -> Result<Verdict, String> {
    Ok(the_validator(picture).map_or_else(Verdict::Warning, |_| Verdict::Passed))
}

fn validator_roots(picture: &Picture) -> Result<Verdict, String> {
    Ok(none_of(wrong(the_validator(picture)?, |webhook| bundle(webhook).is_empty()), Verdict::Failed))
}

fn validator_fails(picture: &Picture) -> Result<Verdict, String> {
    let open = wrong(the_validator(picture)?, |webhook| webhook["failurePolicy"] != "Fail");
    Ok(none_of(open, |names| {
        Verdict::Warning(format!("{names}: failurePolicy is not Fail, as the webhook is not known to answer yet"))
    }))
}
