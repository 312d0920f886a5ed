//! The agent's own stream: the name table (NDS) that the DNS proxy answers from.

use std::net::IpAddr;

use evenkeel_tls::SecretStore;
use evenkeel_xds::client::connection::Service;
use evenkeel_xds::client::{Backoff, Client, Connection, ConnectionError, Protocol, Rejected, Update};
use evenkeel_xds::istio::nds::NameTable;
use evenkeel_xds::pb::envoy::config::core::v3::Node;
use evenkeel_xds::pb::google::protobuf::value::Kind;
use evenkeel_xds::pb::google::protobuf::{self as wkt, Struct};
use evenkeel_xds::{ResourceType, unpack};
use serde_json::Value;

use crate::channel;
use crate::dns::{HostEntry, Names, SearchDomain, Table};
use crate::options::Options;

/// Keeps `names` as the control plane sends them, connecting again whenever the stream ends; the last table stays in
/// force meanwhile. Runs until the future is dropped.
pub async fn follow(options: Options, node: Node, secrets: SecretStore, names: Names) {
    let mut client = Client::new(Protocol::Delta, node);
    client.subscribe_all(ResourceType::NameTable);
    let mut backoff = Backoff::new(Backoff::BASE, Backoff::MAX, u64::from(std::process::id()));
    loop {
        match stream(&options, &secrets, &mut client, &names, &mut backoff).await {
            Ok(()) => {}
            Err(error) => tracing::info!(%error, "the stream of DNS names ended; connecting again"),
        }
        tokio::time::sleep(backoff.next_wait()).await;
    }
}

async fn stream(
    options: &Options,
    secrets: &SecretStore,
    client: &mut Client,
    names: &Names,
    backoff: &mut Backoff,
) -> anyhow::Result<()> {
    let channel = channel::connect(options, Some(secrets)).await?;
    client.on_connect();
    let Some(first) = client.poll_request() else { return Ok(()) };
    let mut connection = Connection::open(channel, Service::Aggregated, first).await?;
    let search = SearchDomain { namespace: options.namespace.clone(), cluster_domain: options.cluster_domain.clone() };
    loop {
        send_all(client, &connection).await?;
        let update = client.on_response(connection.next().await?)?;
        backoff.reset();
        let rejected = apply(&update, &search, names);
        client.answer(&update, &rejected);
    }
}

async fn send_all(client: &mut Client, connection: &Connection) -> Result<(), ConnectionError> {
    while let Some(request) = client.poll_request() {
        connection.send(request).await?;
    }
    Ok(())
}

fn apply(update: &Update, search: &SearchDomain, names: &Names) -> Vec<Rejected> {
    let mut rejected = Vec::new();
    for resource in &update.added {
        match unpack::<NameTable>(&resource.any) {
            Ok(message) => {
                let table = table(message, search);
                tracing::debug!(names = table.len(), "DNS names received");
                names.replace(table);
            }
            Err(error) => rejected.push(Rejected { name: resource.name.clone(), reason: error.to_string() }),
        }
    }
    rejected
}

fn table(message: NameTable, search: &SearchDomain) -> Table {
    let entries = message.table.into_iter().map(|(host, info)| HostEntry {
        host,
        // An address that is none is the control plane's mistake; the others still serve.
        ips: info.ips.iter().filter_map(|ip| ip.parse::<IpAddr>().ok()).collect(),
        short_name: info.shortname,
        namespace: info.namespace,
    });
    Table::new(entries, search)
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
