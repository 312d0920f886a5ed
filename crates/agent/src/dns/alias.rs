//! Names that are other names of a host (Services of type ExternalName): the query for the host, and the response with
//! a CNAME before the host's own records (RFC 1034 section 4.3.2, step 3a); no I/O.

use std::sync::Arc;

use hickory_proto::ProtoError;
use hickory_proto::op::{Message, Query};
use hickory_proto::rr::rdata::CNAME;
use hickory_proto::rr::{Name, RData, Record, RecordType};

use super::Outcome;
use super::answer::{TTL_SECONDS, encode, server_failure};

/// The longest chain of aliases that is followed, in hops. The control plane follows as many.
const MAX_HOPS: usize = 8;

/// The aliases that led away from the name of a query.
#[derive(Debug)]
pub struct Chain<'q> {
    query: &'q [u8],
    hosts: Vec<Arc<str>>,
}

impl<'q> Chain<'q> {
    /// For a query.
    pub fn new(query: &'q [u8]) -> Self {
        Self { query, hosts: Vec::new() }
    }

    /// The query for the host that an alias leads to. `None` ends the chain: the CNAME alone was requested, or it is a
    /// circle, too long, or leads to what is not a name.
    pub fn follow(&mut self, host: Arc<str>) -> Option<Vec<u8>> {
        if self.hosts.len() >= MAX_HOPS || self.hosts.contains(&host) {
            self.hosts.clear();
            return None;
        }
        let next = self.next_query(&host);
        self.hosts.push(host);
        next
    }

    fn next_query(&self, host: &str) -> Option<Vec<u8>> {
        let request = Message::from_vec(self.query).ok()?;
        let question = request.queries.first()?;
        if question.query_type() == RecordType::CNAME {
            return None;
        }
        let mut next = Message::query();
        next.metadata.id = request.metadata.id;
        next.metadata.recursion_desired = request.metadata.recursion_desired;
        next.add_query(Query::query(absolute(host).ok()?, question.query_type()));
        next.edns = request.edns;
        next.to_vec().ok()
    }

    /// The response to the client, made of that of the last host.
    pub fn respond(self, last: Option<Vec<u8>>, udp: bool) -> Option<Vec<u8>> {
        if self.hosts.is_empty() {
            return last.or_else(|| server_failure(self.query));
        }
        self.with_chain(last.as_deref(), udp).or_else(|| server_failure(self.query))
    }

    fn with_chain(&self, last: Option<&[u8]>, udp: bool) -> Option<Vec<u8>> {
        let request = Message::from_vec(self.query).ok()?;
        let question = request.queries.first()?;
        let mut response = Message::response(request.metadata.id, request.metadata.op_code);
        response.metadata.authoritative = true;
        response.metadata.recursion_desired = request.metadata.recursion_desired;
        response.metadata.recursion_available = true;
        response.add_queries(request.queries.iter().cloned());
        let mut owner = question.name().clone();
        for host in &self.hosts {
            let target = absolute(host).ok()?;
            response.add_answer(Record::from_rdata(owner, TTL_SECONDS, RData::CNAME(CNAME(target.clone()))));
            owner = target;
        }
        if question.query_type() != RecordType::CNAME {
            let last = Message::from_vec(last?).ok()?;
            response.metadata.response_code = last.metadata.response_code;
            response.metadata.truncation = last.metadata.truncation;
            response.add_answers(last.answers);
            response.authorities = last.authorities;
        }
        match encode(&request, response, udp) {
            Outcome::Respond(bytes) => Some(bytes),
            _ => None,
        }
    }
}

fn absolute(host: &str) -> Result<Name, ProtoError> {
    let mut name = Name::from_ascii(host)?;
    name.set_fqdn(true);
    Ok(name)
}
