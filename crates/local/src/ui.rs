//! The output for the user: a live table on a terminal, plain lines elsewhere; events above the table.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use rustix::termios::tcgetwinsize;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::pods::{PodStatus, RosterView};

/// Size assumed if the terminal does not report one, in columns and rows.
const DEFAULT_SIZE: (usize, usize) = (120, 50);
/// Events that may wait for the screen; further ones are dropped, because the programs' logs have them all.
const MAX_WAITING_EVENTS: usize = 256;
/// Without a terminal, a replica that is not ready for this time is reported, and again after twice as long each time…
const FIRST_WAIT: Duration = Duration::from_secs(10);
/// …up to this.
const MAX_WAIT: Duration = Duration::from_secs(600);

/// Sends events to the screen.
#[derive(Debug, Clone)]
pub struct Events(mpsc::Sender<Event>);

#[derive(Debug)]
enum Event {
    /// Lines above the table.
    Line(String),
    /// Lines below the table, until replaced.
    Footer(String),
    /// Lines below the table; not shown without a table.
    TableFooter(String),
    /// The last event.
    End,
}

impl Events {
    /// Shows `text`, which may have several lines.
    pub fn say(&self, text: impl Into<String>) {
        let _ = self.0.try_send(Event::Line(text.into()));
    }

    /// Replaces the text below the table.
    pub fn footer(&self, text: impl Into<String>) {
        let _ = self.0.try_send(Event::Footer(text.into()));
    }

    /// Replaces the text below the table if there is one; without a table the news in it have been printed already.
    pub fn table_footer(&self, text: impl Into<String>) {
        let _ = self.0.try_send(Event::TableFooter(text.into()));
    }

    /// Ends the screen, even if others can still send events.
    pub async fn end(self) {
        // The screen may be gone already.
        let _ = self.0.send(Event::End).await;
    }
}

/// How much is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// A table that is redrawn with every change if standard output is a terminal; otherwise lines.
    Live,
    /// Only events.
    Events,
}

/// The screen, before it is shown.
#[derive(Debug)]
pub struct Screen {
    events: mpsc::Receiver<Event>,
    trust_domain: String,
    style: Style,
    live: bool,
    footer: String,
    drawn: usize,
    shown: BTreeMap<(String, String), PodStatus>,
    /// Replicas that are not ready, if there is no terminal.
    waits: BTreeMap<(String, String), Wait>,
}

/// How long a replica has not been ready.
#[derive(Debug)]
struct Wait {
    since: Instant,
    /// When it is reported next.
    next: Instant,
}

impl Screen {
    /// A screen on standard output, and a sender for its events.
    pub fn new(trust_domain: &str, style: Style) -> (Self, Events) {
        let (sender, events) = mpsc::channel(MAX_WAITING_EVENTS);
        let live = style == Style::Live && std::io::stdout().is_terminal();
        let (trust_domain, footer, shown) = (trust_domain.to_owned(), String::new(), BTreeMap::new());
        let waits = BTreeMap::new();
        (Self { events, trust_domain, style, live, footer, drawn: 0, shown, waits }, Events(sender))
    }

    /// Shows the roster and events until [`Events::end`].
    pub async fn show(mut self, mut roster: RosterView) {
        let mut roster_open = true;
        loop {
            let next = self.waits.values().map(|wait| wait.next).min();
            let overdue = async {
                match next {
                    Some(next) => tokio::time::sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = overdue => {
                    let lines = self.overdue(Instant::now());
                    self.print(&lines);
                }
                event = self.events.recv() => match event {
                    Some(Event::End) | None => return self.leave(),
                    Some(event) => self.take(event),
                },
                changed = roster.changed(), if roster_open => {
                    roster_open = changed.is_ok();
                    let pods = roster.borrow_and_update().clone();
                    self.update(pods);
                }
            }
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Line(text) => self.print(&format!("{}\n", text.trim_end())),
            Event::Footer(text) | Event::TableFooter(text) if self.live => {
                self.footer = text;
                self.print("");
            }
            Event::TableFooter(_) => {}
            Event::Footer(_) if self.style == Style::Events => {}
            Event::Footer(text) => self.print(&format!("{}\n", text.trim_end())),
            Event::End => {}
        }
    }

    fn update(&mut self, pods: BTreeMap<(String, String), PodStatus>) {
        let quiet = self.live || self.style == Style::Events;
        let lines = if quiet { String::new() } else { self.differences(&pods) };
        self.shown = pods;
        if !quiet {
            self.note_waits(Instant::now());
        }
        self.print(&lines);
    }

    fn note_waits(&mut self, now: Instant) {
        self.waits.retain(|key, _| self.shown.get(key).is_some_and(|status| !status.ready));
        for key in self.shown.iter().filter(|(_, status)| !status.ready).map(|(key, _)| key) {
            self.waits.entry(key.clone()).or_insert(Wait { since: now, next: now + FIRST_WAIT });
        }
    }

    /// A line for each replica that has not been ready for long, with the reason.
    fn overdue(&mut self, now: Instant) -> String {
        let mut out = String::new();
        for (key, wait) in self.waits.iter_mut().filter(|(_, wait)| wait.next <= now) {
            let Some(status) = self.shown.get(key) else { continue };
            let waited = now.saturating_duration_since(wait.since);
            wait.next = now + waited.clamp(FIRST_WAIT, MAX_WAIT);
            let _ = writeln!(out, "not ready  {} for {} s: {}", status.pod.name, waited.as_secs(), status.detail);
        }
        out
    }

    /// Without a terminal: a line for each replica that became ready or not ready, was restarted, or has another proxy.
    fn differences(&self, pods: &BTreeMap<(String, String), PodStatus>) -> String {
        let mut out = String::new();
        for (key, status) in pods {
            let before = self.shown.get(key);
            let was_ready = before.is_some_and(|status| status.ready);
            let pod = &status.pod;
            if status.ready && !was_ready {
                let identity = self.identity(status);
                let _ = writeln!(out, "ready      {} at {} as {identity}", pod.name, pod.address);
            } else if was_ready && !status.ready {
                let _ = writeln!(out, "not ready  {}: {}", pod.name, status.detail);
            }
            // A program that ends at once is never ready, so only this line reports it.
            if let Some(before) = before.filter(|before| before.restarts < status.restarts) {
                let (name, times) = (&pod.name, status.restarts);
                let why = if before.detail.is_empty() { "it ended" } else { &before.detail };
                let _ = writeln!(out, "restarted  {name} (restarts: {times}): {why}");
            }
            if before.is_some_and(|before| before.takeovers < status.takeovers) {
                let _ = writeln!(
                    out,
                    "replaced   {}: another proxy has taken over and is supervised from now on",
                    pod.name
                );
            }
        }
        out
    }

    fn identity(&self, status: &PodStatus) -> String {
        if status.pod.in_mesh {
            format!("spiffe://{}/ns/{}/sa/{}", self.trust_domain, status.pod.namespace, status.pod.service_account)
        } else {
            "no identity (outside the mesh)".to_owned()
        }
    }

    /// Prints `text` above the table and redraws the table below it.
    fn print(&mut self, text: &str) {
        let mut out = String::new();
        if self.drawn > 0 {
            let _ = write!(out, "\x1b[{}A\r\x1b[J", self.drawn);
        }
        out.push_str(text);
        self.drawn = 0;
        if self.live {
            let (columns, rows) = terminal_size();
            let table = self.table(columns, rows);
            self.drawn = table.lines().count();
            out.push_str(&table);
        }
        let mut stdout = std::io::stdout().lock();
        let _ = stdout.write_all(out.as_bytes());
        let _ = stdout.flush();
    }

    /// Removes the table, which is no longer true.
    fn leave(&mut self) {
        self.live = false;
        self.print("");
    }

    fn table(&self, columns: usize, rows: usize) -> String {
        let name = |status: &PodStatus| status.pod.name.chars().count();
        let widest = self.shown.values().map(name).max().unwrap_or(0).max("REPLICA ".len());
        let last = |status: &PodStatus| if status.ready { self.identity(status) } else { status.detail.clone() };
        let longest =
            self.shown.values().filter(|status| status.ready).map(|status| last(status).chars().count()).max();
        let layout = self.layout(widest + longest.unwrap_or(0), (columns, rows));
        let mut out = String::from("\n");
        let divided = if layout == Layout::TwoLines { "\n    " } else { "  " };
        push_lines(
            &mut out,
            columns,
            &format!("  {:widest$}  READY  ADDRESS       RESTARTS{divided}IDENTITY", "REPLICA"),
        );
        let (fitting, others) = self.visible_rows(rows, layout);
        for status in fitting {
            let mark = if status.ready { "yes" } else { "no" };
            let address = status.pod.address.to_string();
            let first = format!("  {:widest$}  {mark:5}  {address:12}  {:8}", status.pod.name, status.restarts);
            let last = if layout == Layout::Short && status.ready { self.short_identity(status) } else { last(status) };
            push_lines(&mut out, columns, &format!("{first}{divided}{last}"));
        }
        if others > 0 {
            push_lines(&mut out, columns, &format!("  and {others} more that do not fit into the terminal"));
        }
        out.push('\n');
        self.footer.lines().for_each(|line| push_lines(&mut out, columns, &format!("  {line}")));
        out
    }

    /// How a table with such names and identities is shown on a terminal of this size.
    fn layout(&self, names: usize, (columns, rows): (usize, usize)) -> Layout {
        let others = "  ".len() + "  yes    10.244.255.255         0  ".len();
        match names + others < columns {
            true => Layout::OneLine,
            false if self.visible_rows(rows, Layout::TwoLines).1 == 0 => Layout::TwoLines,
            false => Layout::Short,
        }
    }

    /// The part of an identity that tells workloads apart.
    fn short_identity(&self, status: &PodStatus) -> String {
        if status.pod.in_mesh {
            format!("{}/{}", status.pod.namespace, status.pod.service_account)
        } else {
            "none".to_owned()
        }
    }

    /// The replicas that fit into so many rows, and the number of others. A table taller than the terminal could not be
    /// redrawn; replicas that are not ready are kept in it.
    fn visible_rows(&self, rows: usize, layout: Layout) -> (Vec<&PodStatus>, usize) {
        // An empty line, the head, an empty line, the footer, and the cursor's line.
        let room = rows.saturating_sub(3 + layout.lines() + self.footer.lines().count()) / layout.lines();
        if self.shown.len() <= room {
            return (self.shown.values().collect(), 0);
        }
        let room = room.saturating_sub(1).max(1);
        let mut by_need: Vec<(usize, &PodStatus)> = self.shown.values().enumerate().collect();
        by_need.sort_by_key(|(_, status)| status.ready);
        by_need.truncate(room);
        by_need.sort_by_key(|(place, _)| *place);
        (by_need.into_iter().map(|(_, status)| status).collect(), self.shown.len().saturating_sub(room))
    }
}

/// How a replica is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// All in one line.
    OneLine,
    /// The identity below, because a line would be too wide.
    TwoLines,
    /// In one line with a short identity, because there are too many replicas for two.
    Short,
}

impl Layout {
    fn lines(self) -> usize {
        if self == Self::TwoLines { 2 } else { 1 }
    }
}

/// A line that wraps would make the table's height unknown, so what is wider ends in `…`.
fn push_lines(out: &mut String, columns: usize, lines: &str) {
    let room = columns.saturating_sub(1);
    for line in lines.lines() {
        if line.chars().count() <= room {
            out.push_str(line.trim_end())
        } else {
            out.extend(line.chars().take(room.saturating_sub(1)).chain(['…']))
        }
        out.push('\n');
    }
}

/// Columns and rows.
fn terminal_size() -> (usize, usize) {
    let size = tcgetwinsize(std::io::stdout()).ok();
    let known = |number: Option<u16>, otherwise| number.filter(|number| *number > 0).map_or(otherwise, usize::from);
    (known(size.map(|size| size.ws_col), DEFAULT_SIZE.0), known(size.map(|size| size.ws_row), DEFAULT_SIZE.1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::Pod;
    use std::net::Ipv4Addr;
    use std::sync::Arc;

    fn screen(ready: bool) -> Screen {
        let pod = Pod {
            name: "web-1".to_owned(),
            namespace: "shop".to_owned(),
            workload: "web".to_owned(),
            labels: BTreeMap::new(),
            service_account: "web".to_owned(),
            address: Ipv4Addr::new(10, 244, 1, 2),
            ports: Vec::new(),
            in_mesh: true,
            is_gateway: false,
            proxy: Default::default(),
        };
        let detail = "exited with status 7".to_owned();
        let status = PodStatus {
            pod: Arc::new(pod),
            ready,
            leaving: false,
            detail,
            restarts: 2,
            takeovers: 1,
            ends: Vec::new(),
        };
        let (mut screen, _) = Screen::new("cluster.local", Style::Live);
        screen.shown = BTreeMap::from([(("shop".to_owned(), "web-1".to_owned()), status)]);
        screen.footer = "http://127.0.0.1:8080/".to_owned();
        screen
    }

    #[test]
    fn the_table_tells_identity_or_the_reason() {
        let expected = "
  REPLICA   READY  ADDRESS       RESTARTS  IDENTITY
  web-1     yes    10.244.1.2           2  spiffe://cluster.local/ns/shop/sa/web

  http://127.0.0.1:8080/
";
        assert_eq!(screen(true).table(200, 50), expected);
        assert!(screen(false).table(200, 50).contains("no     10.244.1.2           2  exited with status 7"));
    }

    /// Long names, as Deployments make them.
    fn wide(count: usize) -> Screen {
        let mut screen = screen(true);
        let (_, status) = screen.shown.pop_first().expect("a replica");
        for number in 0..count {
            let name = format!("capitals-info-v1-m9vnkgqp5-{number:05}");
            let pod =
                Pod { name: name.clone(), service_account: "capitals-info".to_owned(), ..Pod::clone(&status.pod) };
            screen.shown.insert(("shop".to_owned(), name), PodStatus { pod: Arc::new(pod), ..status.clone() });
        }
        screen
    }

    #[test]
    fn no_line_is_wider_than_the_terminal_and_identities_stay_whole() {
        let is_narrow = |table: &str, columns: usize| table.lines().all(|line| line.chars().count() < columns);
        assert!(is_narrow(&screen(true).table(30, 50), 30));
        let two = "
  REPLICA                           READY  ADDRESS       RESTARTS
    IDENTITY
  capitals-info-v1-m9vnkgqp5-00000  yes    10.244.1.2           2
    spiffe://cluster.local/ns/shop/sa/capitals-info
";
        let table = wide(1).table(80, 24);
        assert!(table.starts_with(two) && is_narrow(&table, 80), "{table}");
        // Where there is no room for two lines each, the identity is shortened.
        let table = wide(15).table(90, 24);
        assert!(table.contains("2  shop/capitals-info\n") && is_narrow(&table, 90), "{table}");
        assert!(table.lines().count() < 24 && !table.contains("more"), "{table}");
        // A footer that is cut says so.
        assert!(screen(true).table(20, 50).ends_with("  http://127.0.0.1…\n"));
    }

    #[test]
    fn no_table_is_taller_than_the_terminal_and_what_is_not_ready_stays_in_it() {
        let mut screen = screen(true);
        let (key, ready) = screen.shown.pop_first().expect("a replica");
        for number in 0..40 {
            let pod = Pod { name: format!("web-{number}"), ..Pod::clone(&ready.pod) };
            let status = PodStatus { pod: Arc::new(pod), ready: number != 33, ..ready.clone() };
            screen.shown.insert((key.0.clone(), format!("web-{number:02}")), status);
        }
        for rows in [7, 10, 24, 44] {
            let table = screen.table(200, rows);
            assert!(table.lines().count() < rows, "{rows} rows:\n{table}");
            assert!(table.contains("  web-33    no "), "{table}");
        }
        let table = screen.table(200, 24);
        assert!(table.contains("\n  web-16 ") && table.contains("\n  and 22 more"), "{table}");
        let table = screen.table(200, 46);
        assert!(table.lines().count() == 44 && !table.contains("more"), "{table}");
    }

    #[test]
    fn without_a_terminal_a_replica_that_is_not_ready_is_told_of_at_growing_intervals() {
        let mut screen = screen(false);
        let begin = Instant::now();
        let mut told = Vec::new();
        screen.note_waits(begin);
        for second in 0..2000 {
            let now = begin + Duration::from_secs(second);
            screen.note_waits(now);
            match &*screen.overdue(now) {
                "" => {}
                line => {
                    assert_eq!(line, format!("not ready  web-1 for {second} s: exited with status 7\n"));
                    told.push(second);
                }
            }
        }
        assert_eq!(told, [10, 20, 40, 80, 160, 320, 640, 1240, 1840]);
        screen.shown.values_mut().for_each(|status| status.ready = true);
        screen.note_waits(begin);
        assert!(screen.waits.is_empty());
    }

    #[test]
    fn without_a_terminal_only_changes_are_told() {
        let now = screen(true).shown;
        assert_eq!(screen(true).differences(&now), "");
        assert_eq!(
            screen(false).differences(&now),
            "ready      web-1 at 10.244.1.2 as spiffe://cluster.local/ns/shop/sa/web\n"
        );
        let mut replaced = screen(true).shown;
        replaced.values_mut().for_each(|status| status.takeovers = 2);
        assert_eq!(
            screen(true).differences(&replaced),
            "replaced   web-1: another proxy has taken over and is supervised from now on\n"
        );
        // A replica that never becomes ready is reported, too.
        let mut again = screen(false).shown;
        again.values_mut().for_each(|status| (status.restarts, status.detail) = (3, "starting".to_owned()));
        assert_eq!(screen(false).differences(&again), "restarted  web-1 (restarts: 3): exited with status 7\n");
    }
}
