//! ProxyConfigs.

use std::sync::Arc;

use evenkeel_api::{Kind, Object, Resource};
use evenkeel_base::{Diagnostic, Diagnostics};

use super::objects::note_idle_selector;
use super::policies::selector;
use super::run::Run;
use super::step::Results;
use super::tracking::Cx;
use super::{renew, reuse_if_equal};
use crate::proxy_rule::ProxyRule;
use crate::{List, Snapshot};

/// All ProxyConfigs, in the order of precedence.
#[derive(Debug, Default)]
pub(super) struct Table(List<ProxyRule>);

pub(super) fn all_step(run: &mut Run<'_>) -> bool {
    let rules = run.read(all);
    let table = &mut run.tables.proxy_rules;
    let old = std::mem::take(&mut table.0);
    let before = |rule: &ProxyRule| old.iter().find(|old| old.name == rule.name && old.namespace == rule.namespace);
    table.0 = rules.into_iter().map(|rule| reuse_if_equal(before(&rule), rule)).collect();
    true
}

impl Results for Table {
    fn publish(&mut self, next: &mut Snapshot) -> bool {
        renew(&mut next.proxy_rules, Some(self.0.iter().cloned()))
    }
}

fn all(cx: &Cx<'_>, found: &mut Diagnostics) -> Vec<ProxyRule> {
    let mut rules: Vec<ProxyRule> = Vec::new();
    for object in cx.objects(Kind::ProxyConfig) {
        let Some(rule) = rule(object) else { continue };
        note_idle_selector(cx, object, &rule.selector, found);
        let same = |other: &&ProxyRule| other.namespace == rule.namespace && other.selector == rule.selector;
        match rules.iter().find(same) {
            Some(first) => {
                let message = format!("{object} is ignored: `{}` already applies to the same workloads", first.name);
                let finding = Diagnostic::warning("overridden", object.origin.clone(), message);
                let finding = finding.about(object.reference()).with_help("merge the two");
                found.push(finding.with_related(first.origin.clone(), "this one applies"));
            }
            None => rules.push(rule),
        }
    }
    rules
}

fn rule(object: &Arc<Object>) -> Option<ProxyRule> {
    let Resource::ProxyConfig(written) = &object.resource else { return None };
    let spec = written.spec.as_ref();
    Some(ProxyRule {
        name: object.name.clone(),
        namespace: object.namespace.clone(),
        selector: selector(spec.and_then(|spec| spec.selector.as_ref())),
        config: spec.map(|spec| spec.as_proxy_config()).unwrap_or_default(),
        origin: object.origin.clone(),
    })
}
