//! The trial of a request with the proxies' own decision, and the witness that it becomes.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use evenkeel_runtime_config::listener::Terminal;
use evenkeel_runtime_config::route::RouteAction;
use evenkeel_runtime_config::view::PlainRequest;

use super::answer::Witness;
use super::space::{Name, Value};
use super::way::{First, Way};
use super::ways::{self, Client, Dialled, Kind};
use crate::answer::{Hop, Outcome};
use crate::hop::{self, Arrival, CLIENT_PORT, Side};
use crate::world::World;

/// Random draws that are tried for one request, in draws.
const MAX_DRAWS: u64 = 64;

/// Tries a request with the proxies' own decision.
pub fn tried(way: &Way, world: &World, values: &BTreeMap<Name, Value>) -> Option<Witness> {
    let text = |name: Name| match values.get(&name) {
        Some(Value::Text(text)) => text.clone(),
        _ => String::new(),
    };
    let (method, authority, path) = (text(Name::Method), text(Name::Authority), text(Name::Path));
    let mut request = PlainRequest::new(&method, &authority, &path);
    let mut headers = Vec::new();
    for (name, value) in values {
        if let (Name::Header(name), Value::Lines(lines)) = (name, value) {
            for line in lines {
                request = request.with_header(name, line);
                headers.push((name.to_string(), line.clone()));
            }
        }
    }
    let source = match values.get(&Name::Client) {
        Some(Value::Address(address)) => Some(*address),
        _ => None,
    };
    if way.dialled.tls.is_some() {
        request.scheme = "https".to_owned();
    }
    let request = (way.dialled.kind == Kind::Http).then_some(request);
    let draws = if way.first.is_some() { MAX_DRAWS } else { 1 };
    let ((hop, provided), draw) =
        (0..draws).find_map(|draw| Some((walked(way, world, request.clone(), (source, draw))?, draw)))?;
    let allowed_by =
        hop.and_then(|hop| hop.policies.into_iter().find(|policy| policy.action == "ALLOW" && policy.decides));
    let allowed_by = allowed_by.map(|policy| match policy.source.position() {
        Some(position) => format!("{}, {position}", policy.source.object),
        None => policy.source.object,
    });
    let witness = witness(way, (method, authority, path, headers), (source, draw), allowed_by);
    Some(Witness { provided, ..witness })
}

/// Takes a request all the way. `None`: it does not get through. The result is what the workload's own proxy said.
fn walked(
    way: &Way,
    world: &World,
    request: Option<PlainRequest>,
    (source, draw): (Option<IpAddr>, u64),
) -> Option<(Option<Hop>, Vec<String>)> {
    let passed = |hop: &Hop| hop.verdict.outcome == Outcome::Forward && hop.verdict.status.is_none();
    let mut provided = Vec::new();
    let mut arrival = Arrival {
        socket: None,
        source: SocketAddr::new(source.unwrap_or(ways::OUTSIDE.into()), CLIENT_PORT),
        destination: way.dialled.address,
        tls: way.dialled.tls.clone(),
        request,
        host: way.dialled.host.clone(),
        random: 0,
    };
    if let Some(first) = &way.first {
        if first.met.side == Side::Outbound {
            arrival.source = SocketAddr::new(first.met.source, CLIENT_PORT);
        }
        arrival.random = self::draw(first, draw)?;
        let (hop, departure) = hop::take(world, &first.met.proxy, first.met.side, &arrival);
        let leads = hop.clusters.iter().any(|cluster| cluster.chosen && cluster.name == *first.cluster);
        if !passed(&hop) || !leads {
            return None;
        }
        provided.extend(hop.filters);
        arrival.request = departure?.request;
    }
    arrival.destination = way.leg.to;
    arrival.tls.clone_from(&way.leg.tls);
    if let Some(source) = way.source() {
        arrival.source = SocketAddr::new(source, CLIENT_PORT);
    }
    let Some(server) = way.at_server(world) else { return Some((None, provided)) };
    let needs = server.served()?.1.tls.as_ref().is_some_and(|tls| tls.is_mutual());
    if needs && way.leg.tls.as_ref().is_none_or(|tls| tls.identity.is_none()) {
        return None;
    }
    let (hop, _) = hop::take(world, &server.proxy, server.side, &arrival);
    provided.extend(hop.filters.iter().cloned());
    passed(&hop).then_some((Some(hop), provided))
}

fn witness(
    way: &Way,
    (method, authority, path, headers): (String, String, String, Vec<(String, String)>),
    (source, draw): (Option<IpAddr>, u64),
    allowed_by: Option<String>,
) -> Witness {
    let Dialled { address, name, kind, tls, .. } = &way.dialled;
    let is_plain = tls.is_none();
    let default = if is_plain { 80 } else { 443 };
    let scheme = if is_plain { "http" } else { "https" };
    let shown = match way.client {
        Client::Outside(_) => {
            tls.as_ref().and_then(|tls| tls.server_name.clone()).unwrap_or_else(|| host_of(&authority))
        }
        _ => name.clone(),
    };
    let at = if address.port() == default { shown.clone() } else { format!("{shown}:{}", address.port()) };
    let url = match kind {
        Kind::Http => format!("{scheme}://{at}{path}"),
        Kind::Bytes => format!("tcp://{at}"),
        Kind::Tls => format!("tls://{at}"),
    };
    let implied = if address.port() == default { shown.clone() } else { format!("{shown}:{}", address.port()) };
    let mut all = headers.clone();
    if *kind == Kind::Http && authority != implied {
        all.insert(0, ("Host".to_owned(), authority.clone()));
    }
    let options: String =
        all.iter().map(|(name, value)| format!(" -H {}", quoted(&format!("{name}: {value}")))).collect();
    let method_option = if method == "GET" { String::new() } else { format!(" -X {}", quoted(&method)) };
    let (prefix, resolve) = match &way.client {
        Client::Workload(own) => {
            (format!("evenkeel exec {} -n {} -- ", own.workload_name, own.namespace), String::new())
        }
        Client::Outside(_) if tls.is_some() => {
            (String::new(), format!(" -k --resolve {shown}:{}:GATEWAY", address.port()))
        }
        Client::Outside(_) => (String::new(), format!(" --connect-to ::GATEWAY:{}", address.port())),
        Client::Anyone => (String::new(), String::new()),
    };
    let curl = match kind {
        Kind::Http => format!("{prefix}curl -sS --path-as-is{method_option}{options}{resolve} {}", quoted(&url)),
        Kind::Bytes => format!("{prefix}curl -sS {}", quoted(&format!("telnet://{at}"))),
        Kind::Tls => format!("{prefix}curl -sSk {}", quoted(&format!("https://{at}/"))),
    };
    let from = match &way.client {
        Client::Workload(own) => Some(format!("--from {}.{}", own.workload_name, own.namespace)),
        Client::Outside(_) => Some("--from-outside".to_owned()),
        Client::Anyone => None,
    };
    let random = if draw == 0 {
        String::new()
    } else {
        format!(" --random {}", way.first.as_ref().and_then(|first| self::draw(first, draw)).unwrap_or(draw))
    };
    let explain = from.map(|from| match kind {
        Kind::Http => format!("evenkeel explain {from} --url {}{method_option}{options}{random}", quoted(&url)),
        Kind::Bytes => format!("evenkeel explain {from} --tcp {at}{random}"),
        Kind::Tls => format!("evenkeel explain {from} --tcp {at} --tls{random}"),
    });
    Witness {
        from: way.client.name(),
        to: way.server.as_ref().map_or_else(|| way.leg.to.to_string(), |own| format!("{}.{}", own.pod, own.namespace)),
        kind: match kind {
            Kind::Http => "http",
            Kind::Bytes => "bytes",
            Kind::Tls => "tls",
        },
        method,
        url,
        authority,
        headers,
        source: source.map(|source| source.to_string()),
        transport: ways::secured(way.leg.tls.as_ref()),
        allowed_by,
        provided: Vec::new(),
        curl,
        explain,
    }
}

/// The random number to try: first one that chooses the destination, then others.
fn draw(first: &First, draw: u64) -> Option<u64> {
    let before = |weights: &mut dyn Iterator<Item = u32>| -> u64 { weights.map(u64::from).sum() };
    let at = match (&first.route, &first.chain.terminal) {
        (Some(routed), _) => {
            let RouteAction::Forward(action) = &routed.host.routes.get(routed.at.0)?.action else { return None };
            let total = u64::from(action.total_weight.max(1));
            let start = before(&mut action.clusters.iter().take(routed.at.1).map(|own| own.weight));
            start + draw.checked_mul(total)?
        }
        (None, Terminal::Tcp(proxy)) => {
            let total: u64 = before(&mut proxy.clusters.iter().map(|own| own.weight)).max(1);
            let number = proxy.clusters.iter().position(|own| own.cluster == first.cluster)?;
            before(&mut proxy.clusters.iter().take(number).map(|own| own.weight)) + draw.checked_mul(total)?
        }
        (None, Terminal::Http(_)) => draw,
    };
    Some(at)
}

fn host_of(authority: &str) -> String {
    String::from_utf8_lossy(evenkeel_runtime_config::route_match::without_port(authority.as_bytes())).into_owned()
}

/// A word for a shell.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}
