//! A release of the chart: its objects, with the user's values.

use evenkeel_base::yaml;
use serde_json::{Value, json};

use crate::chart::{CHART, HELPERS, NOTES, TEMPLATES, Template};
use crate::order::in_install_order;
use crate::template;
use crate::values::{Values, ValuesError};

/// Name of the release, in the label `app.kubernetes.io/instance`.
const NAME: &str = "evenkeel";

/// Why there are no objects.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The values.
    #[error(transparent)]
    Values(#[from] ValuesError),
    /// A template refuses them.
    #[error("{0}")]
    Template(String),
}

/// What is installed where.
#[derive(Debug, Clone)]
pub struct Release {
    /// Namespace of the control plane.
    pub namespace: String,
    /// Who applies the objects, in the label `app.kubernetes.io/managed-by`.
    pub manager: String,
    /// Whether it is not installed yet. What the control plane owns later is set only then.
    pub is_first: bool,
    /// The user's values over those of the chart.
    pub values: Values,
}

/// The objects of a release.
#[derive(Debug, Clone)]
pub struct Rendered {
    /// Objects in the order in which they are applied.
    pub objects: Vec<Value>,
    /// What to do next.
    pub notes: String,
}

impl Release {
    /// Renders all templates of the chart.
    pub fn render(&self) -> Result<Rendered, InstallError> {
        let root = self.root()?;
        let mut objects = Vec::new();
        for template in TEMPLATES {
            let text = render(template, &root)?;
            objects.extend(documents(template, &text)?);
        }
        in_install_order(&mut objects);
        Ok(Rendered { objects, notes: render(&NOTES, &root)? })
    }

    /// What templates see.
    fn root(&self) -> Result<Value, InstallError> {
        let chart = documents(&Template { name: "Chart.yaml", text: CHART }, CHART)?;
        let of_chart = |name: &str| chart.first().and_then(|chart| chart.get(name)).cloned().unwrap_or_default();
        Ok(json!({
            "Values": self.values.checked()?,
            "Release": {
                "Name": NAME,
                "Namespace": self.namespace,
                "Service": self.manager,
                "IsInstall": self.is_first,
                "IsUpgrade": !self.is_first,
            },
            "Chart": {"Name": of_chart("name"), "Version": of_chart("version"), "AppVersion": of_chart("appVersion")},
        }))
    }
}

fn render(template: &Template, root: &Value) -> Result<String, InstallError> {
    // Templates use the definitions of each other, as in Helm.
    let others: Vec<Template> = TEMPLATES.iter().filter(|other| other.name != template.name).copied().collect();
    let shared = [vec![HELPERS], others].concat();
    template::render(template, &shared, root).map_err(InstallError::Template)
}

fn documents(template: &Template, text: &str) -> Result<Vec<Value>, InstallError> {
    let (nodes, found) = yaml::parse(&template.name.into(), text);
    if found.has_errors() {
        return Err(InstallError::Template(format!("templates/{}: {found}", template.name)));
    }
    Ok(nodes.iter().filter(|node| !node.is_null()).map(yaml::Node::to_json).collect())
}
