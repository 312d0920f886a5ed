//! Environment variables of containers.

use crate::decode::Label;

object! {
    /// A variable of a program's environment.
    pub struct EnvVar {
        /// Its name.
        name: String = "name",
        /// Its value; empty if not given.
        value: Option<String> = "value",
        /// The source of its value.
        value_from: Option<EnvVarSource> = "valueFrom",
    }
}

object! {
    /// The source of a variable's value.
    pub struct EnvVarSource {
        /// A field of the Pod.
        field_ref: Option<ObjectFieldSelector> = "fieldRef",
        /// A resource of a container.
        resource_field_ref: Option<ResourceFieldSelector> = "resourceFieldRef",
        /// A text of a ConfigMap.
        config_map_key_ref: Option<KeySelector> = "configMapKeyRef",
        /// A text of a Secret.
        secret_key_ref: Option<KeySelector> = "secretKeyRef",
    }
    later: ["fileKeyRef"];
}

object! {
    /// A field of the Pod.
    pub struct ObjectFieldSelector {
        /// E.g. `metadata.name`, `metadata.labels['app']`, `status.podIP`.
        field_path: String = "fieldPath",
    }
    inert: ["apiVersion"];
}

object! {
    /// A resource of a container.
    pub struct ResourceFieldSelector {
        /// E.g. `limits.cpu`.
        resource: String = "resource",
        /// Its own container if not given.
        container_name: Option<String> = "containerName",
        /// The divisor of the value; 1 if not given.
        divisor: Option<crate::decode::Quantity> = "divisor",
    }
}

object! {
    /// A text of a ConfigMap or Secret.
    pub struct KeySelector {
        /// The object's name.
        name: String = "name",
        /// The text's name.
        key: String = "key",
        /// Whether it may be missing: then the variable is not set.
        optional: bool = "optional",
    }
}

object! {
    /// All texts of a ConfigMap or Secret as variables.
    pub struct EnvFromSource {
        /// The prefix of each name.
        prefix: Option<String> = "prefix",
        /// The ConfigMap.
        config_map_ref: Option<ObjectReference> = "configMapRef",
        /// The Secret.
        secret_ref: Option<ObjectReference> = "secretRef",
    }
}

object! {
    /// A ConfigMap or Secret.
    pub struct ObjectReference {
        /// Its name.
        name: Label = "name",
        /// Whether it may be missing.
        optional: bool = "optional",
    }
}

object! {
    /// Resource requests and limits of a container.
    pub struct ResourceRequirements {
        /// Limits on connections and requests.
        limits: std::collections::BTreeMap<String, crate::decode::Quantity> = "limits",
        /// Requests.
        requests: std::collections::BTreeMap<String, crate::decode::Quantity> = "requests",
    }
    inert: ["claims"];
}
