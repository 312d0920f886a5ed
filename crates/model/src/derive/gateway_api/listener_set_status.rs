//! The status of a ListenerSet.

use std::sync::Arc;

use evenkeel_api::Object;
use evenkeel_api::gateway_api::ListenerSet;

use super::super::tracking::Cx;
use super::listener_sets::{Unattached, listed, parent_of};
use super::listener_status::Judge;
use super::listeners::set_name;
use crate::Condition;
use crate::gateway_api_status::{ListenerSetStatus, ListenerStatus};

/// The status of a ListenerSet; `None`: its Gateway does not exist, or is another controller's.
pub(super) fn status(cx: &Cx<'_>, object: &Arc<Object>, set: &ListenerSet) -> Option<ListenerSetStatus> {
    match listeners(cx, object, set) {
        Ok(listeners) => Some(ListenerSetStatus { conditions: conditions(&listeners), listeners }),
        Err(Unattached::NotAllowed) => {
            let message = "`allowedListeners` of the Gateway does not take it";
            let conditions = ["Accepted", "Programmed"].map(|kind| Condition::fails(kind, "NotAllowed", message));
            Some(ListenerSetStatus { conditions: conditions.to_vec(), listeners: Vec::new() })
        }
        Err(Unattached::NoGateway | Unattached::Missing | Unattached::NotOurs) => None,
    }
}

/// Whether a ListenerSet is accepted at this Gateway.
pub(super) fn is_attached(cx: &Cx<'_>, object: &Arc<Object>, set: &ListenerSet, gateway: &Object) -> bool {
    let is_parent = parent_of(cx, object, set).is_ok_and(|parent| std::ptr::eq(&**parent.object, gateway));
    is_parent && listeners(cx, object, set).is_ok_and(|listeners| listeners.iter().any(is_served))
}

fn listeners(cx: &Cx<'_>, object: &Arc<Object>, set: &ListenerSet) -> Result<Vec<ListenerStatus>, Unattached> {
    let parent = parent_of(cx, object, set)?;
    let spec = &parent.gateway.spec;
    let judge = Judge { cx, object, gateway: parent.object, spec, prefix: set_name(&object.name) };
    let all = listed(cx, parent.object, parent.gateway);
    let own = all.iter().filter(|listed| Arc::ptr_eq(listed.owned.object, object));
    Ok(own.map(|listed| judge.listener(listed.owned.listener, listed.conflict.as_ref())).collect())
}

fn is_served(listener: &ListenerStatus) -> bool {
    listener.conditions.iter().any(|own| own.kind == "Programmed" && own.holds)
}

/// The set as a whole is accepted if one of its listeners is served.
fn conditions(listeners: &[ListenerStatus]) -> Vec<Condition> {
    let invalid = listeners.iter().filter(|listener| !is_served(listener));
    let invalid: Vec<String> = invalid.map(|listener| format!("`{}`", listener.name)).collect();
    let message = format!("not served: the listeners {}", invalid.join(", "));
    if invalid.is_empty() {
        return vec![
            Condition::holds("Accepted", "Accepted", "the listeners are valid"),
            Condition::holds("Programmed", "Programmed", "the proxies of the Gateway have the listeners"),
        ];
    }
    if invalid.len() < listeners.len() {
        return vec![
            Condition::holds("Accepted", "ListenersNotValid", &message),
            Condition::holds("Programmed", "Programmed", message),
        ];
    }
    ["Accepted", "Programmed"].map(|kind| Condition::fails(kind, "ListenersNotValid", &message)).to_vec()
}
