//! ConfigMaps, of which only Istio's own is looked at.

use std::collections::BTreeMap;

use evenkeel_base::Spanned;

object! {
    /// Named texts. `istio` in the root namespace holds the mesh's configuration under `mesh`.
    pub struct ConfigMap {
        /// The texts.
        data: BTreeMap<String, Spanned<String>> = "data",
    }
    inert: ["binaryData", "immutable"];
}
