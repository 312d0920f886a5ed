//! The answer for people: one block per proxy, a line per fact, wrapped at 100 columns.

use std::fmt::Write as _;

use crate::answer::{Answer, Cluster, Considered, Hop, Outcome, Policy, Verdict, written};
use crate::place::Source;

/// Width of the text, in columns.
const WIDTH: usize = 100;
/// Column at which facts begin.
const FACTS: usize = 14;
/// Most rules after the one that applied that are listed; the others are counted.
const MAX_LATER: usize = 3;
/// Most endpoints that are listed; the others are counted.
const MAX_ENDPOINTS: usize = 6;

/// ANSI styles; empty without colour.
#[derive(Debug, Clone, Copy)]
struct Style {
    bold: &'static str,
    dim: &'static str,
    good: &'static str,
    bad: &'static str,
    warn: &'static str,
    end: &'static str,
}

const PLAIN: Style = Style { bold: "", dim: "", good: "", bad: "", warn: "", end: "" };
const COLOUR: Style =
    Style { bold: "\x1b[1m", dim: "\x1b[2m", good: "\x1b[32m", bad: "\x1b[31m", warn: "\x1b[33m", end: "\x1b[0m" };

impl Answer {
    /// The answer for people.
    pub fn to_text(&self, colour: bool) -> String {
        let mut out = Text { style: if colour { COLOUR } else { PLAIN }, out: String::new() };
        out.head(self);
        for hop in &self.hops {
            out.hop(hop);
        }
        for note in &self.notes {
            out.blank();
            out.wrapped("", "note: ", note);
        }
        out.out
    }
}

struct Text {
    style: Style,
    out: String,
}

impl Text {
    fn head(&mut self, answer: &Answer) {
        let Style { bold, dim, end, .. } = self.style;
        let call = &answer.call;
        self.line(&format!("{bold}{}{end}  {dim}from{end} {}", call.to, call.from));
        let (mark, colour, text) = self.outcome(&answer.verdict);
        self.line(&format!("{colour}{mark} {text}{end}"));
        self.wrapped(dim, "  ", &answer.verdict.reason);
        if let Some(source) = answer.hops.iter().rev().find_map(deciding) {
            self.line(&format!("  {dim}{}{end}", at(source)));
        }
        self.blank();
        self.fact("address", &[format!("{}, {}", call.address, call.resolved)]);
    }

    fn outcome(&self, verdict: &Verdict) -> (&'static str, &'static str, String) {
        let Style { good, bad, warn, .. } = self.style;
        let status = verdict.status.map(|status| format!(" {status}")).unwrap_or_default();
        let flag = verdict.response_flag.map(|flag| format!(" ({flag})")).unwrap_or_default();
        match verdict.outcome {
            Outcome::Forward if verdict.status.is_none() => ("✓", good, "forwarded".to_owned()),
            Outcome::Forward => ("✗", bad, format!("fails with{status}{flag}")),
            Outcome::Direct => ("•", warn, format!("answered by the proxy with{status}{flag}")),
            Outcome::Redirect => ("↪", warn, format!("redirected with{status}")),
            Outcome::Deny => (
                "✗",
                bad,
                format!(
                    "denied{}",
                    if status.is_empty() { ": the connection is closed".to_owned() } else { format!(" with{status}") }
                ),
            ),
            Outcome::Reset => ("✗", bad, format!("the connection is closed{flag}")),
        }
    }

    fn hop(&mut self, hop: &Hop) {
        let Style { bold, dim, end, .. } = self.style;
        let proxy = &hop.proxy;
        let role = match proxy.side {
            "outbound" => "the client's sidecar",
            "inbound" => "the server's sidecar",
            _ => "gateway",
        };
        self.blank();
        let title = format!("── {bold}{}.{}{end} {dim}{role}{end} ", proxy.pod, proxy.namespace);
        let used = 3 + proxy.pod.len() + 1 + proxy.namespace.len() + 1 + role.chars().count() + 1;
        self.line(&format!("{title}{dim}{}{end}", "─".repeat(WIDTH.saturating_sub(used))));
        self.fact("arrives", std::slice::from_ref(&hop.arrives));
        if let Some(listener) = &hop.listener {
            let chain = hop.filter_chain.as_ref().map(|chain| format!(", filter chain {chain}")).unwrap_or_default();
            self.fact("listener", &[format!("{listener}{chain}")]);
        }
        if let Some(peer) = &hop.peer_authentication {
            let source = peer.source.as_ref().map_or_else(|| "the default".to_owned(), at);
            self.fact("mutual TLS", &[format!("{}  {dim}{source}{end}", peer.mode)]);
        }
        self.policies(hop);
        if let Some(host) = hop.virtual_host.as_ref().filter(|_| proxy.side != "inbound") {
            self.fact("virtual host", std::slice::from_ref(host));
        }
        self.route(hop);
        self.considered(&hop.considered);
        self.destination(hop);
        for filter in &hop.filters {
            self.fact("filter", std::slice::from_ref(filter));
        }
        for note in &hop.notes {
            self.fact("note", std::slice::from_ref(note));
        }
        if hop.verdict.outcome != Outcome::Forward || hop.verdict.status.is_some() {
            let (mark, colour, text) = self.outcome(&hop.verdict);
            let details =
                hop.verdict.details.as_ref().map(|details| format!("  {dim}{details}{end}")).unwrap_or_default();
            self.fact("outcome", &[format!("{colour}{mark} {text}{end}{details}"), hop.verdict.reason.clone()]);
        }
    }

    fn route(&mut self, hop: &Hop) {
        let Style { dim, end, .. } = self.style;
        let Some(route) = hop.route.as_ref().filter(|route| hop.proxy.side != "inbound" || route.source.is_some())
        else {
            return;
        };
        let name = match (&*route.name, &route.source) {
            ("", None) => "made by the mesh".to_owned(),
            ("", Some(source)) => source.object.clone(),
            (name, None) => format!("{name}, made by the mesh"),
            (name, Some(source)) => format!("{name} of {}", source.object),
        };
        let place = route.source.as_ref().and_then(Source::position).map(|place| format!("  {dim}{place}{end}"));
        self.fact("route", &[format!("{name}{}", place.unwrap_or_default())]);
    }

    fn considered(&mut self, all: &[Considered]) {
        let Style { dim, end, .. } = self.style;
        let later = all.iter().filter(|rule| rule.later).count();
        let mut shown_later = 0;
        let mut lines = Vec::new();
        for rule in all {
            if rule.later {
                shown_later += 1;
                if shown_later > MAX_LATER {
                    continue;
                }
            }
            let name = if rule.name.is_empty() { rule.source.object.clone() } else { rule.name.clone() };
            let place = rule.source.position().unwrap_or_default();
            lines.push(format!("{name}: {}  {dim}{place}{end}", rule.reason));
        }
        if later > MAX_LATER {
            lines.push(format!("{dim}and {} more rules after it{end}", later - MAX_LATER));
        }
        if !lines.is_empty() {
            self.fact("not applied", &lines);
        }
    }

    fn policies(&mut self, hop: &Hop) {
        let denied = hop.verdict.outcome == Outcome::Deny;
        let lines: Vec<String> = hop.policies.iter().flat_map(|policy| self.policy(policy, denied)).collect();
        match lines.is_empty() {
            true if hop.proxy.side == "inbound" => self.fact("policies", &["none: every caller may call".to_owned()]),
            true => {}
            false => self.fact("policies", &lines),
        }
    }

    fn policy(&self, policy: &Policy, denied: bool) -> Vec<String> {
        let Style { dim, good, bad, warn, end, .. } = self.style;
        let is_deny = policy.action == "DENY";
        let rule = policy.rule.map(|rule| format!(" rule {rule}")).unwrap_or_default();
        let (mark, colour, says) = match (policy.matches, is_deny) {
            (true, true) => ("✗", bad, format!("matches{rule}")),
            (true, false) => ("✓", good, format!("matches{rule}")),
            (false, true) => ("·", dim, "does not match".to_owned()),
            (false, false) if denied => ("✗", warn, "does not match".to_owned()),
            (false, false) => ("·", dim, "does not match".to_owned()),
        };
        let mut lines = vec![format!(
            "{colour}{mark}{end} {} {} {says}  {dim}{}{end}",
            policy.action,
            policy.source.object,
            policy.source.position().unwrap_or_default()
        )];
        // That a DENY policy does not match needs no reason.
        if !policy.matches && !is_deny {
            for missing in &policy.missing {
                let rule = policy.rule.map(|rule| format!("rules[{rule}].")).unwrap_or_default();
                lines.push(format!(
                    "    {rule}{} asks for {}, the call has {}",
                    missing.field, missing.wanted, missing.got
                ));
            }
            if policy.rule.is_none() {
                lines.push("    it has no rules, which match nothing".to_owned());
            }
        }
        lines
    }

    fn destination(&mut self, hop: &Hop) {
        let Style { dim, end, .. } = self.style;
        let total: u32 = hop.clusters.iter().map(|cluster| cluster.weight).sum();
        let mut lines = Vec::new();
        for cluster in &hop.clusters {
            lines.extend(self.cluster(cluster, hop.clusters.len() > 1, total));
        }
        if !lines.is_empty() {
            self.fact("cluster", &lines);
        }
        let rewrites = &hop.rewrites;
        let mut changes = Vec::new();
        changes.extend(rewrites.path.iter().map(|path| format!("path becomes {path}")));
        changes.extend(rewrites.authority.iter().map(|authority| format!("authority becomes {authority}")));
        changes.extend(rewrites.headers.iter().cloned());
        if !changes.is_empty() {
            self.fact("rewrites", &changes);
        }
        for mirror in &hop.mirrors {
            self.fact("mirror", &[format!("{} % of requests to {}", mirror.percentage, mirror.cluster)]);
        }
        if let Some(transport) = &hop.transport {
            let mode = match transport.mode {
                "mtls" => "mutual TLS",
                "tls" => "TLS",
                _ => "plain text",
            };
            let place =
                transport.source.as_ref().map(|source| format!("  {dim}{}{end}", at(source))).unwrap_or_default();
            let mut lines = vec![format!("{mode}, {}{place}", transport.reason)];
            lines.extend(transport.identity.iter().map(|identity| format!("presents {identity}")));
            if !transport.accepts.is_empty() {
                lines.push(format!("accepts {}", transport.accepts.join(", ")));
            }
            lines.extend(transport.sni.iter().map(|sni| format!("SNI {sni}")));
            self.fact("transport", &lines);
        }
        if hop.proxy.side != "inbound" && hop.virtual_host.is_some() && !hop.clusters.is_empty() {
            let timeout =
                hop.timeout.map_or_else(|| "no timeout".to_owned(), |timeout| format!("timeout {}", written(timeout)));
            let retries = match &hop.retries {
                None => "no retries".to_owned(),
                Some(retries) => {
                    let each = retries.per_try_timeout.map(|limit| format!(", {} each try", written(limit)));
                    format!("{} retries on {}{}", retries.attempts, retries.on.join(", "), each.unwrap_or_default())
                }
            };
            self.fact("limits", &[timeout, retries]);
        }
    }

    fn cluster(&self, cluster: &Cluster, several: bool, total: u32) -> Vec<String> {
        let Style { bold, dim, bad, end, .. } = self.style;
        let share = match several {
            true => format!("{:>5.1} %  ", f64::from(cluster.weight) * 100.0 / f64::from(total.max(1))),
            false => String::new(),
        };
        let (open, close) = if several && cluster.chosen { (bold, end) } else { ("", "") };
        let missing = if cluster.exists { String::new() } else { format!("  {bad}does not exist{end}") };
        let mut lines = vec![format!("{share}{open}{}{close}{missing}", cluster.name)];
        if several && !cluster.chosen {
            return lines;
        }
        lines.extend(cluster.sources.iter().map(|source| format!("  {dim}from {}{end}", at(source))));
        for endpoint in cluster.endpoints.iter().take(MAX_ENDPOINTS) {
            let workload = endpoint.workload.as_ref().map(|name| format!("  {name}")).unwrap_or_default();
            let locality =
                if endpoint.locality.is_empty() { String::new() } else { format!("  {dim}{}{end}", endpoint.locality) };
            let health = if endpoint.healthy { "" } else { "  unhealthy" };
            lines.push(format!("  → {}{workload}{locality}{health}", endpoint.address));
        }
        match cluster.endpoints.len() {
            0 if cluster.exists => lines.push(format!("  {bad}no endpoints{end}")),
            count if count > MAX_ENDPOINTS => lines.push(format!("  {dim}and {} more{end}", count - MAX_ENDPOINTS)),
            _ => {}
        }
        lines
    }

    fn fact(&mut self, label: &str, lines: &[String]) {
        let Style { dim, end, .. } = self.style;
        for (at, line) in lines.iter().enumerate() {
            let label = if at == 0 { label } else { "" };
            let first = format!("{dim}{label:<width$}{end}", width = FACTS);
            self.flow(&first, line, FACTS);
        }
    }

    fn wrapped(&mut self, style: &str, indent: &str, text: &str) {
        let end = if style.is_empty() { "" } else { self.style.end };
        self.flow(indent, &format!("{style}{text}{end}"), indent.len());
    }

    /// Writes words after `first`, and further lines indented by as many columns.
    fn flow(&mut self, first: &str, text: &str, indent: usize) {
        let extra = text.chars().take_while(|letter| *letter == ' ').count();
        let mut line = format!("{first}{}", " ".repeat(extra));
        let (mut column, mut is_new, mut spaces) = (indent + extra, true, 0);
        for word in text.trim_start().split(' ') {
            if word.is_empty() {
                // Two spaces divide columns.
                spaces += 1;
                continue;
            }
            let width = visible(word);
            if !is_new && column + 1 + spaces + width > WIDTH {
                self.line(&line);
                line = " ".repeat(indent + extra + 2);
                (column, is_new) = (indent + extra + 2, true);
            }
            if !is_new {
                line.push_str(&" ".repeat(1 + spaces));
                column += 1 + spaces;
            }
            line.push_str(word);
            column += width;
            (is_new, spaces) = (false, 0);
        }
        self.line(&line);
    }

    fn line(&mut self, text: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.out, "{}", text.trim_end());
    }

    fn blank(&mut self) {
        self.out.push('\n');
    }
}

/// The object that decided against the call, or the rule that serves it.
fn deciding(hop: &Hop) -> Option<&Source> {
    match hop.verdict.outcome {
        Outcome::Deny => {
            let closest = || {
                hop.policies.iter().filter(|policy| policy.action == "ALLOW").min_by_key(|policy| policy.missing.len())
            };
            hop.policies.iter().find(|policy| policy.decides).or_else(closest).map(|policy| &policy.source)
        }
        Outcome::Reset => hop.peer_authentication.as_ref()?.source.as_ref(),
        Outcome::Direct | Outcome::Redirect => hop.route.as_ref()?.source.as_ref(),
        Outcome::Forward => None,
    }
}

/// `OBJECT, FILE:LINE`.
fn at(source: &Source) -> String {
    match source.position() {
        Some(position) => format!("{}, {position}", source.object),
        None => source.object.clone(),
    }
}

/// The columns that a word takes: escape sequences take none.
fn visible(word: &str) -> usize {
    let mut columns = 0;
    let mut letters = word.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\x1b' => drop(letters.by_ref().find(|letter| *letter == 'm')),
            _ => columns += 1,
        }
    }
    columns
}
