//! The environment variables of a program, from its containers.

use std::collections::BTreeMap;

use evenkeel_api::Kind;
use evenkeel_api::kubernetes::{Container, EnvVar, EnvVarSource, KeySelector, PodTemplate, ResourceFieldSelector};

use super::texts::{AllTexts, Texts};
use crate::pods::Pod;

/// A variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Its content.
    pub value: Value,
}

/// The value of a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A text in which `$(NAME)` stands for an earlier variable.
    Expanded(String),
    /// A literal text.
    Text(String),
    /// A property of the replica that is known only when it is made.
    Field(Field),
}

/// A field of a Pod that differs between replicas, or is found on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// `metadata.name`.
    Name,
    /// `metadata.uid`.
    Uid,
    /// `status.podIP`, `status.podIPs`.
    Address,
    /// `status.hostIP`, `status.hostIPs`.
    HostAddress,
    /// `spec.nodeName`.
    Node,
}

/// Reads the variables of all containers in order; the error says what is missing.
pub(super) fn read(namespace: &str, template: &PodTemplate, texts: &AllTexts) -> Result<Vec<Variable>, String> {
    let mut variables = Vec::new();
    for container in &template.spec.containers {
        let reader = Reader { namespace, template, container, texts };
        for source in &container.env_from {
            let prefix = source.prefix.as_deref().unwrap_or_default();
            let refs = [(Kind::ConfigMap, &source.config_map_ref), (Kind::Secret, &source.secret_ref)];
            for (kind, reference) in refs {
                let Some(reference) = reference else { continue };
                let all = reader.object(kind, &reference.name, reference.optional)?;
                for (name, bytes) in all.into_iter().flatten() {
                    let value = Value::Text(String::from_utf8_lossy(bytes).into_owned());
                    variables.push(Variable { name: format!("{prefix}{name}"), value });
                }
            }
        }
        for variable in &container.env {
            let value = reader.value(variable)?;
            variables.extend(value.map(|value| Variable { name: variable.name.clone(), value }));
        }
    }
    Ok(variables)
}

struct Reader<'a> {
    namespace: &'a str,
    template: &'a PodTemplate,
    container: &'a Container,
    texts: &'a AllTexts,
}

impl<'a> Reader<'a> {
    /// `None`: an optional value is missing.
    fn value(&self, variable: &EnvVar) -> Result<Option<Value>, String> {
        let Some(source) = &variable.value_from else {
            return Ok(Some(Value::Expanded(variable.value.clone().unwrap_or_default())));
        };
        match source {
            EnvVarSource { field_ref: Some(field), .. } => self.field(&field.field_path).map(Some),
            EnvVarSource { resource_field_ref: Some(resource), .. } => self.resource(resource).map(Some),
            EnvVarSource { config_map_key_ref: Some(key), .. } => self.key(Kind::ConfigMap, key),
            EnvVarSource { secret_key_ref: Some(key), .. } => self.key(Kind::Secret, key),
            // The mistake was reported when the file was read.
            _ => Ok(None),
        }
    }

    fn key(&self, kind: Kind, key: &KeySelector) -> Result<Option<Value>, String> {
        let texts = self.object(kind, &key.name, key.optional)?;
        match texts.and_then(|texts| texts.get(&key.key)) {
            Some(bytes) => Ok(Some(Value::Text(String::from_utf8_lossy(bytes).into_owned()))),
            None if key.optional => Ok(None),
            None => Err(format!("the {kind} {}/{} has no `{}`", self.namespace, key.name, key.key)),
        }
    }

    fn object(&self, kind: Kind, name: &str, optional: bool) -> Result<Option<&'a Texts>, String> {
        match self.texts.get(kind, self.namespace, name) {
            None if !optional => Err(format!("there is no {kind} {}/{name}", self.namespace)),
            found => Ok(found),
        }
    }

    fn field(&self, path: &str) -> Result<Value, String> {
        let metadata = self.template.metadata.as_ref();
        let subscript = |of: &str| path.strip_prefix(of)?.strip_prefix("['")?.strip_suffix("']");
        if let Some(name) = subscript("metadata.labels") {
            let label = metadata.and_then(|metadata| metadata.labels.get(name));
            return Ok(Value::Text(label.cloned().unwrap_or_default()));
        }
        if let Some(name) = subscript("metadata.annotations") {
            let annotation = metadata.and_then(|metadata| metadata.annotations.get(name));
            return Ok(Value::Text(annotation.map(|value| value.value.clone()).unwrap_or_default()));
        }
        Ok(match path {
            "metadata.name" => Value::Field(Field::Name),
            "metadata.namespace" => Value::Text(self.namespace.to_owned()),
            "metadata.uid" => Value::Field(Field::Uid),
            "spec.nodeName" => Value::Field(Field::Node),
            "spec.serviceAccountName" => Value::Text(self.template.spec.service_account().to_owned()),
            "status.podIP" | "status.podIPs" => Value::Field(Field::Address),
            "status.hostIP" | "status.hostIPs" => Value::Field(Field::HostAddress),
            other => return Err(format!("a Pod has no field `{other}` that a variable could hold")),
        })
    }

    /// The value in units of the divisor, rounded up as in Kubernetes. A resource without a limit has the size of the
    /// machine.
    fn resource(&self, wanted: &ResourceFieldSelector) -> Result<Value, String> {
        let containers = &self.template.spec.containers;
        let container = match &wanted.container_name {
            None => self.container,
            Some(name) => containers
                .iter()
                .find(|container| &**container.name == name)
                .ok_or_else(|| format!("there is no container `{name}` to take `{}` from", wanted.resource))?,
        };
        let resources = container.resources.as_ref();
        let found = match wanted.resource.split_once('.') {
            Some(("limits", name)) => resources.and_then(|all| all.limits.get(name)).map(|value| (name, value)),
            Some(("requests", name)) => {
                let asked = resources.and_then(|all| all.requests.get(name).or_else(|| all.limits.get(name)));
                asked.map(|value| (name, value))
            }
            _ => return Err(format!("`{}` is not a resource such as `limits.cpu`", wanted.resource)),
        };
        let said =
            |text: &str| quantity(text).ok_or_else(|| format!("`{text}` is not a quantity such as `500m` or `64Mi`"));
        let value = match found {
            Some((_, value)) => said(&value.0)?,
            None if wanted.resource.ends_with(".cpu") => {
                std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64)
            }
            None => 0.0,
        };
        let divisor = wanted.divisor.as_ref().map_or(Ok(1.0), |divisor| said(&divisor.0))?;
        let divisor = if divisor > 0.0 { divisor } else { 1.0 };
        Ok(Value::Text(format!("{:.0}", (value / divisor).ceil())))
    }
}

/// A quantity of Kubernetes: a number with a decimal or binary suffix.
fn quantity(text: &str) -> Option<f64> {
    const SUFFIXES: [(&str, f64); 14] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("Ei", 1_152_921_504_606_846_976.0),
        ("n", 1e-9),
        ("u", 1e-6),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
    ];
    let suffixed = SUFFIXES.iter().find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor)));
    let (number, factor) = suffixed.unwrap_or((text, 1.0));
    number.parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0).map(|value| value * factor)
}

/// The variables of one replica; of two with the same name the later one wins.
pub fn of_replica(variables: &[Variable], pod: &Pod) -> Vec<(String, String)> {
    let mut known: BTreeMap<&str, String> = BTreeMap::new();
    let mut all = Vec::new();
    for Variable { name, value } in variables {
        let value = match value {
            Value::Text(text) => text.clone(),
            Value::Expanded(text) => expand(text, &known),
            Value::Field(Field::Name) => pod.name.clone(),
            Value::Field(Field::Uid) => uid(pod),
            Value::Field(Field::Address) => pod.address.to_string(),
            Value::Field(Field::HostAddress) => crate::addresses::BRIDGE_ADDRESS.to_string(),
            Value::Field(Field::Node) => node_name(),
        };
        known.insert(name, value.clone());
        all.push((name.clone(), value));
    }
    all
}

/// Expands `$(NAME)` to the variable's value and `$$` to a dollar; unknown names stay as they are.
fn expand(text: &str, known: &BTreeMap<&str, String>) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        rest = after;
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
            continue;
        }
        let reference = rest.strip_prefix('(').and_then(|rest| rest.split_once(')'));
        match reference.and_then(|(name, after)| Some((known.get(name)?, after))) {
            Some((value, after)) => {
                out.push_str(value);
                rest = after;
            }
            None => out.push('$'),
        }
    }
    out + rest
}

/// A text in the form of a UUID that is the same in every run.
fn uid(pod: &Pod) -> String {
    let name = format!("{}/{}", pod.namespace, pod.name);
    let hash = |part: u8| {
        name.bytes()
            .chain([part])
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    };
    let (first, second) = (hash(1), hash(2));
    format!(
        "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
        first >> 32,
        (first >> 16) & 0xffff,
        first & 0xfff,
        second >> 52,
        second & 0xffff_ffff_ffff
    )
}

fn node_name() -> String {
    nix::unistd::gethostname().map_or_else(|_| "localhost".to_owned(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use evenkeel_api::Resource;

    use super::*;

    const OBJECTS: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, namespace: shop}\ndata: {COLOUR: blue, mode: fast}\n---\n\
        apiVersion: v1\nkind: Secret\nmetadata: {name: keys, namespace: shop}\ndata: {token: c2VjcmV0}\nstringData: {plain: text}\n---\n";

    /// The variables of a container with these fields.
    fn variables(fields: &str) -> Result<Vec<String>, String> {
        let text = format!(
            "{OBJECTS}apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web, namespace: shop}}\nspec:\n  \
             selector: {{matchLabels: {{app: web}}}}\n  template:\n    metadata: {{labels: {{app: web}}, annotations: {{note: hi}}}}\n    \
             spec: {{serviceAccountName: me, containers: [{{name: web, {fields}}}]}}\n"
        );
        let (objects, found) = evenkeel_api::load(&[("app.yaml".into(), text.into())]);
        assert!(found.is_empty(), "{found}");
        let texts = AllTexts::of(&objects);
        let Some(Resource::Deployment(deployment)) = objects.last().map(|object| &object.resource) else {
            panic!("the last one is a Deployment")
        };
        let pod = Pod {
            name: "web-5d-x".to_owned(),
            namespace: "shop".to_owned(),
            workload: "web".to_owned(),
            labels: BTreeMap::new(),
            service_account: "me".to_owned(),
            address: Ipv4Addr::new(10, 244, 1, 2),
            ports: Vec::new(),
            in_mesh: true,
            is_gateway: false,
            proxy: Default::default(),
        };
        let variables = read("shop", &deployment.spec.template, &texts)?;
        Ok(of_replica(&variables, &pod).into_iter().map(|(name, value)| format!("{name}={value}")).collect())
    }

    #[track_caller]
    fn check(fields: &str, expected: &[&str]) {
        let expected: Vec<String> = expected.iter().map(|text| (*text).to_owned()).collect();
        assert_eq!(variables(fields), Ok(expected), "{fields}");
    }

    #[test]
    fn variables_hold_what_kubernetes_puts_into_them() {
        let field = |path: &str| format!("env: [{{name: A, valueFrom: {{fieldRef: {{fieldPath: \"{path}\"}}}}}}]");
        check(&field("metadata.name"), &["A=web-5d-x"]);
        check(&field("metadata.namespace"), &["A=shop"]);
        check(&field("metadata.labels['app']"), &["A=web"]);
        check(&field("metadata.annotations['note']"), &["A=hi"]);
        check(&field("spec.serviceAccountName"), &["A=me"]);
        check(&field("status.podIP"), &["A=10.244.1.2"]);
        let key = |of: &str| format!("env: [{{name: A, valueFrom: {{{of}}}}}]");
        check(&key("configMapKeyRef: {name: settings, key: mode}"), &["A=fast"]);
        check(&key("secretKeyRef: {name: keys, key: token}"), &["A=secret"]);
        check("envFrom: [{configMapRef: {name: settings}, prefix: X_}]", &["X_COLOUR=blue", "X_mode=fast"]);
        check(
            "envFrom: [{secretRef: {name: keys}}], env: [{name: plain, value: own}]",
            &["plain=text", "token=secret", "plain=own"],
        );
        let resources = "resources: {limits: {cpu: 1500m, memory: 64Mi}}";
        let resource =
            |what: &str| format!("{resources}, env: [{{name: A, valueFrom: {{resourceFieldRef: {{{what}}}}}}}]");
        check(&resource("resource: limits.cpu"), &["A=2"]);
        check(&resource("resource: limits.cpu, divisor: 1m"), &["A=1500"]);
        check(&resource("resource: requests.memory, divisor: 1Mi"), &["A=64"]);
        let earlier = "env: [{name: A, value: a}, {name: B, value: \"$(A)-$$(A)-$(C)-$\"}]";
        check(earlier, &["A=a", "B=a-$(A)-$(C)-$"]);
    }

    #[test]
    fn what_may_be_missing_leaves_no_variable_and_what_may_not_is_said() {
        let key = |of: &str| format!("env: [{{name: A, valueFrom: {{{of}}}}}]");
        check(&key("configMapKeyRef: {name: settings, key: none, optional: true}"), &[]);
        check(&key("secretKeyRef: {name: none, key: none, optional: true}"), &[]);
        check("envFrom: [{configMapRef: {name: none, optional: true}}]", &[]);
        let refused = |fields: &str, expected: &str| assert_eq!(variables(fields), Err(expected.to_owned()));
        refused(&key("configMapKeyRef: {name: settings, key: none}"), "the ConfigMap shop/settings has no `none`");
        refused(&key("secretKeyRef: {name: none, key: a}"), "there is no Secret shop/none");
        refused("envFrom: [{secretRef: {name: none}}]", "there is no Secret shop/none");
        refused(
            &key("fieldRef: {fieldPath: status.phase}"),
            "a Pod has no field `status.phase` that a variable could hold",
        );
    }
}
