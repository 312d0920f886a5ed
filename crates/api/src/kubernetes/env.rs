//! Where a program's variables come from.

use crate::decode::Label;

object! {
    /// A variable of a program's environment.
    pub struct EnvVar {
        /// Its name.
        name: String = "name",
        /// Its value; empty if not given.
        value: Option<String> = "value",
        /// Where its value is found instead.
        value_from: Option<EnvVarSource> = "valueFrom",
    }
}

object! {
    /// Where the value of a variable is found.
    pub struct EnvVarSource {
        /// In the Pod.
        field_ref: Option<ObjectFieldSelector> = "fieldRef",
        /// In a container's resources.
        resource_field_ref: Option<ResourceFieldSelector> = "resourceFieldRef",
        /// In a ConfigMap.
        config_map_key_ref: Option<KeySelector> = "configMapKeyRef",
        /// In a Secret.
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
        /// What the value is divided by; 1 if not given.
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
        /// What stands before each name.
        prefix: Option<String> = "prefix",
        /// Which ConfigMap.
        config_map_ref: Option<ObjectReference> = "configMapRef",
        /// Which Secret.
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
    /// What a container asks for and may have.
    pub struct ResourceRequirements {
        /// What it may have.
        limits: std::collections::BTreeMap<String, crate::decode::Quantity> = "limits",
        /// What it asks for.
        requests: std::collections::BTreeMap<String, crate::decode::Quantity> = "requests",
    }
    inert: ["claims"];
}
