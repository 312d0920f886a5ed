//! Deployments that are edited while clients use them over HTTP/2 and over TCP: nothing is lost.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use evenkeel_testkit::load::Stop;
use evenkeel_testkit::{Process, Signal, eventually};

use super::processes::Running;
use super::user::User;
use super::{MACHINE, PATIENCE, deployment, state, wait_ready};

/// A server that takes HTTP/2 only from who begins with it: our own proxy.
pub const GREETER: &str = r#"{static_resources: {listeners: [{name: web, address: {socket_address: {address: 0.0.0.0, port_value: 8000}}, filter_chains: [{filters: [{name: hcm, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager, stat_prefix: web, codec_type: HTTP2, route_config: {name: local, virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, direct_response: {status: 200, body: {inline_string: hello}}}]}]}, http_filters: [{name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]}}]}]}]}}"#;

/// Gives back every byte.
pub const ECHO: &str = r"
import socket, threading
listener = socket.create_server(('0.0.0.0', 8000), backlog=64)
def serve(stream):
    with stream:
        while data := stream.recv(4096):
            stream.sendall(data)
while True:
    stream, _ = listener.accept()
    threading.Thread(target=serve, args=(stream,), daemon=True).start()
";

const ROUTES: &str = "---
apiVersion: v1
kind: Service
metadata: {name: greeter}
spec: {selector: {app: greeter}, ports: [{port: 80, targetPort: 8000, name: grpc}]}
---
apiVersion: v1
kind: Service
metadata: {name: echo}
spec: {selector: {app: echo}, ports: [{port: 9000, targetPort: 8000, name: tcp}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gateway}
spec:
  selector: {istio: ingressgateway}
  servers:
    - {port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}
    - {port: {number: 9000, name: tcp, protocol: TCP}, hosts: ['*']}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: greeter}
spec:
  hosts: ['*']
  gateways: [gateway]
  http: [{route: [{destination: {host: greeter, port: {number: 80}}}]}]
  tcp: [{match: [{port: 9000}], route: [{destination: {host: echo, port: {number: 9000}}}]}]
";

/// Nobody keeps a TCP connection longer than a replica that leaves waits for it (`--drain-time-s`).
const LONGEST_CONNECTION: Duration = Duration::from_secs(1);

/// What clients have seen.
#[derive(Default)]
struct Account {
    answered: AtomicUsize,
    failures: Mutex<Vec<String>>,
}

impl Account {
    fn note(&self, outcome: Result<(), String>) {
        match outcome {
            Ok(()) => drop(self.answered.fetch_add(1, Ordering::Relaxed)),
            Err(reason) => {
                let reason = format!("{reason}, after {} responses", self.answered.load(Ordering::Relaxed));
                self.failures.lock().unwrap_or_else(PoisonError::into_inner).push(reason);
            }
        }
    }

    fn wait(&self, more: usize) {
        let enough = self.answered.load(Ordering::Relaxed) + more;
        eventually("answers", || (self.answered.load(Ordering::Relaxed) >= enough).then_some(()));
    }
}

/// POSTs on one connection, one after the other; a connection that is at its end is replaced.
async fn over_http2(gateway: SocketAddr, stop: &AtomicBool, account: &Account) {
    while !stop.load(Ordering::Relaxed) {
        let stream = tokio::net::TcpStream::connect(gateway).await.expect("the gateway listens");
        let (mut sender, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
        let connection = tokio::spawn(connection);
        while !stop.load(Ordering::Relaxed) {
            let Ok(ready) = sender.ready().await else { break };
            sender = ready;
            account.note(greeting(&mut sender, gateway).await);
        }
        connection.abort();
    }
}

/// One call; an error that says what came if that is not the greeting.
async fn greeting(sender: &mut h2::client::SendRequest<Bytes>, gateway: SocketAddr) -> Result<(), String> {
    let request = http::Request::post(format!("http://{gateway}/greet")).body(()).expect("a request");
    let asked = async {
        let (response, mut body) = sender.send_request(request, false)?;
        body.send_data(Bytes::from_static(b"name"), true)?;
        let response = response.await?;
        let status = response.status();
        let mut body = response.into_body();
        let mut text = Vec::new();
        while let Some(part) = body.data().await {
            text.extend_from_slice(&part?);
        }
        Ok::<_, h2::Error>((status.as_u16(), String::from_utf8_lossy(&text).into_owned()))
    };
    match asked.await {
        Ok((200, text)) if text == "hello" => Ok(()),
        other => Err(format!("HTTP/2: {other:?}")),
    }
}

/// Whether a new connection's first call is answered by a greeter.
async fn is_greeted(gateway: SocketAddr) -> bool {
    let stream = tokio::net::TcpStream::connect(gateway).await.expect("the gateway listens");
    let (mut sender, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
    let connection = tokio::spawn(connection);
    let is_greeted = greeting(&mut sender, gateway).await.is_ok();
    connection.abort();
    is_greeted
}

/// Sends and reads on a connection for as long as that is to last, at least once.
fn over_tcp(gateway: SocketAddr, lasts: Duration, stop: &AtomicBool, account: &Account) {
    while !stop.load(Ordering::Relaxed) {
        let talk = || -> std::io::Result<()> {
            let begun = Instant::now();
            let mut stream = TcpStream::connect(gateway)?;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            loop {
                stream.write_all(b"ping")?;
                let mut answer = [0; 4];
                stream.read_exact(&mut answer)?;
                account.note(Ok(()));
                if begun.elapsed() >= lasts {
                    return Ok(());
                }
            }
        };
        if let Err(error) = talk() {
            account.note(Err(format!("TCP for {lasts:?}: {error}")));
        }
    }
}

fn programs(user: &User, workload: &str) -> Vec<i32> {
    let all = Running::all_of(user.state.path());
    all.iter().filter(|process| process.is_program_of(workload)).map(|process| process.pid).collect()
}

#[test]
fn nothing_is_lost_over_http2_and_tcp_while_replicas_are_replaced() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let (user, folder) = (User::present(), state());
    let binary = folder.path().join("evenkeel");
    fs::copy(env!("CARGO_BIN_EXE_evenkeel"), &binary).expect("the binary can be copied");
    fs::write(folder.path().join("echo.py"), ECHO).expect("our own folder");
    let write = |greeters: &str, echoes: &str| {
        let greeter = format!("VERSION={greeters} exec {} proxy --config-yaml '{GREETER}'", binary.display());
        let greeter = deployment("greeter", 2, &greeter);
        let echo = deployment("echo", 1, &format!("VERSION={echoes} exec python3 echo.py"));
        fs::write(folder.path().join("mesh.yaml"), format!("{greeter}---\n{echo}{ROUTES}")).expect("our own folder");
    };
    write("one", "one");
    let mut command = user.evenkeel(&["up"]);
    command.arg(folder.path()).arg("--state").arg(user.state.path());
    command.args(["--gateway-port", "80=0", "--gateway-port", "9000=0"]);
    let mut up = Process::spawn(&mut command);
    wait_ready(&mut up, 4);
    up.wait_for_line("Ctrl-C stops everything");
    let output = up.output();
    // The ways in come first, in the order of the gateway's ports.
    let of_line =
        |line: &str| line.trim().trim_start_matches("http://").trim_end_matches("/").trim_end_matches(" (TCP)").parse();
    let ways = output.lines().filter_map(|line| of_line(line).ok());
    let [http, tcp]: [SocketAddr; 2] = ways.take(2).collect::<Vec<_>>().try_into().expect("two ways in");
    let (stop, greeted, echoed) = (AtomicBool::new(false), Account::default(), Account::default());
    // Until the gateway knows of both.
    eventually("an echo", || {
        let mut stream = TcpStream::connect(tcp).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
        stream.write_all(b"ping").ok()?;
        stream.read_exact(&mut [0; 4]).ok()
    });
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    // Each worker of the gateway takes endpoints over by itself.
    eventually("a greeting from each worker", || (0..16).all(|_| runtime().block_on(is_greeted(http))).then_some(()));
    std::thread::scope(|scope| {
        let _ending = Stop(&stop);
        for _ in 0..2 {
            scope.spawn(|| runtime().block_on(over_http2(http, &stop, &greeted)));
        }
        for lasts in [Duration::ZERO, LONGEST_CONNECTION] {
            let (stop, echoed) = (&stop, &echoed);
            scope.spawn(move || over_tcp(tcp, lasts, stop, echoed));
        }
        for (workload, replicas, account, versions) in
            [("greeter", 2, &greeted, ["two", "one"]), ("echo", 1, &echoed, ["two", "two"])]
        {
            account.wait(40);
            let before = programs(&user, workload);
            assert_eq!(before.len(), replicas, "{workload}");
            write(versions[0], versions[1]);
            eventually("the new replicas alone", || {
                let now = programs(&user, workload);
                (now.len() == replicas && now.iter().all(|program| !before.contains(program))).then_some(())
            });
            account.wait(40);
        }
    });
    let failures = [greeted, echoed].map(|account| account.failures.into_inner().expect("no panic"));
    assert_eq!(failures.concat(), [""; 0], "{}", up.output());
    up.signal(Signal::SIGINT);
    assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
}
