//! Generates all resources of a proxy from scratch; the incremental results are compared with it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evenkeel_model::{Reads, Snapshot, Tracked};
use evenkeel_xds::ResourceSet;

use crate::context::Context;
use crate::facts::{Client, Facts};
use crate::finish::Patches;
use crate::output::{Collection, Output, Part, Unit};
use crate::view::{ProxyKind, ProxyView};

/// All resources of one proxy. `generation` is the snapshot's.
pub fn resources(view: &ProxyView, snapshot: &Snapshot, generation: u64) -> ResourceSet {
    generate(view, snapshot, generation, false, Patches::default())
}

/// All resources of one proxy, for an explanation: the `config` of a route's metadata also has the position of its rule
/// in the user's files, which [`split_origin`](crate::split_origin) separates.
pub fn traced_resources(view: &ProxyView, snapshot: &Snapshot) -> ResourceSet {
    generate(view, snapshot, 1, true, Patches::default())
}

/// All resources of one proxy, changed by these patches.
pub fn patched_resources(view: &ProxyView, snapshot: &Snapshot, patches: Patches<'_>) -> ResourceSet {
    generate(view, snapshot, 1, false, patches)
}

fn generate(view: &ProxyView, snapshot: &Snapshot, generation: u64, traced: bool, patches: Patches<'_>) -> ResourceSet {
    let (reads, facts) = (Reads::new(), Facts::new());
    let client = Client::new(Arc::new(view.clone()), snapshot);
    let context = Context::new(&client, Tracked::new(snapshot, &reads), &facts).traced(traced).patched(patches);
    let mut set = ResourceSet::new(generation);
    let mut parts: BTreeMap<Collection, Vec<Part>> = BTreeMap::new();
    for unit in units(view, snapshot) {
        let mut out = Output::new(patches);
        unit.generate(context, &[], &mut out);
        collect(out, &mut set, &mut parts);
    }
    // An assembly adds parts only to later collections.
    while let Some((collection, given)) = parts.pop_first() {
        let mut out = Output::new(patches);
        Unit::Assembly(collection).generate(context, &given.iter().collect::<Vec<_>>(), &mut out);
        collect(out, &mut set, &mut parts);
    }
    // Its own resources come before shared ones.
    for unit in Unit::of_one(client.is_sidecar()) {
        let mut out = Output::new(patches);
        unit.generate(context, &[], &mut out);
        collect(out, &mut set, &mut parts);
    }
    set
}

fn collect(out: Output<'_>, set: &mut ResourceSet, parts: &mut BTreeMap<Collection, Vec<Part>>) {
    for (kind, resource) in out.resources {
        set.insert(kind, Arc::new(resource));
    }
    for (collection, part) in out.parts {
        parts.entry(collection).or_default().push(part);
    }
}

/// The units of a proxy that are neither assembled nor its own, in order.
fn units(view: &ProxyView, snapshot: &Snapshot) -> BTreeSet<Unit> {
    let sidecar = view.kind == ProxyKind::Sidecar;
    let mut all: BTreeSet<Unit> = Unit::of_mesh(snapshot).collect();
    all.extend(Unit::of_kind(sidecar).iter().cloned());
    all
}
