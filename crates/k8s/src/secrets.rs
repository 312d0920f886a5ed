//! How Secrets are watched: all of them; where RBAC forbids that, those of the namespaces in which objects name Secrets; where it forbids
//! that, too, those by name. A wider watch takes over as soon as it is allowed.

use std::collections::BTreeSet;

use evenkeel_api::Kind;

use crate::source::{Running, Supervisor};
use crate::watched::{MAX_SECRET_WATCHES, Selection, Watched};

impl Supervisor {
    /// Starts and ends the watches of Secrets beside that of all.
    pub(crate) fn select_secrets(&mut self) {
        let Some(all) = self.all_secrets() else { return };
        let resource = all.resource.clone();
        let is_forbidden = all.is_left_out();
        self.secrets_beyond = if is_forbidden { self.secrets_beyond } else { 0 };
        let wanted = if is_forbidden { self.narrower_secrets() } else { Vec::new() };
        let selections: BTreeSet<Selection> = wanted.iter().map(|watched| watched.selection.clone()).collect();
        let is_over = |selection: &Selection| {
            is_of_secrets(selection) && selection.namespace.is_some() && !selections.contains(selection)
        };
        let over: Vec<Selection> = self.running.keys().filter(|selection| is_over(selection)).cloned().collect();
        for selection in over {
            let Some(ended) = self.running.remove(&selection) else { continue };
            ended.task.abort();
            let others = self.running.values().filter(|running| is_of_secrets(&running.watched.selection));
            ended.target.hand_over(&others.map(|other| &other.target).collect::<Vec<_>>());
        }
        for watched in wanted {
            if !self.running.contains_key(&watched.selection) {
                tracing::info!(kind = %watched.selection, "Secrets are watched where objects name them, because RBAC forbids more");
                self.begin(watched, resource.clone());
            }
        }
    }

    /// Whether narrower watches stand for one that RBAC forbids.
    pub(crate) fn is_replaced(&self, running: &Running) -> bool {
        let selection = &running.watched.selection;
        let is_narrower = |other: &Selection| match &selection.namespace {
            None => other.namespace.is_some(),
            Some(_) => other.namespace == selection.namespace && selection.is_wider_than_a_name() && other != selection,
        };
        is_of_secrets(selection) && self.running.keys().any(|other| is_of_secrets(other) && is_narrower(other))
    }

    fn all_secrets(&self) -> Option<&Running> {
        let is_it = |running: &&Running| {
            let selection = &running.watched.selection;
            is_of_secrets(selection) && selection.namespace.is_none()
        };
        self.running.values().find(is_it)
    }

    /// What is watched instead of all Secrets.
    fn narrower_secrets(&mut self) -> Vec<Watched> {
        let mut wanted = Vec::new();
        for (namespace, names) in self.secret_names.needed() {
            let of_namespace = Watched::secrets(&namespace, None);
            let is_forbidden = self.running.get(&of_namespace.selection).is_some_and(Running::is_left_out);
            wanted.push(of_namespace);
            if is_forbidden {
                wanted.extend(names.iter().map(|name| Watched::secrets(&namespace, Some(name))));
            }
        }
        let beyond = wanted.len().saturating_sub(MAX_SECRET_WATCHES);
        if beyond > 0 {
            // What is watched stays: objects of one namespace must not take the Secrets of others away. The sort is stable.
            wanted.sort_by_key(|watched| !self.running.contains_key(&watched.selection));
            wanted.truncate(MAX_SECRET_WATCHES);
        }
        if beyond > self.secrets_beyond {
            tracing::error!(
                beyond,
                limit = MAX_SECRET_WATCHES,
                "too many Secrets to watch by name; the others are left out"
            );
        }
        self.secrets_beyond = beyond;
        wanted
    }
}

fn is_of_secrets(selection: &Selection) -> bool {
    selection.group.is_empty() && selection.kind == Kind::Secret.as_str()
}
