//! The incremental protocol, seen from the client.

use std::collections::{BTreeMap, BTreeSet};

use super::{Received, Rejected, ResponseError, SPEAKING_ORDER, Update, error_detail};
use crate::ages::Ages;
use crate::pb::envoy::config::core::v3::Node;
use crate::pb::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use crate::pb::google::rpc;
use crate::{Cause, ResourceType, digest, evenkeel, metadata, type_url};

/// One delta ADS subscriber.
#[derive(Debug)]
pub struct Client {
    node: Node,
    node_sent: bool,
    types: [TypeState; ResourceType::ALL.len()],
    /// Whether the server is an Evenkeel control plane, which understands our extensions.
    server_is_ours: bool,
    /// Ages of applied changes, by type.
    ages: [Ages; ResourceType::ALL.len()],
    report_due: bool,
    /// Types whose resources the next report lists completely.
    to_list: Vec<ResourceType>,
}

#[derive(Debug, Default)]
struct TypeState {
    wildcard: bool,
    names: BTreeSet<String>,
    /// Accepted resources and their versions.
    held: BTreeMap<String, String>,
    /// Resources that were received and refused. The applier may still use an earlier version, so it must be told when
    /// they are gone.
    refused: BTreeSet<String>,
    /// Names that were requested and never answered yet.
    unanswered: BTreeSet<String>,
    /// Whether everything was requested and nothing has arrived yet.
    all_unanswered: bool,
    /// Whether this stream has carried a request of the type.
    started: bool,
    to_subscribe: BTreeSet<String>,
    to_unsubscribe: BTreeSet<String>,
    answers: Vec<Answer>,
    /// Nonce of the last answered response of this stream.
    last_nonce: String,
}

#[derive(Debug)]
struct Answer {
    nonce: String,
    error: Option<rpc::Status>,
}

impl TypeState {
    fn is_subscribed(&self) -> bool {
        self.wildcard || !self.names.is_empty()
    }
}

impl Client {
    /// A client without subscriptions.
    pub fn new(node: Node) -> Self {
        Self {
            node,
            node_sent: false,
            types: Default::default(),
            server_is_ours: false,
            ages: Default::default(),
            report_due: false,
            to_list: Vec::new(),
        }
    }

    /// Subscribes to everything of a type.
    pub fn subscribe_all(&mut self, kind: ResourceType) {
        let state = &mut self.types[kind.index()];
        if !state.wildcard {
            state.wildcard = true;
            state.all_unanswered = true;
            if state.started {
                state.to_subscribe.insert("*".to_owned());
            }
        }
    }

    /// Replaces the subscribed names of a type.
    pub fn set_names<'a>(&mut self, kind: ResourceType, names: impl IntoIterator<Item = &'a str>) {
        let state = &mut self.types[kind.index()];
        let names: BTreeSet<String> = names.into_iter().map(str::to_owned).collect();
        for gone in state.names.difference(&names) {
            state.unanswered.remove(gone);
            if !state.to_subscribe.remove(gone) {
                state.to_unsubscribe.insert(gone.clone());
            }
            if !state.wildcard {
                state.held.remove(gone);
                state.refused.remove(gone);
            }
        }
        for new in names.difference(&state.names) {
            // A name that was dropped and added again before the server was told has lost its resource, so it is
            // requested again.
            state.to_unsubscribe.remove(new);
            state.to_subscribe.insert(new.clone());
            state.unanswered.insert(new.clone());
        }
        state.names = names;
    }

    /// Subscribes to one more name, or asks again for a subscribed name that does not exist.
    pub fn subscribe(&mut self, kind: ResourceType, name: &str) {
        let state = &mut self.types[kind.index()];
        if state.names.insert(name.to_owned()) {
            state.unanswered.insert(name.to_owned());
        }
        state.to_unsubscribe.remove(name);
        state.to_subscribe.insert(name.to_owned());
    }

    /// Unsubscribes from a name.
    pub fn unsubscribe(&mut self, kind: ResourceType, name: &str) {
        let state = &mut self.types[kind.index()];
        if !state.names.remove(name) {
            return;
        }
        state.unanswered.remove(name);
        if !state.to_subscribe.remove(name) {
            state.to_unsubscribe.insert(name.to_owned());
        }
        if !state.wildcard {
            state.held.remove(name);
            state.refused.remove(name);
        }
    }

    /// A new stream begins: subscribes to everything again, with the held versions.
    pub fn on_connect(&mut self) {
        self.node_sent = false;
        self.server_is_ours = false;
        self.report_due = false;
        self.to_list.clear();
        for state in &mut self.types {
            state.started = false;
            state.last_nonce.clear();
            state.to_subscribe.clear();
            state.to_unsubscribe.clear();
            state.answers.clear();
        }
    }

    /// Processes a response.
    pub fn on_response(&mut self, response: DeltaDiscoveryResponse) -> Result<Update, ResponseError> {
        if response.type_url == type_url::REPORT && self.server_is_ours {
            return Ok(self.on_listing_request(&response));
        }
        let identifier = response.control_plane.as_ref().map(|control_plane| control_plane.identifier.as_str());
        self.server_is_ours = identifier.is_some_and(|identifier| identifier.starts_with(evenkeel::IDENTIFIER_PREFIX));
        let kind = ResourceType::from_type_url(&response.type_url)
            .filter(|kind| self.types[kind.index()].started)
            .ok_or(ResponseError::Unexpected(response.type_url))?;
        let state = &mut self.types[kind.index()];
        let all_first = std::mem::take(&mut state.all_unanswered);
        let mut added = Vec::with_capacity(response.resources.len());
        let mut removed = response.removed_resources;
        removed.iter().for_each(|name| _ = state.unanswered.remove(name));
        for resource in response.resources {
            let (cause, _) = metadata::read(resource.metadata.as_ref());
            let first = state.unanswered.remove(&resource.name) || all_first;
            match resource.resource {
                Some(any) => added.push(Received { name: resource.name, version: resource.version, any, cause, first }),
                // This is how VHDS says that there is no such host.
                None => removed.push(resource.name),
            }
        }
        Ok(Update { kind, added, removed, nonce: response.nonce, version: response.system_version_info })
    }

    /// Handles a request of the server to list everything held of some types. This is not an update and has no answer.
    fn on_listing_request(&mut self, response: &DeltaDiscoveryResponse) -> Update {
        for any in response.resources.iter().filter_map(|resource| resource.resource.as_ref()) {
            let Ok(request) = crate::unpack::<evenkeel::ListingRequest>(any) else { continue };
            self.to_list.extend(request.type_urls.iter().filter_map(|url| ResourceType::from_type_url(url)));
            self.to_list.sort_unstable();
            self.to_list.dedup();
        }
        self.report_due = true;
        let (nonce, version) = (String::new(), String::new());
        Update { kind: ResourceType::NameTable, added: Vec::new(), removed: Vec::new(), nonce, version }
    }

    /// Records that a change was applied now, in microseconds since 1970.
    pub fn applied(&mut self, kind: ResourceType, cause: Cause, now_us: u64) {
        self.ages[kind.index()].record(cause.time_us, now_us);
    }

    /// Schedules a report to the server, if it is an Evenkeel control plane.
    pub fn report(&mut self) {
        self.report_due = self.server_is_ours;
    }

    fn next_report(&mut self) -> DeltaDiscoveryRequest {
        self.report_due = false;
        let to_list = std::mem::take(&mut self.to_list);
        let types = ResourceType::ALL.into_iter().filter(|kind| self.types[kind.index()].started);
        let report = types.map(|kind| {
            let state = &self.types[kind.index()];
            let is_listing = to_list.contains(&kind);
            evenkeel::TypeReport {
                type_url: kind.type_url().to_owned(),
                nonce: state.last_nonce.clone(),
                digest: digest::of(state.held.iter()),
                resources: state.held.len() as u64,
                ages: self.ages[kind.index()].take(),
                held: state.held.iter().filter(|_| is_listing).map(|(k, v)| (k.clone(), v.clone())).collect(),
                is_listing,
            }
        });
        let report = evenkeel::Report { types: report.collect() };
        DeltaDiscoveryRequest { error_detail: Some(report.into_status()), ..Default::default() }
    }

    /// Accepts an update, or refuses the named resources.
    pub fn answer(&mut self, update: &Update, rejected: &[Rejected]) {
        if update.nonce.is_empty() {
            return;
        }
        let state = &mut self.types[update.kind.index()];
        for received in &update.added {
            let wanted = state.wildcard || state.names.contains(&received.name);
            if rejected.iter().any(|rejected| rejected.name == received.name) {
                state.refused.insert(received.name.clone());
            } else if wanted {
                state.held.insert(received.name.clone(), received.version.clone());
                state.refused.remove(&received.name);
            }
        }
        for name in &update.removed {
            if !rejected.iter().any(|rejected| rejected.name == *name) {
                state.held.remove(name);
                state.refused.remove(name);
            }
        }
        let mut error = error_detail(rejected);
        if let Some(error) = error.as_mut().filter(|_| self.server_is_ours) {
            let names = rejected.iter().map(|rejected| rejected.name.clone()).collect();
            error.details.push(crate::pack(&evenkeel::Rejections { names }));
        }
        state.last_nonce.clone_from(&update.nonce);
        state.answers.push(Answer { nonce: update.nonce.clone(), error });
    }

    /// The next request to send, until there is none.
    pub fn poll_request(&mut self) -> Option<DeltaDiscoveryRequest> {
        let starting = ResourceType::ALL.into_iter().filter(|kind| !self.types[kind.index()].started);
        let order: Vec<ResourceType> = starting.chain(SPEAKING_ORDER).collect();
        let next = order.into_iter().find_map(|kind| Some((kind, self.types[kind.index()].next_request(kind)?)));
        let mut request = match next {
            Some((kind, request)) => DeltaDiscoveryRequest { type_url: kind.type_url().to_owned(), ..request },
            // The report comes last, because it describes the state after all answers before it.
            None if self.report_due => {
                DeltaDiscoveryRequest { type_url: type_url::REPORT.to_owned(), ..self.next_report() }
            }
            None => return None,
        };
        if !self.node_sent {
            self.node_sent = true;
            request.node = Some(self.node.clone());
        }
        Some(request)
    }

    /// Makes the client hold something else than it applied, as a fault would.
    #[cfg(test)]
    pub(crate) fn corrupt(&mut self, kind: ResourceType) -> &mut BTreeMap<String, String> {
        &mut self.types[kind.index()].held
    }

    pub(super) fn held_map(&self, kind: ResourceType) -> &BTreeMap<String, String> {
        &self.types[kind.index()].held
    }
}

impl TypeState {
    fn next_request(&mut self, kind: ResourceType) -> Option<DeltaDiscoveryRequest> {
        if !self.started {
            return self.is_subscribed().then(|| self.first_request(kind));
        }
        let answer = (!self.answers.is_empty()).then(|| self.answers.remove(0));
        if answer.is_none() && self.to_subscribe.is_empty() && self.to_unsubscribe.is_empty() {
            return None;
        }
        let (response_nonce, error_detail) = answer.map(|a| (a.nonce, a.error)).unwrap_or_default();
        Some(DeltaDiscoveryRequest {
            resource_names_subscribe: std::mem::take(&mut self.to_subscribe).into_iter().collect(),
            resource_names_unsubscribe: std::mem::take(&mut self.to_unsubscribe).into_iter().collect(),
            response_nonce,
            error_detail,
            ..Default::default()
        })
    }

    fn first_request(&mut self, kind: ResourceType) -> DeltaDiscoveryRequest {
        self.started = true;
        self.to_subscribe.clear();
        self.to_unsubscribe.clear();
        // Send "*" only if an empty list does not already mean everything: old servers do not know "*".
        let star = self.wildcard && (!self.names.is_empty() || !kind.defaults_to_wildcard());
        DeltaDiscoveryRequest {
            resource_names_subscribe: star
                .then(|| "*".to_owned())
                .into_iter()
                .chain(self.names.iter().cloned())
                .collect(),
            // A refused resource is listed without a version: the server sends it again or says that it is gone.
            initial_resource_versions: (self.refused.iter().map(|name| (name.clone(), String::new())))
                .chain(self.held.iter().map(|(name, version)| (name.clone(), version.clone())))
                .collect(),
            ..Default::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Any;
    use crate::pb::envoy::service::discovery::v3::Resource;

    /// Processes a response with these names; returns for each resource whether it is a first answer.
    fn first(client: &mut Client, kind: ResourceType, names: &[&str], removed: &[&str]) -> Vec<bool> {
        let any = Any { type_url: kind.type_url().to_owned(), value: Vec::new() };
        let resource =
            |name: &&str| Resource { name: (*name).to_owned(), resource: Some(any.clone()), ..Default::default() };
        let response = DeltaDiscoveryResponse {
            type_url: kind.type_url().to_owned(),
            resources: names.iter().map(resource).collect(),
            removed_resources: removed.iter().map(|name| (*name).to_owned()).collect(),
            ..Default::default()
        };
        client.on_response(response).expect("asked for").added.iter().map(|received| received.first).collect()
    }

    #[test]
    fn a_first_answer_is_told_from_a_change() {
        use ResourceType::{Cluster, VirtualHost};
        let mut client = Client::new(Node::default());
        client.subscribe_all(Cluster);
        client.set_names(VirtualHost, ["80/a", "80/b"]);
        client.on_connect();
        while client.poll_request().is_some() {}
        assert_eq!(first(&mut client, Cluster, &["a", "b"], &[]), [true, true]);
        assert_eq!(first(&mut client, Cluster, &["b", "c"], &[]), [false, false]);
        assert_eq!(first(&mut client, VirtualHost, &["80/a"], &["80/b"]), [true]);
        // A resource that was absent now exists, which is a change and not a first answer.
        assert_eq!(first(&mut client, VirtualHost, &["80/a", "80/b"], &[]), [false, false]);
        client.set_names(VirtualHost, ["80/b", "80/c"]);
        client.on_connect();
        while client.poll_request().is_some() {}
        // A change that was missed while disconnected has its age.
        assert_eq!(first(&mut client, VirtualHost, &["80/b", "80/c"], &[]), [false, true]);
        assert_eq!(first(&mut client, Cluster, &["a"], &[]), [false]);
    }
}
