//! The protection of a workload as text, for people.

use super::answer::{ClosedService, Policy, Port, Protection};
use crate::columns::{columns, filled};
use crate::place::Source;

impl Protection {
    /// The text.
    pub fn to_text(&self) -> String {
        self.to_text_within(usize::MAX)
    }

    /// The text, for a terminal of this width.
    pub fn to_text_within(&self, width: usize) -> String {
        let proxy = match self.proxy {
            "none" => "no proxy",
            proxy => proxy,
        };
        let mut out = format!("{}.{}  {proxy}  {}\n", self.workload, self.namespace, self.identity);
        let mut rows = vec![["PORT", "PROTOCOL", "SERVICE", "MUTUAL TLS", "SAID BY"].map(str::to_owned).to_vec()];
        rows.extend(self.ports.iter().map(port));
        out.push_str(&format!("\n{}", columns(&rows, width)));
        let mut rows = vec![["ACTION", "POLICY", "SCOPE", "RULES", "WRITTEN AT"].map(str::to_owned).to_vec()];
        rows.extend(self.request_authentications.iter().map(|one| {
            let rules = one.issuers.len().to_string();
            vec!["(tokens)".to_owned(), one.source.object.clone(), one.scope.to_owned(), rules, place(&one.source)]
        }));
        rows.extend(self.policies.iter().map(policy));
        match rows.len() {
            1 => out.push_str("\nno policy applies\n"),
            _ => out.push_str(&format!("\nin the order in which they are asked\n{}", columns(&rows, width))),
        }
        let notes = self.request_authentications.iter().flat_map(|one| &one.notes);
        for note in notes.chain(self.policies.iter().flat_map(|policy| &policy.notes)) {
            out.push_str(&format!("note: {note}\n"));
        }
        out.push_str("\nwho may call\n");
        // Ports with the same answer are shown together.
        let mut told: Vec<(&[String], Vec<String>)> = Vec::new();
        for port in &self.ports {
            let name = port.port.map_or_else(|| "other ports".to_owned(), |port| format!("port {port}"));
            match told.iter_mut().find(|(who, _)| *who == port.who_may_call) {
                Some((_, names)) => names.push(name),
                None => told.push((&port.who_may_call, vec![name])),
            }
        }
        for (who, names) in told {
            out.push_str(&format!("  {}\n", names.join(", ")));
            who.iter().for_each(|line| out.push_str(&format!("    {line}\n")));
        }
        if !self.closed_services.is_empty() {
            out.push_str("\nclosed to its calls, because there are no waypoints\n");
            out.push_str(&columns(&self.closed_services.iter().map(closed_service).collect::<Vec<_>>(), width));
        }
        out.push_str("\nnot protected\n");
        if self.not_protected.is_empty() {
            out.push_str("  nothing that these objects could protect\n")
        } else {
            self.not_protected.iter().for_each(|gap| out.push_str(&format!("  ✗ {gap}\n")))
        }
        if let Some(running) = &self.running {
            let says = if running.agrees { "✓ its proxies enforce these rules" } else { "✗ its proxies differ" };
            out.push_str(&format!("\nrunning\n  {says}\n"));
            running.differs.iter().for_each(|line| out.push_str(&format!("    {line}\n")));
        }
        // Text comes from files: control characters are for the terminal only if this program wrote them.
        filled(&out, width).chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
    }
}

fn place(source: &Source) -> String {
    source.position().unwrap_or_default()
}

fn closed_service(closed: &ClosedService) -> Vec<String> {
    let (service, policy) = (&closed.service, &closed.policy);
    vec![format!("✗ {}, {}", service.object, place(service)), format!("{}, {}", policy.object, place(policy))]
}

fn port(port: &Port) -> Vec<String> {
    let source = match (&port.source, port.captured) {
        (_, false) => "(not captured)".to_owned(),
        (Some(source), true) => format!("{}, {}", source.object, place(source)),
        (None, true) => "(default)".to_owned(),
    };
    vec![
        port.port.map_or_else(|| "other".to_owned(), |port| port.to_string()),
        port.protocol.clone(),
        port.service.clone().unwrap_or_default(),
        port.mutual_tls.clone(),
        source,
    ]
}

fn policy(policy: &Policy) -> Vec<String> {
    let action = match (&policy.unsupported, policy.dry_run, policy.refused) {
        (Some(_), _, _) => "unknown".to_owned(),
        (None, true, _) => format!("{} (dry run)", policy.action),
        (None, false, true) => format!("{} (refused)", policy.action),
        (None, false, false) => policy.action.clone(),
    };
    let rules = policy.rules.len().to_string();
    vec![action, policy.source.object.clone(), policy.scope.to_owned(), rules, place(&policy.source)]
}
