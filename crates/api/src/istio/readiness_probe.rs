//! Health checks that a workload's agent makes and reports to the control plane: `probe` of a WorkloadGroup, and
//! `readinessProbe` of ProxyConfig, by which the agent learns of it.

use evenkeel_base::Spanned;
use evenkeel_base::yaml::Node;
use serde_json::{Value, json};

use crate::decode::{Context, Port};

object! {
    /// How the health of a workload is checked.
    #[derive(Default)]
    pub struct ReadinessProbe {
        /// Seconds before the first check; 0 if not given.
        initial_delay_seconds: Option<u32> = "initialDelaySeconds",
        /// Seconds that a check may take; 1 if not given.
        timeout_seconds: Option<u32> = "timeoutSeconds",
        /// Seconds between two checks; 10 if not given.
        period_seconds: Option<u32> = "periodSeconds",
        /// Consecutive successes until it counts as healthy; 1 if not given.
        success_threshold: Option<u32> = "successThreshold",
        /// Consecutive failures until it counts as unhealthy; 1 if not given.
        failure_threshold: Option<u32> = "failureThreshold",
        /// A GET, which must answer with 200 to 399.
        http_get: Option<HttpHealthCheck> = "httpGet",
        /// A port, which must accept connections.
        tcp_socket: Option<TcpHealthCheck> = "tcpSocket",
        /// A command, which must end with status 0.
        exec: Option<ExecHealthCheck> = "exec",
        /// gRPC's health service, which must say SERVING.
        grpc: Option<GrpcHealthCheck> = "grpc",
    }
    check: check;
}

object! {
    /// A GET.
    pub struct HttpHealthCheck {
        /// Its path; `/` if not given.
        path: Option<String> = "path",
        /// The port.
        port: Port = "port",
        /// The host; `localhost` if not given.
        host: Option<String> = "host",
        /// `HTTP` or `HTTPS`, whose certificate is not verified.
        scheme: Option<ProbeScheme> = "scheme",
        /// Headers of the request.
        http_headers: Vec<ProbeHeader> = "httpHeaders",
    }
}

choices! {
    /// Whether a GET is encrypted.
    pub enum ProbeScheme {
        /// No.
        Http = "HTTP",
        /// Yes.
        Https = "HTTPS",
    }
}

object! {
    /// A header of a check's request.
    pub struct ProbeHeader {
        /// Its name.
        name: String = "name",
        /// Its value.
        value: String = "value",
    }
}

object! {
    /// A TCP connection.
    pub struct TcpHealthCheck {
        /// The host; `localhost` if not given.
        host: Option<String> = "host",
        /// The port.
        port: Port = "port",
    }
}

object! {
    /// A command, which the agent runs.
    pub struct ExecHealthCheck {
        /// The program and its arguments; no shell is involved.
        command: Spanned<Vec<String>> = "command",
    }
}

object! {
    /// A call of gRPC's health service, at `localhost`.
    pub struct GrpcHealthCheck {
        /// The port.
        port: Port = "port",
        /// The service to check; the server as a whole if not given.
        service: Option<String> = "service",
    }
}

impl ReadinessProbe {
    /// As JSON, as agents read it.
    pub fn to_json(&self) -> Value {
        let http = |get: &HttpHealthCheck| {
            let header = |header: &ProbeHeader| json!({ "name": header.name, "value": header.value });
            json!({
                "path": get.path,
                "port": get.port.0,
                "host": get.host,
                "scheme": get.scheme.map(ProbeScheme::as_str),
                "httpHeaders": get.http_headers.iter().map(header).collect::<Vec<_>>(),
            })
        };
        let fields = json!({
            "initialDelaySeconds": self.initial_delay_seconds,
            "timeoutSeconds": self.timeout_seconds,
            "periodSeconds": self.period_seconds,
            "successThreshold": self.success_threshold,
            "failureThreshold": self.failure_threshold,
            "httpGet": self.http_get.as_ref().map(http),
            "tcpSocket": self.tcp_socket.as_ref().map(|tcp| json!({ "host": tcp.host, "port": tcp.port.0 })),
            "exec": self.exec.as_ref().map(|exec| json!({ "command": *exec.command })),
            "grpc": self.grpc.as_ref().map(|grpc| json!({ "port": grpc.port.0, "service": grpc.service })),
        });
        without_nulls(fields)
    }
}

/// Protobuf's JSON has no fields without a value.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let given = fields.into_iter().filter(|(_, value)| !value.is_null());
            given.map(|(name, value)| (name, without_nulls(value))).collect()
        }
        other => other,
    }
}

fn check(probe: &ReadinessProbe, node: &Node, cx: &mut Context) {
    let methods = [
        ("httpGet", probe.http_get.is_some()),
        ("tcpSocket", probe.tcp_socket.is_some()),
        ("exec", probe.exec.is_some()),
        ("grpc", probe.grpc.is_some()),
    ];
    let given: Vec<&str> = methods.iter().filter(|(_, given)| *given).map(|(name, _)| *name).collect();
    match given.as_slice() {
        [] => {
            let help = "write one of `httpGet`, `tcpSocket`, `exec` and `grpc`, or remove the probe";
            cx.error("missing-field", &node.span, "a probe needs a check", help);
        }
        [_] => {}
        [first, second, ..] => {
            let message = format!("a probe has one check, but `{first}` and `{second}` are given");
            cx.error("conflict", &node.span, message, "remove all but one");
        }
    }
    if let Some(exec) = &probe.exec
        && exec.command.iter().all(String::is_empty)
    {
        let help = "write the program and its arguments, e.g. `[/usr/bin/check, --quick]`";
        cx.at_field("exec", |cx| {
            cx.at_field("command", |cx| {
                cx.error("missing-field", &exec.command.span, "a command needs a program", help)
            })
        });
    }
}
