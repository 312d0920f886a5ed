//! Names in the machine's `/etc/hosts`.

use std::net::{IpAddr, Ipv4Addr};

use evenkeel_agent::dns::HostEntry;

/// Maximum size of the file, in bytes: block lists have some megabytes.
pub const MAX_HOSTS_BYTES: u64 = 16 * 1024 * 1024;

/// The entries of a hosts(5) file. Loopback addresses there mean the machine, so they become `machine`, or are left out
/// without it.
pub fn entries(text: &str, machine: Option<Ipv4Addr>) -> Vec<HostEntry> {
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
