//! DNS over UDP through a Gateway of the Gateway API: thousands of clients, weights and backends that change while they ask.

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::PoisonError;
use std::time::Duration;

use evenkeel_testkit::{Process, Signal, eventually};

use super::user::User;
use super::{MACHINE, PATIENCE, deployment, state, wait_ready};

/// A name server: the answer to any question is the address in its first argument. It listens on TCP, too, as name servers do.
const SERVER: &str = r#"
import socket, struct, sys
tcp = socket.socket()
tcp.bind(("0.0.0.0", 8000))
tcp.listen()
udp = socket.socket(type=socket.SOCK_DGRAM)
udp.bind(("0.0.0.0", 8000))
while True:
    question, client = udp.recvfrom(65535)
    head = question[:2] + struct.pack(">HHHHH", 0x8180, 1, 1, 0, 0)
    answer = struct.pack(">HHHIH", 0xC00C, 1, 1, 30, 4) + socket.inet_aton(sys.argv[1])
    udp.sendto(head + question[12:] + answer, client)
"#;

/// How many clients ask.
const CLIENTS: usize = 2000;

fn server(name: &str, address: &str) -> String {
    let service = format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{selector: {{app: {name}}}, \
         ports: [{{name: dns, port: 53, targetPort: 8000, protocol: UDP}}]}}\n"
    );
    deployment(name, 1, &format!("exec python3 server.py {address}")) + &service
}

fn gateway(backends: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: edge}}\n\
         spec: {{gatewayClassName: istio, listeners: [{{name: dns, port: 53, protocol: UDP}}]}}\n---\n\
         apiVersion: gateway.networking.k8s.io/v1\nkind: UDPRoute\nmetadata: {{name: dns}}\n\
         spec: {{parentRefs: [{{name: edge}}], rules: [{{backendRefs: [{backends}]}}]}}\n"
    )
}

/// A question for the address of `a.test`.
fn question(id: u16) -> Vec<u8> {
    let mut bytes = id.to_be_bytes().to_vec();
    bytes.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    bytes.extend(b"\x01a\x04test\0\0\x01\0\x01");
    bytes
}

/// Asks; the last byte of the address in the answer. `None`: there is no answer in time.
fn ask(client: &UdpSocket, id: u16) -> Option<u8> {
    client.send(&question(id)).ok()?;
    let mut answer = [0; 512];
    loop {
        let length = client.recv(&mut answer).ok()?;
        if answer.get(..2) == Some(&id.to_be_bytes()) {
            return answer.get(..length)?.last().copied();
        }
    }
}

fn client(gateway: SocketAddr, patience: Duration) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    socket.connect(gateway).expect("a socket");
    socket.set_read_timeout(Some(patience)).expect("a socket");
    socket
}

/// How many clients each server has answered.
fn answers(clients: &[UdpSocket], id: u16) -> BTreeMap<Option<u8>, usize> {
    let mut counts = BTreeMap::new();
    clients.iter().for_each(|client| *counts.entry(ask(client, id)).or_default() += 1);
    counts
}

fn address_of(up: &mut Process) -> SocketAddr {
    up.wait_for("the gateway's port of UDP", |up| {
        let output = up.output();
        output.lines().find_map(|line| line.trim().strip_suffix(" (UDP)")?.rsplit(' ').next()?.parse().ok())
    })
}

fn write(folder: &Path, name: &str, text: &str) {
    fs::write(folder.join(name), text).expect("it can be written");
}

#[test]
fn names_are_resolved_through_a_gateway_while_its_route_changes() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let (user, folder) = (User::present(), state());
    let to = |name: &str, weight: u32| format!("{{name: {name}, port: 53, weight: {weight}}}");
    write(folder.path(), "server.py", SERVER);
    write(folder.path(), "a.yaml", &server("dns-a", "10.0.0.1"));
    write(folder.path(), "b.yaml", &server("dns-b", "10.0.0.2"));
    write(folder.path(), "edge.yaml", &gateway(&to("dns-a", 1)));
    let mut command = user.evenkeel(&["up"]);
    command.arg(folder.path()).args(["--gateway-port", "53=0", "--state"]).arg(user.state.path());
    let mut up = Process::spawn(&mut command);
    wait_ready(&mut up, 3);
    let gateway_address = address_of(&mut up);
    let first = client(gateway_address, Duration::from_millis(300));
    eventually("the first answer", || ask(&first, 1));
    let clients: Vec<_> = (0..CLIENTS).map(|_| client(gateway_address, Duration::from_secs(5))).collect();
    assert_eq!(answers(&clients, 2), BTreeMap::from([(Some(1), CLIENTS)]));

    // Half of what is new goes to the other server; sessions stay.
    write(folder.path(), "edge.yaml", &gateway(&format!("{}, {}", to("dns-a", 1), to("dns-b", 1))));
    eventually("the other server's first answer", || {
        (ask(&client(gateway_address, Duration::from_millis(300)), 3) == Some(2)).then_some(())
    });
    assert_eq!(answers(&clients, 4), BTreeMap::from([(Some(1), CLIENTS)]));
    let more: Vec<_> = (0..200).map(|_| client(gateway_address, Duration::from_secs(5))).collect();
    let shares = answers(&more, 5);
    let share = shares.get(&Some(2)).copied().unwrap_or_default();
    assert!((60..140).contains(&share), "{shares:?}");

    // A backend without a Service: its share is dropped.
    fs::remove_file(folder.path().join("a.yaml")).expect("it is there");
    eventually("the end of the first server's share", || {
        ask(&client(gateway_address, Duration::from_millis(300)), 6).is_none().then_some(())
    });
    // With the other one alone, all are answered again.
    write(folder.path(), "edge.yaml", &gateway(&to("dns-b", 1)));
    // Each worker of the gateway takes the change over by itself; the kernel gives clients to workers by their ports.
    let of_all_workers: Vec<_> = (0..32).map(|_| client(gateway_address, Duration::from_millis(300))).collect();
    eventually("the other server, at each worker", || {
        of_all_workers.iter().all(|client| ask(client, 7) == Some(2)).then_some(())
    });
    assert_eq!(answers(&clients, 8), BTreeMap::from([(Some(2), CLIENTS)]));
    up.signal(Signal::SIGINT);
    assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
}
