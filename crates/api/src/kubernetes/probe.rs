//! Probes, and what is done at the beginning and end of a container's life.

use crate::decode::{IntOrString, Port};

object! {
    /// A question asked of a program again and again.
    pub struct Probe {
        /// A GET, which must answer with 200 to 399.
        http_get: Option<HttpGetAction> = "httpGet",
        /// A port, which must accept connections.
        tcp_socket: Option<TcpSocketAction> = "tcpSocket",
        /// A command, which must end with status 0.
        exec: Option<ExecAction> = "exec",
        /// gRPC's health service, which must say SERVING.
        grpc: Option<GrpcAction> = "grpc",
        /// Seconds before the first question; 0 if not given.
        initial_delay_seconds: Option<u32> = "initialDelaySeconds",
        /// Seconds between two questions.
        period_seconds: Option<u32> = "periodSeconds",
        /// Seconds to answer; 1 if not given.
        timeout_seconds: Option<u32> = "timeoutSeconds",
        /// Successes in a row that count; 1 if not given.
        success_threshold: Option<u32> = "successThreshold",
        /// Failures in a row that count; 3 if not given.
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
    /// A command that is run beside the program.
    pub struct ExecAction {
        /// The program and its arguments; no shell is involved.
        command: Vec<String> = "command",
    }
}

object! {
    /// A question to gRPC's health service.
    pub struct GrpcAction {
        /// Its number.
        port: Port = "port",
        /// The service asked for; the server as a whole if not given.
        service: Option<String> = "service",
    }
}

object! {
    /// What is done at the beginning and the end of a container's life.
    pub struct Lifecycle {
        /// Before it is asked to end.
        pre_stop: Option<LifecycleHandler> = "preStop",
        /// After it was started.
        post_start: Option<LifecycleHandler> = "postStart",
    }
    later: ["stopSignal"];
}

object! {
    /// Something that is done once.
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
