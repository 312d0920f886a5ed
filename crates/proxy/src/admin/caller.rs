//! Checks the caller of the admin port: requests that change the proxy are accepted only from programs of the same user on
//! the same machine, and not from web pages.
//!
//! TCP does not identify the program at the other end, but the kernel's table of sockets does: `/proc/thread-self/net/tcp`
//! has the user of every socket in this network namespace, and the other end of a connection is in it if it is on this
//! machine.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use evenkeel_base::local_host;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};

use super::Reply;
use crate::options::AdminWriters;

/// The kernel's tables of TCP sockets.
const TABLES: [&str; 2] = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
/// Maximum size of the table, in bytes: 400,000 sockets.
const MAX_TABLE_BYTES: usize = 64 << 20;
/// The inode of a socket that no process has open any more. Its user is shown as root then.
const CLOSED: &str = "0";
/// The id shown for users without an id in this user namespace.
const OVERFLOW_UID: u32 = 65534;

/// The two ends of a connection to the admin port.
#[derive(Debug, Clone, Copy)]
pub(super) struct Caller {
    /// The client.
    pub(super) peer: SocketAddr,
    /// This end.
    pub(super) local: SocketAddr,
}

/// Refuses requests that a browser sends on behalf of a page from elsewhere.
pub(super) fn refuse_pages(caller: Caller, method: &Method, headers: &HeaderMap) -> Result<(), Reply> {
    let text = |name| headers.get(name).map(HeaderValue::to_str).map(Result::unwrap_or_default);
    let host = text(header::HOST).unwrap_or_default();
    let reads = matches!(*method, Method::GET | Method::HEAD);
    // On other addresses than loopback this machine may have any name; changes are only accepted on loopback.
    if (caller.local.ip().to_canonical().is_loopback() || !reads) && !local_host::is_local(host) {
        return Err(forbidden(format!(
            "the host `{host}` may be anybody's name for this address; ask for localhost or the address itself"
        )));
    }
    let own =
        |origin: &str| origin.strip_prefix("http://").is_some_and(|authority| authority.eq_ignore_ascii_case(host));
    if let Some(origin) = text(header::ORIGIN).filter(|origin| !reads && !own(origin)) {
        return Err(forbidden(format!("pages of `{origin}` may change nothing here")));
    }
    Ok(())
}

/// Refuses callers that may not change the process.
pub(super) async fn refuse_strangers(caller: Caller, writers: AdminWriters) -> Result<(), Reply> {
    if writers == AdminWriters::Anyone {
        return Ok(());
    }
    // Other threads read files: the table may be long.
    let found =
        tokio::task::spawn_blocking(move || user_of(caller)).await.unwrap_or_else(|error| Err(error.to_string()));
    let own = rustix::process::geteuid().as_raw();
    let reason = match found {
        Ok(uid) if uid == OVERFLOW_UID && !all_users_known() => {
            "the connection's user has no id in this user namespace".to_owned()
        }
        Ok(uid) if uid == own || uid == 0 => return Ok(()),
        Ok(uid) => format!("the connection is of user {uid}, the proxy of user {own}"),
        Err(reason) => reason,
    };
    tracing::warn!(peer = %caller.peer, reason, "admin: a change refused");
    Err(forbidden(format!(
        "only the proxy's own user and root may change it, from this machine: {reason} (--admin-changes-from anyone allows it)"
    )))
}

pub(super) fn forbidden(reason: String) -> Reply {
    Reply::error(StatusCode::FORBIDDEN, reason + "\n")
}

/// Whether every user of the machine has an id here: this is no user namespace with a part of them.
fn all_users_known() -> bool {
    std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| map.split_whitespace().eq(["0", "0", "4294967295"]))
}

/// The user of the connection's other end.
fn user_of(caller: Caller) -> Result<u32, String> {
    for path in TABLES {
        match read(path) {
            Ok(table) => {
                if let Some(found) = find(&table, caller) {
                    return found;
                }
            }
            // Without IPv6 there is no table of it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(format!("its user cannot be looked up: {path}: {error}")),
        }
    }
    Err("the connection is not from this machine".to_owned())
}

fn read(path: &str) -> io::Result<String> {
    use std::io::Read as _;
    let mut text = String::new();
    std::fs::File::open(path)?.take(MAX_TABLE_BYTES as u64).read_to_string(&mut text)?;
    Ok(text)
}

/// The user of the socket with the connection's ends the other way round; `None`: it is not in the table.
fn find(table: &str, caller: Caller) -> Option<Result<u32, String>> {
    let ends = |columns: &[&str]| Some((socket(columns.get(1)?)?, socket(columns.get(2)?)?));
    let wanted = (canonical(caller.peer), canonical(caller.local));
    table.lines().skip(1).find_map(|line| {
        let columns: Vec<&str> = line.split_ascii_whitespace().take(10).collect();
        if ends(&columns)? != wanted {
            return None;
        }
        match (*columns.get(9)?, columns.get(7)?.parse()) {
            (inode, Ok(uid)) if inode != CLOSED => Some(Ok(uid)),
            _ => Some(Err("the connection was closed before it was answered".to_owned())),
        }
    })
}

fn canonical(address: SocketAddr) -> (IpAddr, u16) {
    (address.ip().to_canonical(), address.port())
}

/// An address of the table: hexadecimal words in the machine's byte order, a colon, the port.
fn socket(text: &str) -> Option<(IpAddr, u16)> {
    let (address, port) = text.split_once(':')?;
    let mut bytes = Vec::with_capacity(16);
    for word in address.as_bytes().chunks(8) {
        let word = u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()?;
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    let ip = match bytes.len() {
        4 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        16 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)).to_canonical(),
        _ => return None,
    };
    Some((ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1 1 0 100 0 0 10 0\n\
   1: 0100007F:A001 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1001        0 2 1 0 100 0 0 10 0\n\
   2: 0100007F:1F90 0100007F:A001 01 00000000:00000000 00:00000000 00000000  1000        0 3 1 0 100 0 0 10 0\n\
   3: 0100007F:A002 0100007F:1F90 05 00000000:00000000 00:00000000 00000000     0        0 0 1 0 100 0 0 10 0\n\
   4: 0100007F:A003 0100007F:1F90 06 00000000:00000000 00:00000000 00000000     0        0 0 3 0\n\
   5: 0000000000000000FFFF00000100007F:A004 0000000000000000FFFF00000100007F:1F90 01 00000000:00000000 00:00000000 00000000  7 0 2 1 0\n\
   6: 0100007F:A006 0100007F:1F90 05 00000000:00000000 00:00000000 00000000     8        0 9 1 0 100 0 0 10 0\n";

    #[test]
    fn the_other_end_of_a_connection_is_found() {
        let check = |port: u16, expected: Option<Result<u32, ()>>| {
            let caller = Caller { peer: ([127, 0, 0, 1], port).into(), local: ([127, 0, 0, 1], 0x1f90).into() };
            assert_eq!(find(TABLE, caller).map(|found| found.map_err(drop)), expected, "{port:x}");
        };
        check(0xa001, Some(Ok(1001)));
        // A closed socket has no owner: its id means nothing.
        check(0xa002, Some(Err(())));
        check(0xa003, Some(Err(())));
        check(0xa004, Some(Ok(7)));
        // A socket that has only shut down sending has one.
        check(0xa006, Some(Ok(8)));
        check(0xa005, None);
    }

    #[test]
    fn pages_from_elsewhere_are_refused() {
        let check = |local: [u8; 4], method: Method, fields: &[(&'static str, &'static str)], passes: bool| {
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                headers.append(*name, HeaderValue::from_static(value));
            }
            let caller = Caller { peer: ([127, 0, 0, 1], 1).into(), local: (local, 15000).into() };
            assert_eq!(refuse_pages(caller, &method, &headers).is_ok(), passes, "{method} {fields:?}");
        };
        let (loopback, other) = ([127, 0, 0, 1], [10, 0, 0, 1]);
        check(loopback, Method::GET, &[("host", "localhost:15000")], true);
        check(loopback, Method::GET, &[("host", "evil.example")], false);
        check(other, Method::GET, &[("host", "web.shop.svc:15000")], true);
        check(other, Method::POST, &[("host", "web.shop.svc:15000")], false);
        check(loopback, Method::POST, &[("host", "127.0.0.1:15000"), ("origin", "http://127.0.0.1:15000")], true);
        check(loopback, Method::POST, &[("host", "127.0.0.1:15000"), ("origin", "http://evil.example")], false);
        check(loopback, Method::POST, &[("host", "127.0.0.1:15000"), ("origin", "null")], false);
        check(loopback, Method::POST, &[("host", "127.0.0.1:15000"), ("origin", "https://127.0.0.1:15000")], false);
        check(loopback, Method::POST, &[], true);
    }
}
