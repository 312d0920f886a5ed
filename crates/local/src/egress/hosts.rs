//! Names of the machine itself, and those in its `/etc/hosts`.

use std::fs;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use evenkeel_agent::dns::{HostEntry, Known, SearchDomain, Table};

use super::rules::{MACHINE, MACHINE_NAMES};

/// The file with the machine's own names.
const HOSTS: &str = "/etc/hosts";
/// Maximum size of the file, in bytes: block lists have some megabytes.
const MAX_HOSTS_BYTES: u64 = 16 * 1024 * 1024;

/// The names, as last read; cheap to clone.
#[derive(Debug, Clone)]
pub struct MachineNames(Arc<Mutex<Cache>>);

#[derive(Debug)]
struct Cache {
    /// Whether the machine can be reached.
    open: bool,
    changed: Option<SystemTime>,
    table: Arc<Table>,
}

impl MachineNames {
    /// The names; without `open` those of the machine itself are left out.
    pub fn new(open: bool) -> Self {
        Self(Arc::new(Mutex::new(Cache { open, changed: None, table: Arc::new(names_of_machine(open, "")) })))
    }

    /// The names now; reads the file again if it has changed.
    pub fn table(&self) -> Arc<Table> {
        let mut own = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = fs::metadata(HOSTS).and_then(|hosts| hosts.modified()).ok();
        if changed != own.changed {
            let mut text = Vec::new();
            let read = fs::File::open(HOSTS).and_then(|file| file.take(MAX_HOSTS_BYTES).read_to_end(&mut text));
            if let Err(error) = read {
                tracing::info!(error = %error, "cannot read {HOSTS}");
            }
            own.table = Arc::new(names_of_machine(own.open, &String::from_utf8_lossy(&text)));
            own.changed = changed;
        }
        own.table.clone()
    }
}

/// Whether a name means the machine.
pub fn is_machine(names: &Table, name: &str) -> bool {
    matches!(names.lookup(name), Some(Known::Addresses(ips)) if ips.contains(&IpAddr::V4(MACHINE)))
}

fn names_of_machine(open: bool, hosts: &str) -> Table {
    let machine = open.then_some(MACHINE);
    let entry = |host: &str| HostEntry {
        host: host.to_owned(),
        ips: machine.into_iter().map(IpAddr::from).collect(),
        short_name: String::new(),
        namespace: String::new(),
    };
    let own = MACHINE_NAMES.iter().filter(|_| open).map(|name| entry(name));
    let nowhere = SearchDomain { namespace: String::new(), cluster_domain: String::new() };
    // The machine's own names come last, so that no line of the file overrides them.
    Table::new(entries(hosts, machine).into_iter().chain(own), &nowhere)
}

/// The entries of a hosts(5) file. Loopback addresses there mean the machine, so they become `machine`, or are left out
/// without it.
fn entries(text: &str, machine: Option<Ipv4Addr>) -> Vec<HostEntry> {
    let mut entries: Vec<HostEntry> = Vec::new();
    for line in text.lines() {
        let mut words = line.split('#').next().unwrap_or_default().split_ascii_whitespace();
        let Some(address) = words.next().and_then(|word| word.parse::<IpAddr>().ok()) else { continue };
        let address = if address.is_loopback() { machine.map(IpAddr::from) } else { Some(address) };
        for name in words.filter(|name| !is_everybodys_own(name)) {
            let Some(address) = address else { continue };
            entries.push(HostEntry {
                host: name.to_owned(),
                ips: vec![address],
                short_name: String::new(),
                namespace: String::new(),
            });
        }
    }
    together(entries)
}

/// Whether a name means the querying host itself.
fn is_everybodys_own(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name == "localhost" || name.starts_with("localhost.") || name.ends_with(".localhost") || name.starts_with("ip6-")
}

/// Merges lines: a name on several lines has all their addresses.
fn together(entries: Vec<HostEntry>) -> Vec<HostEntry> {
    let mut by_name: std::collections::BTreeMap<String, HostEntry> = std::collections::BTreeMap::new();
    for entry in entries {
        let known = by_name.entry(entry.host.to_ascii_lowercase());
        let known = known.or_insert_with(|| HostEntry { ips: Vec::new(), ..entry.clone() });
        known.ips.extend(entry.ips.into_iter().filter(|ip| !known.ips.contains(ip)).collect::<Vec<_>>());
    }
    by_name.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_file_are_known_and_its_loopback_is_the_machine() {
        let text = "127.0.0.1 localhost localhost.localdomain\n127.0.1.1\tbox.corp box # this one\n::1 ip6-localhost ip6-loopback\n\
                    192.0.2.7 db.corp\n2001:db8::7 DB.corp\nnonsense name\n192.0.2.8\n# 192.0.2.9 old.corp\n127.0.0.1 app.test a.localhost\n";
        let check = |machine: Option<Ipv4Addr>, expected: &[&str]| {
            let seen: Vec<String> = entries(text, machine)
                .into_iter()
                .map(|entry| {
                    let ips: Vec<String> = entry.ips.iter().map(ToString::to_string).collect();
                    format!("{} {}", entry.host, ips.join(","))
                })
                .collect();
            assert_eq!(seen, expected);
        };
        let machine = Ipv4Addr::new(10, 244, 0, 2);
        let all = ["app.test 10.244.0.2", "box 10.244.0.2", "box.corp 10.244.0.2", "db.corp 192.0.2.7,2001:db8::7"];
        check(Some(machine), &all);
        check(None, &all[3..]);
    }
}
