//! Probes and lifecycle hooks of containers.

use crate::decode::{IntOrString, Port};

object! {
    /// A check that is repeated while a container runs.
    pub struct Probe {
        /// A GET, which must answer with 200 to 399.
        http_get: Option<HttpGetAction> = "httpGet",
        /// A port, which must accept connections.
        tcp_socket: Option<TcpSocketAction> = "tcpSocket",
        /// A command, which must end with status 0.
        exec: Option<ExecAction> = "exec",
        /// gRPC's health service, which must say SERVING.
        grpc: Option<GrpcAction> = "grpc",
        /// Seconds before the first check; 0 if not given.
        initial_delay_seconds: Option<u32> = "initialDelaySeconds",
        /// Seconds between two checks.
        period_seconds: Option<u32> = "periodSeconds",
        /// Timeout in seconds; 1 if not given.
        timeout_seconds: Option<u32> = "timeoutSeconds",
        /// Consecutive successes until it counts as successful; 1 if not given.
        success_threshold: Option<u32> = "successThreshold",
        /// Consecutive failures until it counts as failed; 3 if not given.
        failure_threshold: Option<u32> = "failureThreshold",
    }
    later: ["terminationGracePeriodSeconds"];
}

object! {
    /// A GET as a probe.
    pub struct HttpGetAction {
        /// `/` if not given.
        path: Option<String> = "path",
        /// Its number or its name.
        port: IntOrString = "port",
        /// Headers of the request.
        http_headers: Vec<HttpHeader> = "httpHeaders",
    }
    later: ["host", "scheme"];
}

object! {
    /// A header of a probe's request.
    pub struct HttpHeader {
        /// Its name.
        name: String = "name",
        /// Its value.
        value: String = "value",
    }
}

object! {
    /// A TCP connection as a probe.
    pub struct TcpSocketAction {
        /// Its number or its name.
        port: IntOrString = "port",
    }
    later: ["host"];
}

object! {
    /// A command that runs in the container.
    pub struct ExecAction {
        /// The program and its arguments; no shell is involved.
        command: Vec<String> = "command",
    }
}

object! {
    /// A check of gRPC's health service.
    pub struct GrpcAction {
        /// Its number.
        port: Port = "port",
        /// The service to check; the server as a whole if not given.
        service: Option<String> = "service",
    }
}

object! {
    /// Lifecycle hooks of a container.
    pub struct Lifecycle {
        /// Runs before the container is told to end.
        pre_stop: Option<LifecycleHandler> = "preStop",
        /// Runs after the container was started.
        post_start: Option<LifecycleHandler> = "postStart",
    }
    later: ["stopSignal"];
}

object! {
    /// A hook.
    pub struct LifecycleHandler {
        /// A command.
        exec: Option<ExecAction> = "exec",
        /// A GET.
        http_get: Option<HttpGetAction> = "httpGet",
        /// A pause.
        sleep: Option<SleepAction> = "sleep",
    }
    later: ["tcpSocket"];
}

object! {
    /// A pause.
    pub struct SleepAction {
        /// Its length.
        seconds: u32 = "seconds",
    }
}
