//! The answer for people: one block per proxy, a line per fact, wrapped at 100 columns or at those of the terminal.

use std::fmt::Write as _;

use crate::answer::{Answer, Cluster, Considered, Hop, Outcome, Policy, ProxyName, Running, Verdict, written};
use crate::place::Source;

/// Greatest width of the text, in columns.
const MAX_WIDTH: usize = 100;
/// A narrower terminal wraps lines itself.
const MIN_WIDTH: usize = 40;
/// Column at which facts begin.
const FACTS: usize = 14;
/// Maximum number of listed rules after the one that applied; the others are counted.
const MAX_LATER: usize = 3;
/// Maximum number of listed endpoints; the others are counted.
const MAX_ENDPOINTS: usize = 6;

/// Styles; empty without colour. They are characters of the private use area, which become ANSI sequences when a line
/// is written, after control characters that come from files and requests were escaped.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    pub bold: &'static str,
    pub dim: &'static str,
    pub good: &'static str,
    pub bad: &'static str,
    pub warn: &'static str,
    pub end: &'static str,
}

const PLAIN: Style = Style { bold: "", dim: "", good: "", bad: "", warn: "", end: "" };
const COLOUR: Style =
    Style { bold: "\u{e000}", dim: "\u{e001}", good: "\u{e002}", bad: "\u{e003}", warn: "\u{e004}", end: "\u{e005}" };
/// The first of these characters, and what each becomes.
const FIRST_STYLE: u32 = 0xe000;
const ANSI: [&str; 6] = ["\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[31m", "\x1b[33m", "\x1b[0m"];

/// How a text is shown.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// Whether with colours.
    pub colour: bool,
    /// The width of the terminal, in columns.
    pub width: usize,
}

/// A text for a file, or for a terminal of a usual width; with colours or without.
impl From<bool> for Look {
    fn from(colour: bool) -> Self {
        Self { colour, width: MAX_WIDTH }
    }
}

impl Answer {
    /// The answer for people.
    pub fn to_text(&self, look: impl Into<Look>) -> String {
        let mut out = Text::new(look);
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

pub struct Text {
    pub style: Style,
    pub out: String,
    width: usize,
}

impl Text {
    pub fn new(look: impl Into<Look>) -> Self {
        let Look { colour, width } = look.into();
        let style = if colour { COLOUR } else { PLAIN };
        Self { style, out: String::new(), width: width.clamp(MIN_WIDTH, MAX_WIDTH) }
    }

    /// The line above what one proxy has to say.
    pub fn title(&mut self, proxy: &ProxyName) {
        let Style { bold, dim, end, .. } = self.style;
        let role = match proxy.side {
            "outbound" => "the client's sidecar",
            "inbound" => "the server's sidecar",
            _ => "gateway",
        };
        self.blank();
        let title = format!("── {bold}{}.{}{end} {dim}{role}{end} ", proxy.pod, proxy.namespace);
        let used = 3 + proxy.pod.len() + 1 + proxy.namespace.len() + 1 + role.chars().count() + 1;
        self.line(&format!("{title}{dim}{}{end}", "─".repeat(self.width.saturating_sub(used))));
    }

    fn head(&mut self, answer: &Answer) {
        let Style { bold, dim, end, .. } = self.style;
        let call = &answer.call;
        self.flow("", &format!("{bold}{}{end}  {dim}from{end} {}", call.to, call.from), 0);
        let (mark, colour, text) = self.outcome(&answer.verdict);
        self.line(&format!("{colour}{mark} {text}{end}"));
        self.wrapped(dim, "  ", &answer.verdict.reason);
        if let Some(source) = answer.hops.iter().rev().find_map(deciding) {
            self.wrapped(dim, "  ", &at(source));
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
            Outcome::Drop => ("✗", bad, format!("the datagrams are dropped{flag}")),
        }
    }

    fn hop(&mut self, hop: &Hop) {
        let Style { dim, end, .. } = self.style;
        let proxy = &hop.proxy;
        self.title(proxy);
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
        if let Some(running) = &hop.running {
            self.running(running);
        }
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

    fn running(&mut self, running: &Running) {
        let Style { good, bad, warn, end, .. } = self.style;
        if running.error.is_some() || running.held {
            return self.fact("running", &[format!("{warn}?{end} see the note")]);
        }
        let mut lines = vec![if running.agrees {
            format!("{good}✓{end} decided by the proxy itself, as the files say")
        } else {
            format!("{bad}✗{end} decided by the proxy itself, otherwise than the files say")
        }];
        lines.extend(running.differs.iter().map(|line| format!("  {line}")));
        self.fact("running", &lines);
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

    /// What one policy says, and what the call lacks.
    pub fn policy(&self, policy: &Policy, denied: bool) -> Vec<String> {
        let Style { dim, good, bad, warn, end, .. } = self.style;
        let is_deny = policy.action == "DENY";
        let rule = policy.rule.map(|rule| format!(" rule {rule}")).unwrap_or_default();
        let (mark, colour, says) = match (policy.matches, is_deny) {
            (true, _) if policy.action == "CUSTOM" => {
                let provider = policy.provider.as_deref().unwrap_or_default();
                if policy.decides {
                    ("✗", bad, format!("matches{rule}; its provider `{provider}` cannot be asked"))
                } else {
                    ("?", warn, format!("matches{rule}: the provider `{provider}` decides"))
                }
            }
            (true, true) => ("✗", bad, format!("matches{rule}")),
            (true, false) => ("✓", good, format!("matches{rule}")),
            (false, true) => ("·", dim, "does not match".to_owned()),
            (false, false) if denied && policy.action == "ALLOW" => ("✗", warn, "does not match".to_owned()),
            (false, false) => ("·", dim, "does not match".to_owned()),
        };
        let mut lines = vec![format!(
            "{colour}{mark}{end} {} {} {says}  {dim}{}{end}",
            policy.action,
            policy.source.object,
            policy.source.position().unwrap_or_default()
        )];
        // That a DENY policy does not match needs no reason.
        if !policy.matches && policy.action == "ALLOW" {
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
        let is_known = hop.running.as_ref().is_none_or(|running| running.differs.is_empty());
        if hop.proxy.side != "inbound" && hop.virtual_host.is_some() && !hop.clusters.is_empty() && is_known {
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
        let share = if several {
            format!("{:>5.1} %  ", f64::from(cluster.weight) * 100.0 / f64::from(total.max(1)))
        } else {
            String::new()
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
            let health = if endpoint.healthy { String::new() } else { format!("  {bad}unhealthy{end}") };
            let flags =
                if endpoint.flags.is_empty() { String::new() } else { format!(" ({})", meanings(&endpoint.flags)) };
            lines.push(format!("  → {}{workload}{locality}{health}{flags}", endpoint.address));
        }
        match cluster.endpoints.len() {
            0 if cluster.exists => lines.push(format!("  {bad}no endpoints{end}")),
            count if count > MAX_ENDPOINTS => lines.push(format!("  {dim}and {} more{end}", count - MAX_ENDPOINTS)),
            _ => {}
        }
        lines
    }

    pub fn fact(&mut self, label: &str, lines: &[String]) {
        let Style { dim, end, .. } = self.style;
        for (at, line) in lines.iter().enumerate() {
            let label = if at == 0 { label } else { "" };
            let first = format!("{dim}{label:<width$}{end}", width = FACTS);
            self.flow(&first, line, FACTS);
        }
    }

    pub fn wrapped(&mut self, style: &str, indent: &str, text: &str) {
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
            if !is_new && column + 1 + spaces + width > self.width {
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

    pub fn line(&mut self, text: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.out, "{}", shown(text.trim_end()));
    }

    pub fn blank(&mut self) {
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
        Outcome::Drop => hop.route.as_ref()?.source.as_ref(),
        Outcome::Reset => hop.peer_authentication.as_ref()?.source.as_ref(),
        Outcome::Direct | Outcome::Redirect => hop.route.as_ref()?.source.as_ref(),
        Outcome::Forward => None,
    }
}

/// `OBJECT, FILE:LINE`.
pub fn at(source: &Source) -> String {
    match source.position() {
        Some(position) => format!("{}, {position}", source.object),
        None => source.object.clone(),
    }
}

/// The columns that a word takes: styles take none.
fn visible(word: &str) -> usize {
    word.chars().map(|letter| if style(letter).is_some() { 0 } else { 1 }).sum()
}

/// The sequence of a style.
fn style(letter: char) -> Option<&'static str> {
    let at = u32::from(letter).checked_sub(FIRST_STYLE)?;
    ANSI.get(usize::try_from(at).ok()?).copied()
}

/// A line as a terminal shall get it: what comes from outside moves no cursor and sets no title.
fn shown(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for letter in text.chars() {
        match style(letter) {
            Some(sequence) => line.push_str(sequence),
            None if is_unsafe(letter) => line.extend(letter.escape_unicode()),
            None => line.push(letter),
        }
    }
    line
}

/// Whether a character is a control character, or changes the direction of text.
fn is_unsafe(letter: char) -> bool {
    letter.is_control() || matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Envoy's health flags in words.
fn meanings(flags: &[String]) -> String {
    let words = flags.iter().map(|flag| match &**flag {
        "failed_outlier_check" => "ejected by outlier detection",
        "failed_active_hc" => "fails its health checks",
        "pending_active_hc" => "not checked yet",
        "failed_eds_health" => "not ready",
        "not_in_running_proxy" => "the running proxy does not have it",
        other => other,
    });
    words.collect::<Vec<_>>().join(", ")
}
