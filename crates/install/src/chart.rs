//! The files of the chart `charts/evenkeel`, as they are when the program is built.

/// A template of the chart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Template {
    /// Its name below `templates/`.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

macro_rules! templates {
    ($($name:literal),* $(,)?) => {
        &[$(Template { name: $name, text: include_str!(concat!("../../../charts/evenkeel/templates/", $name)) }),*]
    };
}

/// Definitions that the other templates use.
pub(crate) const HELPERS: Template =
    Template { name: "_helpers.tpl", text: include_str!("../../../charts/evenkeel/templates/_helpers.tpl") };

/// Templates of objects.
pub(crate) const TEMPLATES: &[Template] = templates![
    "crds.yaml",
    "serviceaccount.yaml",
    "clusterrole.yaml",
    "role.yaml",
    "secretroles.yaml",
    "configmap.yaml",
    "service.yaml",
    "deployment.yaml",
    "autoscale.yaml",
    "poddisruptionbudget.yaml",
    "networkpolicy.yaml",
    "mutatingwebhook.yaml",
    "revisiontags.yaml",
    "validatingadmissionpolicy.yaml",
    "validatingwebhook.yaml",
];

/// What is printed after an installation.
pub(crate) const NOTES: Template =
    Template { name: "NOTES.txt", text: include_str!("../../../charts/evenkeel/templates/NOTES.txt") };

/// Its values, unless the user says otherwise.
pub(crate) const VALUES: &str = include_str!("../../../charts/evenkeel/values.yaml");

/// Which values it accepts.
pub(crate) const SCHEMA: &str = include_str!("../../../charts/evenkeel/values.schema.json");

/// Its description, `Chart.yaml`.
pub(crate) const CHART: &str = include_str!("../../../charts/evenkeel/Chart.yaml");
