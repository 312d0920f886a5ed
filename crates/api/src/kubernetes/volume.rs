//! Volumes of Pods.

use evenkeel_base::yaml::{Node, Scalar, ScalarType, Value};

use crate::decode::{Context, Decode, Label, Schema};

object! {
    /// A directory that containers may mount.
    pub struct Volume {
        /// Its name.
        name: Label = "name",
        /// The texts of a ConfigMap as files.
        config_map: Option<ConfigMapVolume> = "configMap",
        /// The texts of a Secret as files.
        secret: Option<SecretVolume> = "secret",
        /// Empty at the start of the replica.
        empty_dir: Option<EmptyDir> = "emptyDir",
    }
    later: [
        "hostPath", "persistentVolumeClaim", "projected", "downwardAPI", "ephemeral", "csi", "nfs", "iscsi", "local",
        "image", "awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "fc", "flexVolume", "flocker",
        "gcePersistentDisk", "gitRepo", "glusterfs", "photonPersistentDisk", "portworxVolume", "quobyte", "rbd",
        "scaleIO", "storageos", "vsphereVolume",
    ];
}

object! {
    /// The texts of a ConfigMap as files.
    pub struct ConfigMapVolume {
        /// The object's name.
        name: String = "name",
        /// The selected texts and their files; all if empty.
        items: Vec<KeyToPath> = "items",
        /// The files' mode; 0644 if not given.
        default_mode: Option<FileMode> = "defaultMode",
        /// Whether it may be missing.
        optional: bool = "optional",
    }
}

object! {
    /// The texts of a Secret as files.
    pub struct SecretVolume {
        /// The object's name.
        secret_name: String = "secretName",
        /// The selected texts and their files; all if empty.
        items: Vec<KeyToPath> = "items",
        /// The files' mode; 0644 if not given.
        default_mode: Option<FileMode> = "defaultMode",
        /// Whether it may be missing.
        optional: bool = "optional",
    }
}

object! {
    /// One text as a file.
    pub struct KeyToPath {
        /// The text's name.
        key: String = "key",
        /// The file, relative to the volume.
        path: String = "path",
        /// Its mode; the volume's if not given.
        mode: Option<FileMode> = "mode",
    }
}

object! {
    /// An empty directory.
    pub struct EmptyDir {
    }
    inert: ["medium", "sizeLimit"];
}

object! {
    /// The path at which a container has a volume.
    pub struct VolumeMount {
        /// The volume.
        name: String = "name",
        /// The place.
        mount_path: String = "mountPath",
        /// The mounted part of the volume; all of it if not given.
        sub_path: Option<String> = "subPath",
        /// Whether it is read-only.
        read_only: bool = "readOnly",
    }
    later: ["subPathExpr"];
    inert: ["mountPropagation", "recursiveReadOnly"];
}

/// The permissions of a file. `0400` is octal as in Kubernetes, whose parser follows YAML 1.1; YAML 1.2 would read a
/// decimal number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileMode(pub u32);

impl Decode for FileMode {
    fn schema() -> Schema {
        Schema::Integer { min: 0, max: 0o777 }
    }

    fn decode(node: &Node, cx: &mut Context) -> Option<Self> {
        let Value::Scalar(Scalar { ty: ScalarType::Int(value), text, .. }) = &node.value else {
            cx.wrong_type(node, &Self::schema());
            return None;
        };
        let octal =
            text.strip_prefix('0').filter(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()));
        let mode = match octal {
            Some(digits) => u32::from_str_radix(digits, 8).ok(),
            None => u32::try_from(*value).ok(),
        };
        let mode = mode.filter(|mode| *mode <= 0o777).map(Self);
        if mode.is_none() {
            let help = "expected permissions from 0 to 0777, such as 0400 or 256";
            cx.error("out-of-range", &node.span, format!("`{text}` is not a file mode"), help);
        }
        mode
    }
}
