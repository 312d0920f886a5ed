//! ConfigMaps: Istio's own, and those that programs get as variables or files.

use std::collections::BTreeMap;

use evenkeel_base::Spanned;

use super::Bytes;

object! {
    /// Named texts. `istio` in the root namespace holds the mesh's configuration under `mesh`.
    pub struct ConfigMap {
        /// The texts.
        data: BTreeMap<String, Spanned<String>> = "data",
        /// Bytes, in base64.
        binary_data: BTreeMap<String, Bytes> = "binaryData",
    }
    inert: ["immutable"];
}

impl ConfigMap {
    /// The key of certificates that are trusted.
    pub const ROOTS: &str = "ca.crt";
}
