//! Stored objects of `evenkeel apply`, as users know them.

use evenkeel_api::{APPLIED_ANNOTATION, APPLIED_FROM_ANNOTATION};
use evenkeel_base::APPLIED_FROM;
use serde_json::Value;

/// What a text shows of an applied object: the file that it was applied from, and the object without the annotations with
/// which it is stored. `None` if the text is no such object.
pub(super) fn as_applied(text: &str) -> Option<(String, String)> {
    let mut object: Value = serde_json::from_str(text).ok()?;
    let metadata = object.get_mut("metadata")?.as_object_mut()?;
    let annotations = metadata.get_mut("annotations")?.as_object_mut()?;
    let origin: Value = serde_json::from_str(annotations.get(APPLIED_FROM_ANNOTATION)?.as_str()?).ok()?;
    annotations.retain(|name, _| name != APPLIED_ANNOTATION && name != APPLIED_FROM_ANNOTATION);
    if annotations.is_empty() {
        metadata.shift_remove("annotations");
    }
    Some((format!("{APPLIED_FROM}{}", origin["file"].as_str()?), serde_json::to_string_pretty(&object).ok()? + "\n"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_applied_object_is_that_of_its_file() {
        let stored = |more: Value| {
            let from = json!({ "file": "/deny.yaml", "at": {} }).to_string();
            let mut object = json!({ "metadata": { "name": "a", "annotations": { APPLIED_ANNOTATION: "x", APPLIED_FROM_ANNOTATION: from } } });
            object["metadata"]["annotations"]
                .as_object_mut()
                .expect("a mapping")
                .extend(more.as_object().cloned().unwrap_or_default());
            as_applied(&object.to_string())
                .map(|(file, text)| (file, serde_json::from_str::<Value>(&text).expect("JSON")))
        };
        let file = "applied from /deny.yaml".to_owned();
        assert_eq!(stored(json!({})), Some((file.clone(), json!({ "metadata": { "name": "a" } }))));
        let own = json!({ "metadata": { "name": "a", "annotations": { "b": "c" } } });
        assert_eq!(stored(json!({ "b": "c" })), Some((file, own)));
        assert_eq!((as_applied("kind: Service\n"), as_applied("{}")), (None, None));
    }
}
