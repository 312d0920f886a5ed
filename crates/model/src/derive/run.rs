//! What each step does: it reads, then it writes.

use std::sync::Arc;

use evenkeel_api::{Kind, ObjectKey};
use evenkeel_base::Diagnostics;
use evenkeel_base::hostname::Hostname;

use super::objects;
use super::step::{ServiceKey, Step};
use super::tracking::{Cx, Fact, Key, Tracker};
use super::{
    Tables, destination_rules, endpoints, gateways, mesh, policies, services, sidecars, virtual_services, workloads,
};
use crate::{GatewayRef, MeshConfig};

/// What came of a step.
pub(super) struct Outcome {
    /// What it has read; `None`: there is nothing left that it could be about.
    pub reads: Option<Vec<Key>>,
    /// What is to be said of the objects.
    pub found: Diagnostics,
}

/// Does one step. `defaults` are the settings that a ConfigMap does not override.
pub(super) fn run(step: &Step, tables: &mut Tables, tracker: &mut Tracker, defaults: &MeshConfig) -> Outcome {
    let mut run = Run { tables, tracker, reads: Vec::new(), found: Diagnostics::new() };
    let keep = match step {
        Step::Duplicates(id) => run.duplicates(id),
        Step::Mesh => run.mesh(defaults),
        Step::Namespaces => run.namespaces(),
        Step::Service(id) => run.service(id),
        Step::Want(host) => run.want(host),
        Step::Addresses => run.addresses(),
        Step::Host(host) => run.host(host),
        Step::Peers(namespace) => run.peers(namespace),
        Step::Policy(id) => run.policy(id),
        Step::Workload(id) => run.workload(id),
        Step::Conflict(overruled, first, port) => run.conflict(overruled, first, *port),
        Step::Endpoints(service) => run.endpoints(service),
        Step::Slice(id) => run.slice(id),
        Step::Rule(id) => run.rule(id),
        Step::Rules(namespace, host) => run.rules(&(namespace.clone(), host.clone())),
        Step::Gateways => run.gateways(),
        Step::Route(id) => run.route(id),
        Step::GatewayHost(gateway, host) => run.gateway_host(gateway, host),
        Step::MeshHost(host) => run.mesh_host(host),
        Step::Parts(id) => run.parts(id),
        Step::Sidecars(namespace) => run.sidecars(namespace),
    };
    Outcome { reads: keep.then_some(run.reads), found: run.found }
}

/// A step at work. Each says whether it has anything left to be about.
struct Run<'b> {
    tables: &'b mut Tables,
    tracker: &'b mut Tracker,
    reads: Vec<Key>,
    found: Diagnostics,
}

impl Run<'_> {
    /// All that a step reads, in one go: what it writes must not change what it has read.
    fn read<T>(&mut self, ask: impl FnOnce(&Cx<'_>, &mut Diagnostics) -> T) -> T {
        let cx = Cx::new(self.tables);
        let made = ask(&cx, &mut self.found);
        self.reads = cx.into_reads();
        made
    }

    fn duplicates(&mut self, id: &ObjectKey) -> bool {
        self.read(|cx, found| {
            objects::note_duplicates(cx, id, found);
            cx.claims(id).len() > 1
        })
    }

    fn mesh(&mut self, defaults: &MeshConfig) -> bool {
        let mesh = self.read(|cx, found| mesh::settings(cx, defaults, found));
        if mesh != self.tables.mesh {
            self.tables.mesh = mesh;
            self.tracker.all_changed();
        }
        true
    }

    fn namespaces(&mut self) -> bool {
        let labels =
            self.read(|cx, _| cx.objects(Kind::Namespace).map(|o| (o.name.clone(), o.labels.clone())).collect());
        self.tables.namespaces = Arc::new(labels);
        true
    }

    fn service(&mut self, id: &ObjectKey) -> bool {
        let drafts = self.read(|cx, found| services::drafts(cx, id, found));
        let keep = drafts.is_some();
        let Tables { services, addresses, .. } = self.tables;
        services.set_drafts(id, drafts, addresses, self.tracker);
        keep
    }

    fn want(&mut self, host: &Hostname) -> bool {
        let (range, keep) = self.read(|cx, _| (services::want(cx, host), services::is_described(cx, host)));
        self.tables.addresses.want(host.as_str(), range);
        self.tracker.want(Step::Addresses);
        keep
    }

    fn addresses(&mut self) -> bool {
        for host in self.tables.addresses.allot() {
            self.tracker.changed(Fact::Address(&host));
        }
        true
    }

    fn host(&mut self, host: &Hostname) -> bool {
        let listed = self.read(|cx, found| services::listed(cx, host, found));
        let keep = !listed.is_empty();
        self.tables.services.set_listed(host, listed, self.tracker);
        keep
    }

    fn peers(&mut self, namespace: &Arc<str>) -> bool {
        let (peers, keep) = self.read(|cx, found| {
            let peers = policies::peer_authentications(cx, namespace, found);
            (peers, !cx.objects_in(Kind::PeerAuthentication, namespace).is_empty())
        });
        self.tables.policies.set_peers(namespace, peers, self.tracker);
        keep
    }

    fn policy(&mut self, id: &ObjectKey) -> bool {
        let policies = self.read(|cx, found| policies::authorization_policies(cx, id, found));
        let keep = !policies.is_empty();
        self.tables.policies.set_authorization(id, policies);
        keep
    }

    fn workload(&mut self, id: &ObjectKey) -> bool {
        let (workload, keep) = self.read(|cx, found| (workloads::workload(cx, id, found), cx.object(id).is_some()));
        self.tables.workloads.set(id, workload, self.tracker);
        keep
    }

    fn conflict(&mut self, overruled: &Hostname, first: &Hostname, port: u16) -> bool {
        self.read(|cx, found| {
            let conflict = workloads::conflict(cx, &(overruled.clone(), first.clone(), port));
            let keep = conflict.is_some();
            found.extend(conflict);
            keep
        })
    }

    fn endpoints(&mut self, service: &ServiceKey) -> bool {
        let (endpoints, keep) =
            self.read(|cx, _| (endpoints::endpoints(cx, service), cx.service_in(&service.1, &service.0).is_some()));
        self.tables.endpoints.set(service, endpoints);
        keep
    }

    fn slice(&mut self, id: &ObjectKey) -> bool {
        self.read(|cx, found| {
            endpoints::note_slice(cx, id, found);
            cx.object(id).is_some()
        })
    }

    fn rule(&mut self, id: &ObjectKey) -> bool {
        let (draft, keep) = self.read(|cx, found| (destination_rules::draft(cx, id, found), cx.object(id).is_some()));
        self.tables.rules.set_draft(id, draft, self.tracker);
        keep
    }

    fn rules(&mut self, key: &ServiceKey) -> bool {
        let merged = self.read(|cx, found| destination_rules::merged(cx, key, found));
        let keep = !merged.is_empty();
        self.tables.rules.set_merged(key, merged, self.tracker);
        keep
    }

    fn gateways(&mut self) -> bool {
        let gateways = self.read(gateways::gateways);
        self.tables.gateways.set(gateways, self.tracker);
        true
    }

    fn route(&mut self, id: &ObjectKey) -> bool {
        let whole = self.read(|cx, found| virtual_services::whole(cx, id, found));
        let keep = whole.is_some();
        self.tables.routes.set_whole(id, whole, self.tracker);
        keep
    }

    fn gateway_host(&mut self, gateway: &GatewayRef, host: &Hostname) -> bool {
        self.read(|cx, found| {
            virtual_services::note_merged(cx, gateway, host, found);
            virtual_services::is_claimed_at(cx, gateway, host)
        })
    }

    fn mesh_host(&mut self, host: &Hostname) -> bool {
        let granted = self.read(|cx, found| virtual_services::granted(cx, host, found));
        let keep = !granted.is_empty();
        self.tables.routes.set_granted(host, granted, self.tracker);
        keep
    }

    fn parts(&mut self, id: &ObjectKey) -> bool {
        let (parts, keep) = self.read(|cx, _| (virtual_services::parts(cx, id), cx.object(id).is_some()));
        self.tables.routes.set_parts(id, parts);
        keep
    }

    fn sidecars(&mut self, namespace: &Arc<str>) -> bool {
        let (sidecars, keep) = self.read(|cx, found| {
            (sidecars::sidecars(cx, namespace, found), !cx.objects_in(Kind::Sidecar, namespace).is_empty())
        });
        self.tables.sidecars.set(namespace, sidecars);
        keep
    }
}
