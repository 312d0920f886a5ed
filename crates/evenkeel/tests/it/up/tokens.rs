//! Tokens whose keys are fetched inside a mesh: from a workload of it (Istio's sample `jwt-server`), and from a program that
//! listens at the machine's loopback address; with the RequestAuthentication and the policies of Istio's documentation.

use std::fs;
use std::net::SocketAddr;
use std::sync::PoisonError;

use evenkeel_testkit::jwt::{Signer, jwks};
use evenkeel_testkit::tls::{TestCa, TlsServer};
use evenkeel_testkit::{Backend, Connection, Process, Reply, Signal, eventually, workspace};

use super::authorization::{APPLICATION, HTTPBIN};
use super::user::User;
use super::{MACHINE, PATIENCE, deployment, entries, state, url, wait_ready};

/// `samples/jwt-server/jwt-server.yaml`, without its comments and with another key.
fn sample() -> String {
    let identity = TestCa::new().for_dns(&["jwt-server", "jwt-server.default.svc.cluster.local"]);
    let block = |pem: &str| pem.lines().map(|line| format!("    {line}\n")).collect::<String>();
    SAMPLE.replace("    CERTIFICATE\n", &block(&identity.cert_pem)).replace("    KEY\n", &block(&identity.key_pem))
}

const SAMPLE: &str = r#"
apiVersion: v1
kind: Service
metadata:
  name: jwt-server
  labels:
    app: jwt-server
spec:
  ports:
  - name: http
    port: 8000
    targetPort: 8000
  - name: https
    port: 8443
    targetPort: 8443
  selector:
    app: jwt-server
---
apiVersion: v1
kind: Secret
metadata:
  name: jwt-cert-key-secret
stringData: 
  server.crt: |
    CERTIFICATE
  server.key: |
    KEY
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: jwt-server
spec:
  replicas: 1
  selector:
    matchLabels:
      app: jwt-server
  template:
    metadata:
      labels:
        app: jwt-server
    spec:
      containers:
      - image: registry.istio.io/testing/jwt-server:0.8
        imagePullPolicy: IfNotPresent
        name: jwt-server
        volumeMounts:
          - name: certkeysecretresource
            mountPath: "/app/https/secretresources"
            readOnly: true
        args: ["-https", "8443", "-cert", "/app/https/secretresources/server.crt", "-key", "/app/https/secretresources/server.key"]
        ports:
        - containerPort: 8000
        - containerPort: 8443
      volumes:
      - name: certkeysecretresource
        secret:
          secretName: jwt-cert-key-secret
          defaultMode: 0400
---
"#;

/// Serves the keys in `keys.txt`.
const SERVER: &str = "import http.server as h
class Handler(h.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        keys = open('keys.txt', 'rb').read()
        self.send_response(200)
        self.send_header('content-length', str(len(keys)))
        self.end_headers()
        self.wfile.write(keys)
h.ThreadingHTTPServer(('', 8000), Handler).serve_forever()
";

/// The documentation's, and a second issuer.
fn policies(machine: SocketAddr, https: u16) -> String {
    format!(
        r#"apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata:
  name: jwt-example
spec:
  selector:
    matchLabels:
      app: httpbin
  jwtRules:
  - issuer: "testing@secure.istio.io"
    jwksUri: "http://jwt-server.default.svc.cluster.local:8000/jwks"
  - issuer: machine
    jwksUri: "http://host.evenkeel.internal:{}/keys"
  - issuer: secured
    jwksUri: "https://host.evenkeel.internal:{https}/keys"
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata:
  name: require-jwt
spec:
  selector:
    matchLabels:
      app: httpbin
  action: ALLOW
  rules:
  - from:
    - source:
       requestPrincipals: ["testing@secure.istio.io/testing@secure.istio.io"]
    when:
    - key: request.auth.claims[groups]
      values: ["group1"]
  - from:
    - source:
       requestPrincipals: ["machine/*", "secured/*"]
"#,
        machine.port()
    )
}

#[test]
fn keys_are_fetched_from_workloads_and_from_the_machine() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let [istio, machine, stranger] = ["istio", "machine", "istio"].map(|name| Signer::ec(name, "P-256"));
    let set = jwks(&[&machine]);
    // Over TLS, with a certificate of an authority that the file in SSL_CERT_FILE has.
    let (answer, authority) = (format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{set}", set.len()), TestCa::new());
    let server = TlsServer::new(&authority.for_dns(&["host.evenkeel.internal"]));
    let secured =
        Secured { port: server.answer_with(move || answer.clone().into_bytes()), roots: authority.root_pem() };
    let issuer = Backend::start(move |_| Reply::text(set.clone()));
    for fetching in ["false", "hybrid"] {
        check(fetching, (issuer.address(), &secured), [&istio, &machine, &stranger]);
    }
}

/// An issuer over TLS.
struct Secured {
    port: u16,
    roots: String,
}

fn check(fetching: &str, (issuer, secured): (SocketAddr, &Secured), [istio, machine, stranger]: [&Signer; 3]) {
    let (user, folder) = (User::present(), state());
    let program = |name: &str| folder.path().join(name);
    fs::copy(env!("CARGO_BIN_EXE_evenkeel"), program("evenkeel")).expect("the binary can be copied");
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("our own folder");
    let own = workspace::root().join("../shared/reference/istio-samples/jwt-server/jwt-server.yaml");
    // Istio's own file, where it is at hand.
    write("jwt-server.yaml", &fs::read_to_string(own).unwrap_or_else(|_| sample()));
    write("httpbin.yaml", HTTPBIN);
    write("policies.yaml", &policies(issuer, secured.port));
    write("keys.txt", &jwks(&[istio]));
    write("server.py", SERVER);
    write("application.txt", APPLICATION);
    let [evenkeel, application] = ["evenkeel", "application.txt"].map(program).map(|path| path.display().to_string());
    write(
        "evenkeel.yaml",
        &format!(
            "workloads:\n  jwt-server: {{command: 'exec python3 server.py'}}\n  \
             httpbin: {{command: 'exec {evenkeel} proxy --config-yaml \"$(cat {application})\"'}}\n"
        ),
    );
    let validated = user.evenkeel(&["validate", "--strict"]).arg(folder.path()).output().expect("it runs");
    let said = String::from_utf8_lossy(&validated.stdout);
    assert!(validated.status.success() && said.contains("0 errors, 0 warnings"), "{said}");
    let mut command = user.evenkeel(&["up"]);
    command.arg(folder.path()).arg("--state").arg(user.state.path()).args(["--gateway-port", "0"]);
    write("roots.txt", &secured.roots);
    command.env("SSL_CERT_FILE", folder.path().join("roots.txt"));
    let mut up = Process::spawn(command.env("PILOT_JWT_ENABLE_REMOTE_JWKS", fetching));
    wait_ready(&mut up, 3);
    let url = url(&mut up);
    let gateway: SocketAddr = url.trim_start_matches("http://").trim_end_matches('/').parse().expect("an address");
    let claims = |issuer: &str, more: &str| format!(r#"{{"iss":"{issuer}","sub":"{issuer}","exp":4102444800{more}}}"#);
    let of_istio = |more: &str| claims("testing@secure.istio.io", more);
    let bearer = |token: String| format!("authorization: Bearer {token}\r\n");
    let rows = [
        ("without a token", String::new(), 403),
        ("with a token", bearer(istio.token(&of_istio(""))), 403),
        ("with a token of the group", bearer(istio.token(&of_istio(r#","groups":["group1"]"#))), 200),
        ("with one of another group", bearer(istio.token(&of_istio(r#","groups":["group2"]"#))), 403),
        ("with a forged one", bearer(stranger.token(&of_istio(r#","groups":["group1"]"#))), 401),
        ("with one of the machine's issuer", bearer(machine.token(&claims("machine", ""))), 200),
        ("with one of the issuer over TLS", bearer(machine.token(&claims("secured", ""))), 200),
        ("with one of an unknown issuer", bearer(machine.token(&claims("you", ""))), 401),
    ];
    let statuses = || -> Vec<_> {
        let status = |header: &str| {
            let mut client = Connection::open(gateway).ok()?;
            client.get("httpbin", "/headers", header).ok().map(|answer| answer.status)
        };
        rows.iter().map(|(name, header, _)| (*name, status(header))).collect()
    };
    let expected: Vec<_> = rows.iter().map(|(name, _, status)| (*name, Some(*status))).collect();
    eventually(&format!("the statuses (PILOT_JWT_ENABLE_REMOTE_JWKS={fetching})"), || {
        (statuses() == expected).then_some(())
    });
    // Where proxies fetch the keys of the workload, the control plane has only those of the machine's issuers.
    let fetched = entries(&user.state.path().join("control/jwks"));
    assert_eq!(fetched.len(), if fetching == "hybrid" { 2 } else { 3 }, "{fetching}: {fetched:?}");
    up.signal(Signal::SIGINT);
    assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
}

/// A workload that calls, and a policy about the claims of the machine's issuer.
const OF_CLIENT: &str = r#"apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: admins}
spec:
  selector: {matchLabels: {app: httpbin}}
  rules: [{when: [{key: 'request.auth.claims[role]', values: [admin]}]}]
---
"#;

/// The keys that the running mesh has fetched are in no file of the user.
#[test]
fn explained_tokens_come_to_what_real_ones_do() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let [known, stranger] = ["known", "known"].map(|name| Signer::ec(name, "P-256"));
    let set = jwks(&[&known]);
    let issuer = Backend::start(move |_| Reply::text(set.clone()));
    let (user, folder) = (User::present(), state());
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("our own folder");
    fs::copy(env!("CARGO_BIN_EXE_evenkeel"), folder.path().join("evenkeel")).expect("the binary can be copied");
    write("application.txt", APPLICATION);
    write("httpbin.yaml", HTTPBIN);
    let authentication = format!(
        "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {{name: machine}}\nspec:\n  \
         selector: {{matchLabels: {{app: httpbin}}}}\n  \
         jwtRules: [{{issuer: machine, jwksUri: 'http://host.evenkeel.internal:{}/keys'}}]\n",
        issuer.address().port()
    );
    write("policies.yaml", &(OF_CLIENT.to_owned() + &authentication));
    write("web.yaml", &deployment("web", 1, "exec python3 -m http.server --bind 0.0.0.0 8000"));
    let at = folder.path().display();
    let run = format!("exec {at}/evenkeel proxy --config-yaml \"$(cat {at}/application.txt)\"");
    write("evenkeel.yaml", &format!("workloads:\n  httpbin: {{command: {run:?}}}\n"));
    let mut command = user.evenkeel(&["up"]);
    let mut up =
        Process::spawn(command.arg(folder.path()).arg("--state").arg(user.state.path()).args(["--gateway-port", "0"]));
    wait_ready(&mut up, 3);
    let edge = url(&mut up);
    let run = |words: &[&str], more: &[&str]| {
        let state = user.state.path().display().to_string();
        let output = user.evenkeel(&[words, &["--state", &state], more].concat()).output().expect("it runs");
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    };
    let bearer = |signer: &Signer, role: &str| {
        let claims = format!(r#"{{"iss":"machine","sub":"me","role":"{role}","exp":4102444800}}"#);
        format!("Authorization: Bearer {}", signer.token(&claims))
    };
    let within = "http://httpbin:8000/headers".to_owned();
    let outside = format!("{edge}headers");
    for (name, header, expected) in [
        ("of the role", bearer(&known, "admin"), 200),
        ("of another role", bearer(&known, "guest"), 403),
        ("forged", bearer(&stranger, "admin"), 401),
        ("none", "x-none: 1".to_owned(), 403),
    ] {
        let curl = ["curl", "-s", "-m", "20", "-o", "/dev/null", "-w", "%{http_code}", "-H", &header, &within];
        eventually(&format!("{expected} for a token: {name}"), || {
            (run(&["exec", "web"], &[&["--"], &curl[..]].concat()).trim() == expected.to_string()).then_some(())
        });
        for caller in [&["--from", "web.default", "--url", &*within][..], &["--from-outside", "--url", &*outside]] {
            for asks in [&[][..], &["--proxy"]] {
                let text = run(&[&["explain"], caller, &["-H", &*header, "-o", "json"], asks].concat(), &[]);
                let answer: serde_json::Value =
                    serde_json::from_str(&text).unwrap_or_else(|wrong| panic!("{wrong}: {text}"));
                let told = answer["status"].as_u64().unwrap_or(200);
                assert_eq!(told, expected, "{name}: {text}");
                assert!(
                    !text.contains("Jwks doesn't have key") && !text.contains("another configuration"),
                    "{name}: {text}"
                );
                let asked = answer["hops"].as_array().expect("hops").iter().map(|hop| &hop["running"]["agrees"]);
                let asked: Vec<_> = asked.collect();
                assert!(asks.is_empty() || asked.iter().all(|agrees| **agrees == true), "{name}: {text}");
            }
        }
    }
    up.signal(Signal::SIGINT);
    assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
}
