//! The trial of a request with the proxies' own decision, and the witness that it becomes.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use evenkeel_model::Workload;
use evenkeel_runtime_config::listener::Terminal;
use evenkeel_runtime_config::route::RouteAction;
use evenkeel_runtime_config::view::PlainRequest;

use super::answer::Witness;
use super::call_path::{CallPath, First};
use super::call_paths::{self, Client, Dialled, Kind};
use super::space::{Name, Value};
use crate::answer::{Hop, Outcome};
use crate::arrival::{Arrival, CLIENT_PORT, Side};
use crate::hop;
use crate::world::World;

/// Random draws that are tried for one request, in draws.
const MAX_DRAWS: u64 = 64;

/// Tries a request with the proxies' own decision.
pub fn tried(call_path: &CallPath, world: &World, values: &BTreeMap<Name, Value>) -> Option<Witness> {
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
    if call_path.dialled.tls.is_some() {
        request.scheme = "https".to_owned();
    }
    let request = (call_path.dialled.kind == Kind::Http).then_some(request);
    let draws = if call_path.first.is_some() { MAX_DRAWS } else { 1 };
    let ((hop, provided), draw) =
        (0..draws).find_map(|draw| Some((walked(call_path, world, request.clone(), (source, draw))?, draw)))?;
    let allowed_by =
        hop.and_then(|hop| hop.policies.into_iter().find(|policy| policy.action == "ALLOW" && policy.decides));
    let allowed_by = allowed_by.map(|policy| match policy.source.position() {
        Some(position) => format!("{}, {position}", policy.source.object),
        None => policy.source.object,
    });
    let witness = witness((call_path, world), (method, authority, path, headers), (source, draw), allowed_by);
    let port = call_path.dialled.address.port();
    let is_open = || format!("a program listens on port {port}, which stands for every port that no object names");
    let provided = provided.into_iter().chain(call_path.dialled.unnamed_port.then(is_open)).collect();
    Some(Witness { provided, ..witness })
}

/// Takes a request along the whole call path. `None`: it does not get through. The result is what the workload's own proxy said.
fn walked(
    call_path: &CallPath,
    world: &World,
    request: Option<PlainRequest>,
    (source, draw): (Option<IpAddr>, u64),
) -> Option<(Option<Hop>, Vec<String>)> {
    let passed = |hop: &Hop| hop.verdict.outcome == Outcome::Forward && hop.verdict.status.is_none();
    let mut provided = Vec::new();
    let mut arrival = Arrival {
        socket: None,
        source: SocketAddr::new(source.unwrap_or(call_paths::OUTSIDE.into()), CLIENT_PORT),
        destination: call_path.dialled.address,
        tls: call_path.dialled.tls.clone(),
        request,
        host: call_path.dialled.host.clone(),
        random: 0,
    };
    if let Some(first) = &call_path.first {
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
    arrival.destination = call_path.upstream.to;
    arrival.tls.clone_from(&call_path.upstream.tls);
    if let Some(source) = call_path.source() {
        arrival.source = SocketAddr::new(source, CLIENT_PORT);
    }
    let Some(server) = call_path.at_server(world) else { return Some((None, provided)) };
    let needs = server.served()?.1.tls.as_ref().is_some_and(|tls| tls.is_mutual());
    if needs && call_path.upstream.tls.as_ref().is_none_or(|tls| tls.identity.is_none()) {
        return None;
    }
    let (hop, _) = hop::take(world, &server.proxy, server.side, &arrival);
    provided.extend(hop.filters.iter().cloned());
    passed(&hop).then_some((Some(hop), provided))
}

fn witness(
    (call_path, world): (&CallPath, &World),
    (method, authority, path, headers): (String, String, String, Vec<(String, String)>),
    (source, draw): (Option<IpAddr>, u64),
    allowed_by: Option<String>,
) -> Witness {
    let Dialled { address, name, kind, tls, .. } = &call_path.dialled;
    let is_plain = tls.is_none();
    let default = if is_plain { 80 } else { 443 };
    let scheme = if is_plain { "http" } else { "https" };
    let shown = match call_path.client {
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
    let (prefix, resolve) = match &call_path.client {
        Client::Workload(own) => {
            (format!("evenkeel exec {} -n {} -- ", own.workload_name, own.namespace), String::new())
        }
        Client::Outside(own) if tls.is_some() => {
            (String::new(), format!(" -k --connect-to ::{}", on_this_machine(world, own, address.port())))
        }
        Client::Outside(own) => {
            (String::new(), format!(" --connect-to ::{}", on_this_machine(world, own, address.port())))
        }
        Client::Anyone => (String::new(), String::new()),
    };
    let curl = match kind {
        Kind::Http => format!("{prefix}curl -sS --path-as-is{method_option}{options}{resolve} {}", quoted(&url)),
        Kind::Bytes => format!("{prefix}nc -v {}", quoted_address(&shown, address.port())),
        Kind::Tls => format!("{prefix}curl -sSk {}", quoted(&format!("https://{at}/"))),
    };
    let from = match &call_path.client {
        Client::Workload(own) => Some(format!("--from {}.{}", own.workload_name, own.namespace)),
        Client::Outside(_) => Some("--from-outside".to_owned()),
        Client::Anyone => None,
    };
    let random = if draw == 0 {
        String::new()
    } else {
        format!(" --random {}", call_path.first.as_ref().and_then(|first| self::draw(first, draw)).unwrap_or(draw))
    };
    let explain = from.map(|from| match kind {
        Kind::Http => format!("evenkeel explain {from} --url {}{method_option}{options}{random}", quoted(&url)),
        Kind::Bytes => format!("evenkeel explain {from} --tcp {at}{random}"),
        Kind::Tls => format!("evenkeel explain {from} --tcp {at} --tls{random}"),
    });
    Witness {
        from: call_path.client.name(),
        to: call_path
            .server
            .as_ref()
            .map_or_else(|| call_path.upstream.to.to_string(), |own| format!("{}.{}", own.pod, own.namespace)),
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
        transport: call_paths::secured(call_path.upstream.tls.as_ref()),
        allowed_by,
        provided: Vec::new(),
        curl,
        explain,
    }
}

/// Where `evenkeel up` serves a port of the gateway: the running one, or else one without options about it.
fn on_this_machine(world: &World, gateway: &Workload, port: u16) -> String {
    if let Some(published) = world.published().iter().find(|own| own.number == port && own.leads_to(gateway)) {
        return published.address.to_string();
    }
    format!("127.0.0.1:{}", if port < 1024 { port + 8000 } else { port })
}

/// Host and port as netcat takes them.
fn quoted_address(host: &str, port: u16) -> String {
    format!("{} {port}", quoted(host.trim_matches(['[', ']'])))
}

/// Returns the random number to try: first one that chooses the destination, then others.
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
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}
