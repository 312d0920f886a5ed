//! Reads from a cluster what checks look at.

use std::time::{SystemTime, UNIX_EPOCH};

use evenkeel_install::checks::{Answer, NEEDED, Picture, RIGHTS, Stage};
use evenkeel_k8s::cluster::{Cluster, ObjectKind, Permission, Selection};

use super::Target;

/// Reads everything that the checks of a stage need. What cannot be read is noted with the reason.
pub async fn picture(cluster: &Cluster, target: &Target, stage: Stage) -> Picture {
    let mut picture = Picture {
        namespace: target.namespace.clone(),
        revision: target.revision().to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        server_version: Some(cluster.version().await.map_err(|error| error.to_string())),
        skew_s: skew(cluster).await,
        now_s: seconds(SystemTime::now()),
        ..Picture::default()
    };
    if let Some(Err(_)) = picture.server_version {
        // Every other call would wait for the same server.
        return picture;
    }
    for needed in NEEDED {
        let kind = ObjectKind { api_version: needed.api_version, kind: needed.kind };
        let namespace = needed.is_local.then_some(target.namespace.as_str());
        let listed = cluster.list(kind, Selection { namespace, labels: "" }).await;
        picture.objects.insert(needed.kind, listed.map_err(|error| error.to_string()));
    }
    if stage == Stage::Before {
        for right in RIGHTS {
            let namespace = right.is_local.then_some(target.namespace.as_str());
            let permission = Permission { verb: right.verb, group: right.group, resource: right.resource, namespace };
            let allowed = cluster.may(&permission).await.map_err(|error| error.to_string());
            picture.rights.push(Answer { right: *right, allowed });
        }
    }
    picture
}

fn seconds(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

async fn skew(cluster: &Cluster) -> Option<i64> {
    let theirs = cluster.clock().await.ok().flatten()?;
    Some(seconds(theirs) - seconds(SystemTime::now()))
}
