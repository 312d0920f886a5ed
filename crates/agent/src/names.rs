//! The agent's own stream: the name table (NDS) that the DNS proxy answers from, and the roots to trust (PCDS).

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::Context as _;
use evenkeel_tls::SecretStore;
use evenkeel_xds::client::connection::Service;
use evenkeel_xds::client::{Backoff, Client, Connection, ConnectionError, Protocol, Rejected, Update};
use evenkeel_xds::istio::mesh::ProxyConfig;
use evenkeel_xds::istio::nds::NameTable;
use evenkeel_xds::istio::nds::name_table::NameInfo;
use evenkeel_xds::pb::envoy::config::core::v3::Node;
use evenkeel_xds::pb::google::protobuf::value::Kind;
use evenkeel_xds::pb::google::protobuf::{self as wkt, Struct};
use evenkeel_xds::{ResourceType, unpack};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};

use crate::channel;
use crate::dns::{AliasEntry, Answers, HostEntry, Known, Names, SearchDomain, Table, normal};
use crate::options::Options;
use crate::trust::{Bundle, ControlPlaneRoots, Pushed};

/// Names that an agent with learned scope keeps, including those that the mesh does not have. Above this limit it
/// forgets the latter first, then the rest.
const MAX_NAMES: usize = 4096;
/// The name that an agent with learned scope subscribes to first, so that it has a stream. No host can have this name.
const NO_NAME: &str = "-";

/// Updates `names` from the control plane and reconnects when the stream ends; meanwhile the last table stays in use.
/// Runs until the future is dropped.
pub async fn follow(options: Options, node: Node, secrets: SecretStore, names: Option<Names>, trust: TrustPath) {
    let mut client = Client::new(Protocol::Delta, node);
    client.subscribe_all(ResourceType::ProxyConfig);
    let wanted = names.is_some();
    let names = names.unwrap_or_default();
    let asked = names.take_asked();
    match asked {
        _ if !wanted => {}
        Some(_) => client.set_names(ResourceType::NameTable, [NO_NAME]),
        None => client.subscribe_all(ResourceType::NameTable),
    }
    let search = SearchDomain { namespace: options.namespace.clone(), cluster_domain: options.cluster_domain.clone() };
    let mut subscription =
        NameSubscription { client, names, search, held: BTreeMap::new(), answers: Answers::new(), asked, trust };
    let mut backoff = Backoff::new(Backoff::BASE, Backoff::MAX, u64::from(std::process::id()));
    loop {
        let ended = subscription.stream(&options, &secrets, &mut backoff).await;
        subscription.names.set_connected(false);
        match ended {
            // With the new certificate.
            Ok(()) => continue,
            Err(error) => tracing::info!(%error, "the agent's stream ended; connecting again"),
        }
        tokio::time::sleep(backoff.next_wait()).await;
    }
}

/// The state of the subscription to the name table.
struct NameSubscription {
    client: Client,
    names: Names,
    search: SearchDomain,
    /// Tables by resource name: one for all names, or one for each.
    held: BTreeMap<String, NameTable>,
    /// Names that were requested, with their addresses.
    answers: Answers,
    /// Queue of names to request; `None` if the control plane sends all names.
    asked: Option<mpsc::Receiver<Box<str>>>,
    trust: TrustPath,
}

/// The channels for roots from the control plane, and for notices of new certificates.
pub struct TrustPath {
    /// To the task that keeps the certificate.
    pub pushed: mpsc::Sender<Pushed>,
    /// Changes when the proxy uses a new certificate.
    pub renewed: watch::Receiver<u64>,
    /// Verify the control plane.
    pub roots: ControlPlaneRoots,
}

/// Roots that the proxy has not confirmed yet.
struct Unconfirmed {
    update: Update,
    confirmed: oneshot::Receiver<Result<(), String>>,
}

impl NameSubscription {
    async fn stream(&mut self, options: &Options, secrets: &SecretStore, backoff: &mut Backoff) -> anyhow::Result<()> {
        self.trust.renewed.mark_unchanged();
        let channel = channel::connect(options, &self.trust.roots, Some(secrets)).await?;
        self.client.on_connect();
        let first = self.client.poll_request().context("nothing to ask for")?;
        let mut connection = Connection::open(channel, Service::Aggregated, first).await?;
        self.names.set_connected(true);
        let mut unconfirmed: Option<Unconfirmed> = None;
        loop {
            send_all(&mut self.client, &connection).await?;
            tokio::select! {
                response = connection.next() => {
                    let update = self.client.on_response(response?)?;
                    backoff.reset();
                    if update.kind == ResourceType::ProxyConfig {
                        // One is in flight at a time.
                        unconfirmed = self.pass_on(update).await;
                        continue;
                    }
                    let rejected = self.apply(&update);
                    self.client.answer(&update, &rejected);
                }
                result = confirmed(&mut unconfirmed) => {
                    if let Some(Unconfirmed { update, .. }) = unconfirmed.take() {
                        let rejected = result.err().map(|reason| Rejected { name: String::new(), reason });
                        self.client.answer(&update, rejected.as_slice());
                    }
                }
                Some(name) = next(&mut self.asked) => self.ask(&name),
                Ok(()) = self.trust.renewed.changed(), if unconfirmed.is_none() => return Ok(()),
            }
        }
    }

    /// Passes on roots; what cannot be used is refused at once.
    async fn pass_on(&mut self, update: Update) -> Option<Unconfirmed> {
        let bundle = update.added.first().map(|resource| match unpack::<ProxyConfig>(&resource.any) {
            Ok(message) => Bundle::read(&message),
            Err(error) => Err(error.to_string()),
        });
        let bundle = match bundle {
            Some(Ok(bundle)) => bundle,
            // Without roots nothing would be trusted: those in use stay.
            None => {
                self.client.answer(&update, &[]);
                return None;
            }
            Some(Err(reason)) => {
                self.client.answer(&update, &[Rejected { name: String::new(), reason }]);
                return None;
            }
        };
        let (told, confirmed) = oneshot::channel();
        // If that task has ended, the agent is about to end.
        let _ = self.trust.pushed.send(Pushed { bundle, confirmed: told }).await;
        Some(Unconfirmed { update, confirmed })
    }

    fn ask(&mut self, name: &str) {
        let name = normal(name);
        if self.answers.contains_key(&*name) {
            // The name was requested twice, or answered meanwhile: wake up the waiting queries.
            self.publish();
            return;
        }
        if self.answers.len() >= MAX_NAMES {
            self.answers.retain(|_, known| known.is_some());
        }
        if self.answers.len() >= MAX_NAMES {
            self.answers.clear();
        }
        let known = self.answers.keys().map(|known| &**known);
        self.client.set_names(ResourceType::NameTable, known.chain([NO_NAME, &*name]));
    }

    fn apply(&mut self, update: &Update) -> Vec<Rejected> {
        let mut rejected = Vec::new();
        for resource in &update.added {
            match unpack::<NameTable>(&resource.any) {
                Ok(table) => self.insert(&resource.name, table),
                Err(error) => rejected.push(Rejected { name: resource.name.clone(), reason: error.to_string() }),
            }
        }
        for name in &update.removed {
            self.held.remove(name);
            if self.asked.is_some() {
                self.answers.insert(name.as_str().into(), None);
            }
        }
        self.publish();
        rejected
    }

    fn insert(&mut self, name: &str, table: NameTable) {
        if self.asked.is_some() && !name.is_empty() {
            self.answers.insert(normal(name).into(), Some(known(&table)));
        } else {
            self.held.insert(name.to_owned(), table);
        }
    }

    fn publish(&self) {
        // A server without names on demand sends the whole table, whatever was requested.
        let table = if self.held.is_empty() && self.asked.is_some() {
            Table::learned(self.answers.clone(), &self.search.cluster_domain)
        } else {
            table(self.held.values(), &self.search)
        };
        tracing::debug!(names = table.len(), "DNS names received");
        self.names.replace(table);
    }
}

/// Whether the proxy uses the roots that it was given last; never completes without any.
async fn confirmed(unconfirmed: &mut Option<Unconfirmed>) -> Result<(), String> {
    match unconfirmed {
        Some(Unconfirmed { confirmed, .. }) => confirmed.await.unwrap_or_else(|_| Err("the agent is ending".into())),
        None => std::future::pending().await,
    }
}

/// The next name to request; never completes if names are not requested one by one.
async fn next(asked: &mut Option<mpsc::Receiver<Box<str>>>) -> Option<Box<str>> {
    match asked {
        Some(asked) => asked.recv().await,
        None => std::future::pending().await,
    }
}

async fn send_all(client: &mut Client, connection: &Connection) -> Result<(), ConnectionError> {
    while let Some(request) = client.poll_request() {
        connection.send(request).await?;
    }
    Ok(())
}

/// Returns the value of the only name of a table.
fn known(table: &NameTable) -> Known {
    match table.aliases.values().next() {
        Some(alias) if table.table.is_empty() => Known::AliasOf(normal(&alias.target).into()),
        _ => Known::Addresses(table.table.values().flat_map(addresses).collect()),
    }
}

fn table<'t>(tables: impl Iterator<Item = &'t NameTable> + Clone, search: &SearchDomain) -> Table {
    let aliases = tables.clone().flat_map(|table| &table.aliases).map(|(host, alias)| AliasEntry {
        host: host.clone(),
        target: alias.target.clone(),
        short_name: alias.shortname.clone(),
        namespace: alias.namespace.clone(),
    });
    let entries = tables.flat_map(|table| &table.table).map(|(host, info)| HostEntry {
        host: host.clone(),
        ips: addresses(info).collect(),
        short_name: info.shortname.clone(),
        namespace: info.namespace.clone(),
    });
    Table::with_aliases(entries, aliases, search)
}

/// Skips texts that are not addresses: the control plane made a mistake, but the others are usable.
fn addresses(info: &NameInfo) -> impl Iterator<Item = IpAddr> {
    info.ips.iter().filter_map(|ip| ip.parse::<IpAddr>().ok())
}

/// A JSON object as protobuf's `Struct`.
pub(crate) fn to_struct(json: &Value) -> Option<Struct> {
    let fields = json.as_object()?.iter();
    Some(Struct { fields: fields.map(|(name, value)| (name.clone(), to_value(value))).collect() })
}

fn to_value(json: &Value) -> wkt::Value {
    let kind = match json {
        Value::Null => Kind::NullValue(0),
        Value::Bool(value) => Kind::BoolValue(*value),
        Value::Number(value) => Kind::NumberValue(value.as_f64().unwrap_or_default()),
        Value::String(value) => Kind::StringValue(value.clone()),
        Value::Array(values) => Kind::ListValue(wkt::ListValue { values: values.iter().map(to_value).collect() }),
        Value::Object(_) => Kind::StructValue(to_struct(json).unwrap_or_default()),
    };
    wkt::Value { kind: Some(kind) }
}

#[cfg(test)]
mod tests {
    use evenkeel_xds::istio::nds::name_table::Alias;

    use super::*;

    #[test]
    fn a_table_of_one_name_is_its_addresses_or_the_host_that_it_is_another_name_of() {
        let info = NameInfo { ips: vec!["10.96.0.1".into(), "none".into()], ..Default::default() };
        let alias = Alias { target: "Far.example.com.".into(), shortname: "far".into(), namespace: "shop".into() };
        let host = "far.shop.svc.cluster.local".to_owned();
        let of_info = NameTable { table: [(host.clone(), info)].into(), ..Default::default() };
        let of_alias = NameTable { aliases: [(host.clone(), alias)].into(), ..Default::default() };
        let address: IpAddr = "10.96.0.1".parse().expect("an address");
        assert_eq!(known(&of_info), Known::Addresses([address].into()));
        assert_eq!(known(&of_alias), Known::AliasOf("far.example.com".into()));
        let search = SearchDomain { namespace: "shop".into(), cluster_domain: "cluster.local".into() };
        assert_eq!(table([of_alias].iter(), &search).lookup("far"), Some(Known::AliasOf("far.example.com".into())));
    }
}
