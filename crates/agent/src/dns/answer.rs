//! Turns one query into one response; no I/O.

use std::net::IpAddr;
use std::sync::Arc;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA};
use hickory_proto::rr::{DNSClass, RData, Record, RecordType};

use super::{Known, Table};

/// Seconds a client may keep an answer. Istio's agent uses the same.
pub(super) const TTL_SECONDS: u32 = 30;
/// Maximum size of a response over UDP without EDNS, RFC 1035 section 4.2.1, in bytes.
const UDP_PLAIN_BYTES: usize = 512;
/// Maximum size of a response over UDP with EDNS that never fragments on an Ethernet path, in bytes.
const UDP_EDNS_BYTES: usize = 1232;

/// How to handle a query.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Send these bytes back.
    Respond(Vec<u8>),
    /// The name is not in the mesh: ask the upstream resolvers.
    Forward,
    /// The name was not requested before: ask the control plane, then answer again.
    Ask(String),
    /// The name is another name of this host: look that up, and answer with a CNAME.
    Follow(Arc<str>),
    /// The message is not a query: do not answer.
    Ignore,
}

/// Answers `query` from `table`. `udp` limits the size of the response and sets TC beyond it.
pub fn answer(query: &[u8], table: &Table, udp: bool) -> Outcome {
    let Ok(request) = Message::from_vec(query) else { return malformed(query) };
    if request.metadata.message_type != MessageType::Query {
        return Outcome::Ignore;
    }
    if request.metadata.op_code != OpCode::Query {
        return respond(&request, ResponseCode::NotImp, &[], udp);
    }
    let [question] = request.queries.as_slice() else {
        return respond(&request, ResponseCode::FormErr, &[], udp);
    };
    if question.query_class() != DNSClass::IN {
        return Outcome::Forward;
    }
    let (name, kind) = (question.name().to_ascii(), question.query_type());
    match table.authority() {
        Some(authority) => {
            if let Some(records) = authority.find(&name, kind) {
                return respond_with(&request, ResponseCode::NoError, records, udp);
            }
            if let Some(pod) = authority.pod(&name) {
                let ips = select(&Arc::from([IpAddr::V4(pod)]), kind);
                return respond(&request, ResponseCode::NoError, &ips, udp);
            }
        }
        // As Istio's agent: the cluster's name server has them.
        None if !is_about_addresses(kind) => return Outcome::Forward,
        None => {}
    }
    match table.lookup(&name) {
        None if !table.knows(&name) => Outcome::Ask(name),
        Some(Known::AliasOf(target)) => Outcome::Follow(target),
        Some(Known::Addresses(ips)) => respond(&request, ResponseCode::NoError, &select(&ips, kind), udp),
        None if table.authority().is_some() && table.owns(&name) => respond(&request, ResponseCode::NXDomain, &[], udp),
        None => Outcome::Forward,
    }
}

/// The name that a query is about, and whether its address's name is wanted; `None` if it is no query.
pub fn question(query: &[u8]) -> Option<(String, bool)> {
    let request = Message::from_vec(query).ok()?;
    let [question] = request.queries.as_slice() else { return None };
    Some((question.name().to_ascii(), question.query_type() == RecordType::PTR))
}

/// Whether a name table has the answers of this type.
fn is_about_addresses(kind: RecordType) -> bool {
    matches!(kind, RecordType::A | RecordType::AAAA | RecordType::ANY | RecordType::CNAME)
}

/// The response for a name that does not exist.
pub fn no_such_name(query: &[u8]) -> Option<Vec<u8>> {
    let request = Message::from_vec(query).ok()?;
    match respond(&request, ResponseCode::NXDomain, &[], true) {
        Outcome::Respond(bytes) => Some(bytes),
        _ => None,
    }
}

/// The response when no upstream resolver answered.
/// The addresses in a response, in whatever section they are; `None` if it cannot be read.
pub fn addresses_in(response: &[u8]) -> Option<Vec<IpAddr>> {
    let response = Message::from_vec(response).ok()?;
    let records = response.answers.iter().chain(&response.authorities).chain(&response.additionals);
    let address = |record: &Record| match &record.data {
        RData::A(ip) => Some(IpAddr::V4(ip.0)),
        RData::AAAA(ip) => Some(ip.0.to_canonical()),
        _ => None,
    };
    Some(records.filter_map(address).collect())
}

pub(super) fn server_failure(query: &[u8]) -> Option<Vec<u8>> {
    let request = Message::from_vec(query).ok()?;
    match respond(&request, ResponseCode::ServFail, &[], true) {
        Outcome::Respond(bytes) => Some(bytes),
        _ => None,
    }
}

fn select(ips: &Arc<[IpAddr]>, record_type: RecordType) -> Vec<IpAddr> {
    ips.iter()
        .filter(|ip| match record_type {
            RecordType::A => ip.is_ipv4(),
            RecordType::AAAA => ip.is_ipv6(),
            RecordType::ANY => true,
            _ => false,
        })
        .copied()
        .collect()
}

/// Answers FORMERR if the header can be read, so that the client does not wait for its timeout.
fn malformed(query: &[u8]) -> Outcome {
    let Some(&[id_high, id_low, flags]) = query.get(..3) else { return Outcome::Ignore };
    let is_response = flags & 0x80 != 0;
    if is_response || query.len() < 12 {
        return Outcome::Ignore;
    }
    let id = u16::from_be_bytes([id_high, id_low]);
    let message = Message::error_msg(id, OpCode::Query, ResponseCode::FormErr);
    message.to_vec().map_or(Outcome::Ignore, Outcome::Respond)
}

fn respond(request: &Message, code: ResponseCode, ips: &[IpAddr], udp: bool) -> Outcome {
    let record = |ip: &IpAddr| match ip {
        IpAddr::V4(v4) => RData::A(A(*v4)),
        IpAddr::V6(v6) => RData::AAAA(AAAA(*v6)),
    };
    respond_with(request, code, ips.iter().map(record).collect(), udp)
}

fn respond_with(request: &Message, code: ResponseCode, records: Vec<RData>, udp: bool) -> Outcome {
    let mut response = Message::response(request.metadata.id, request.metadata.op_code);
    response.metadata.response_code = code;
    response.metadata.authoritative = matches!(code, ResponseCode::NoError | ResponseCode::NXDomain);
    response.metadata.recursion_desired = request.metadata.recursion_desired;
    response.metadata.recursion_available = true;
    response.add_queries(request.queries.iter().cloned());
    if let Some(question) = request.queries.first() {
        for data in records {
            response.add_answer(Record::from_rdata(question.name().clone(), TTL_SECONDS, data));
        }
    }
    encode(request, response, udp)
}

/// Encodes a response, cut to what the client takes over UDP.
pub(super) fn encode(request: &Message, mut response: Message, udp: bool) -> Outcome {
    let mut limit = UDP_PLAIN_BYTES;
    if let Some(edns) = &request.edns {
        limit = usize::from(edns.max_payload()).clamp(UDP_PLAIN_BYTES, UDP_EDNS_BYTES);
        let mut reply_edns = Edns::new();
        reply_edns.set_max_payload(UDP_EDNS_BYTES as u16);
        response.set_edns(reply_edns);
    }
    match response.to_vec() {
        Ok(bytes) if udp && bytes.len() > limit => {
            response.truncate().to_vec().map_or(Outcome::Ignore, Outcome::Respond)
        }
        Ok(bytes) => Outcome::Respond(bytes),
        Err(_) => Outcome::Ignore,
    }
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use hickory_proto::op::Query;
    use hickory_proto::rr::Name;

    use super::super::{Authority, HostEntry, SearchDomain};
    use super::*;

    fn table() -> Table {
        let entry = |host: &str, ips: Vec<IpAddr>, short_name: &str| HostEntry {
            host: host.into(),
            ips,
            short_name: short_name.into(),
            namespace: "default".into(),
        };
        let many = (0..200u8).map(|i| IpAddr::from([10, 244, 1, i])).collect();
        Table::new(
            [
                entry("info.default.svc.cluster.local", vec!["10.96.0.7".parse().expect("v4")], "info"),
                entry("db.default.svc.cluster.local", many, "db"),
            ],
            &SearchDomain { namespace: "default".into(), cluster_domain: "cluster.local".into() },
        )
    }

    fn query(name: &str, record_type: RecordType) -> Vec<u8> {
        let mut message = Message::query();
        message.metadata.id = 77;
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(Name::from_str(name).expect("a name"), record_type));
        message.to_vec().expect("encodes")
    }

    fn summary(outcome: Outcome) -> String {
        let Outcome::Respond(bytes) = outcome else { return format!("{outcome:?}") };
        let message = Message::from_vec(&bytes).expect("a message");
        assert_eq!(message.metadata.id, 77);
        let answers: Vec<_> = message.answers.iter().map(|record| record.data.to_string()).collect();
        let cut = if message.metadata.truncation { " TC" } else { "" };
        format!("{:?}{cut} [{}]", message.metadata.response_code, answers.join(" "))
    }

    #[test]
    fn answers_from_the_table() {
        let check = |name: &str, record_type: RecordType, expected: &str| {
            assert_eq!(summary(answer(&query(name, record_type), &table(), true)), expected, "{name} {record_type}");
        };
        check("info.", RecordType::A, "NoError [10.96.0.7]");
        check("INFO.default.svc.cluster.local.", RecordType::A, "NoError [10.96.0.7]");
        check("info.", RecordType::AAAA, "NoError []");
        // The cluster's name server may know more.
        check("info.", RecordType::TXT, "Forward");
        check("_http._tcp.info.default.svc.cluster.local.", RecordType::SRV, "Forward");
        check("info.default.svc.cluster.local.default.svc.cluster.local.", RecordType::A, "Forward");
        check("example.com.", RecordType::A, "Forward");
        check("db.", RecordType::A, "NoError TC []");
    }

    #[test]
    fn the_clusters_name_server_knows_what_does_not_exist() {
        let mut authority = Authority::new("cluster.local", ([10, 244, 0, 0].into(), 16));
        authority.add_port("info.default.svc.cluster.local", "http", false, 80, "info.default.svc.cluster.local");
        authority.add_pointer([10, 96, 0, 7].into(), "info.default.svc.cluster.local");
        let table = table().with_authority(authority);
        let check = |name: &str, record_type: RecordType, expected: &str| {
            assert_eq!(summary(answer(&query(name, record_type), &table, true)), expected, "{name} {record_type}");
        };
        let info = "0 100 80 info.default.svc.cluster.local.";
        check("info.default.svc.cluster.local.", RecordType::A, "NoError [10.96.0.7]");
        check("_http._tcp.info.default.svc.cluster.local.", RecordType::SRV, &format!("NoError [{info}]"));
        check("_ftp._tcp.info.default.svc.cluster.local.", RecordType::SRV, "NXDomain []");
        check("info.default.svc.cluster.local.", RecordType::TXT, "NoError []");
        check("7.0.96.10.in-addr.arpa.", RecordType::PTR, "NoError [info.default.svc.cluster.local.]");
        check("10-244-1-7.default.pod.cluster.local.", RecordType::A, "NoError [10.244.1.7]");
        check("10-244-1-7.default.pod.cluster.local.", RecordType::AAAA, "NoError []");
        check("nosuch.default.svc.cluster.local.", RecordType::A, "NXDomain []");
        check("example.com.", RecordType::A, "Forward");
    }

    #[test]
    fn tcp_responses_are_whole() {
        let Outcome::Respond(bytes) = answer(&query("db.", RecordType::A), &table(), false) else {
            panic!("an answer")
        };
        assert_eq!(Message::from_vec(&bytes).expect("a message").answers.len(), 200);
    }

    #[test]
    fn garbage_is_refused_or_ignored() {
        let check = |bytes: &[u8], expected: &str| {
            let outcome = match answer(bytes, &table(), true) {
                Outcome::Respond(reply) => {
                    format!("{:?}", Message::from_vec(&reply).expect("valid").metadata.response_code)
                }
                other => format!("{other:?}"),
            };
            assert_eq!(outcome, expected, "{bytes:02x?}");
        };
        check(b"", "Ignore");
        check(b"\x00", "Ignore");
        check(b"GET / HTTP/1.1\r\n\r\n", "FormErr");
        check(&[0, 77, 0x80, 0, 0, 1, 0, 0, 0, 0, 0, 0], "Ignore");
        check(&[0, 77, 1, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xc0, 0x0c], "FormErr");
        check(&[0, 77, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0], "FormErr");
    }

    #[test]
    fn arbitrary_bytes_never_panic() {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let valid = query("info.", RecordType::A);
        for round in 0..20_000usize {
            let mut bytes = valid.clone();
            for _ in 0..=round % 5 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let at = (state >> 33) as usize % bytes.len();
                bytes[at] = (state >> 24) as u8;
            }
            bytes.truncate((state >> 40) as usize % (bytes.len() + 1));
            answer(&bytes, &table(), round % 2 == 0);
        }
    }
}
