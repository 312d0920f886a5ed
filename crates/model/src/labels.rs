//! Labels of objects, and selectors of labels.

use std::collections::BTreeMap;

/// Labels of an object, or a selector that requires all of them.
pub type Labels = BTreeMap<String, String>;

/// Whether all labels of a selector are present. The empty selector selects everything.
pub fn selects(selector: &Labels, labels: &Labels) -> bool {
    selector.iter().all(|(name, value)| labels.get(name) == Some(value))
}

/// An object with labels that selectors can match.
pub trait Selectable {
    /// Whether all labels of `selector` are present. The empty selector selects everything.
    fn selected_by(&self, selector: &Labels) -> bool;
}

impl Selectable for Labels {
    fn selected_by(&self, selector: &Labels) -> bool {
        selects(selector, self)
    }
}
