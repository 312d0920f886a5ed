//! A real API server accepts the same objects with the definitions of this program and with Istio's.

use evenkeel_install::crds;
use evenkeel_testkit::kubernetes::{ApiServer, CustomResources};
use evenkeel_testkit::{golden, workspace};

#[test]
fn the_chart_has_the_definitions_of_the_program() {
    golden::check(workspace::root().join("charts/evenkeel/templates/crds.yaml"), &crds::template());
}

/// Objects as group and version, kind, and `spec`.
const OBJECTS: &[[&str; 3]] = &[
    [
        "networking.istio.io/v1",
        "VirtualService",
        "{hosts: [a], http: [{route: [{destination: {host: a, port: {number: 80}}}]}]}",
    ],
    [
        "networking.istio.io/v1beta1",
        "VirtualService",
        "{hosts: [a], http: [{timeout: 1s, retries: {attempts: 3}, route: [{destination: {host: a}}]}]}",
    ],
    [
        "networking.istio.io/v1alpha3",
        "VirtualService",
        "{hosts: [a], tcp: [{match: [{port: 1}], route: [{destination: {host: a}}]}]}",
    ],
    ["networking.istio.io/v1", "VirtualService", "{hosts: a}"],
    ["networking.istio.io/v1", "VirtualService", "{hosts: [1]}"],
    [
        "networking.istio.io/v1",
        "VirtualService",
        "{hosts: [a], http: [{route: [{destination: {host: a}, weight: many}]}]}",
    ],
    ["networking.istio.io/v1", "VirtualService", "{hosts: [a], htpp: []}"],
    [
        "networking.istio.io/v1",
        "VirtualService",
        "{hosts: [a], http: [{match: [{uri: {prefix: /}, headers: {x: {exact: y}}}], route: [{destination: {host: a}}]}]}",
    ],
    [
        "networking.istio.io/v1",
        "VirtualService",
        "{hosts: [a], http: [{fault: {abort: {httpStatus: 500, percentage: {value: 1.5}}}, route: [{destination: {host: a}}]}]}",
    ],
    ["networking.istio.io/v1", "DestinationRule", "{host: a, trafficPolicy: {loadBalancer: {simple: LEAST_REQUEST}}}"],
    ["networking.istio.io/v1", "DestinationRule", "{host: a, trafficPolicy: {loadBalancer: {simple: FASTEST}}}"],
    ["networking.istio.io/v1", "DestinationRule", "{host: a, subsets: [{name: v1, labels: {version: v1}}]}"],
    ["networking.istio.io/v1", "DestinationRule", "{host: a, subsets: [{labels: {version: v1}}]}"],
    ["networking.istio.io/v1", "DestinationRule", "{trafficPolicy: {}}"],
    ["networking.istio.io/v1", "DestinationRule", "{host: a, trafficPolicy: {tls: {mode: ISTIO_MUTUAL}}}"],
    ["networking.istio.io/v1", "DestinationRule", "{host: a, trafficPolicy: {tls: {mode: NEVER}}}"],
    [
        "networking.istio.io/v1",
        "DestinationRule",
        "{host: a, trafficPolicy: {outlierDetection: {consecutive5xxErrors: 5, interval: 10s}}}",
    ],
    [
        "networking.istio.io/v1",
        "Gateway",
        "{selector: {istio: ingress}, servers: [{hosts: ['*'], port: {number: 80, name: http, protocol: HTTP}}]}",
    ],
    [
        "networking.istio.io/v1",
        "Gateway",
        "{selector: {istio: ingress}, servers: [{hosts: ['*'], port: {number: 80, protocol: HTTP}}]}",
    ],
    [
        "networking.istio.io/v1",
        "Gateway",
        "{selector: {istio: ingress}, servers: [{port: {number: 80, name: http, protocol: HTTP}}]}",
    ],
    ["networking.istio.io/v1", "Gateway", "{selector: {istio: 1}, servers: []}"],
    [
        "networking.istio.io/v1",
        "Gateway",
        "{servers: [{hosts: [a], port: {number: 443, name: https, protocol: HTTPS}, tls: {mode: SIMPLE, credentialName: a}}]}",
    ],
    [
        "networking.istio.io/v1",
        "Gateway",
        "{servers: [{hosts: [a], port: {number: 443, name: https, protocol: HTTPS}, tls: {mode: COMPLEX}}]}",
    ],
    [
        "networking.istio.io/v1",
        "ServiceEntry",
        "{hosts: [a.example], ports: [{number: 443, name: tls, protocol: TLS}], resolution: DNS, location: MESH_EXTERNAL}",
    ],
    ["networking.istio.io/v1", "ServiceEntry", "{ports: [{number: 443, name: tls, protocol: TLS}]}"],
    ["networking.istio.io/v1", "ServiceEntry", "{hosts: [a.example], resolution: MAGIC}"],
    ["networking.istio.io/v1", "ServiceEntry", "{hosts: [a.example], ports: [{number: x, name: tls}]}"],
    ["networking.istio.io/v1", "WorkloadEntry", "{address: 10.0.0.1, labels: {app: a}, ports: {http: 80}, weight: 2}"],
    ["networking.istio.io/v1", "WorkloadEntry", "{address: 10.0.0.1, ports: {http: eighty}}"],
    ["networking.istio.io/v1", "WorkloadGroup", "{metadata: {labels: {app: a}}, template: {serviceAccount: a}}"],
    ["networking.istio.io/v1", "Sidecar", "{egress: [{hosts: ['./*']}], outboundTrafficPolicy: {mode: REGISTRY_ONLY}}"],
    ["networking.istio.io/v1", "Sidecar", "{outboundTrafficPolicy: {mode: NOTHING}}"],
    ["networking.istio.io/v1beta1", "ProxyConfig", "{concurrency: 2, environmentVariables: {A: b}}"],
    ["networking.istio.io/v1beta1", "ProxyConfig", "{concurrency: -1}"],
    ["networking.istio.io/v1", "ProxyConfig", "{concurrency: 2}"],
    [
        "security.istio.io/v1",
        "PeerAuthentication",
        "{mtls: {mode: STRICT}, portLevelMtls: {8080: {mode: DISABLE}}, selector: {matchLabels: {a: b}}}",
    ],
    ["security.istio.io/v1", "PeerAuthentication", "{mtls: {mode: strict}}"],
    [
        "security.istio.io/v1beta1",
        "AuthorizationPolicy",
        "{action: DENY, rules: [{from: [{source: {principals: ['*']}}], to: [{operation: {methods: [GET]}}]}]}",
    ],
    ["security.istio.io/v1", "AuthorizationPolicy", "{action: MAYBE}"],
    ["security.istio.io/v1", "AuthorizationPolicy", "{rules: [{when: [{values: [a]}]}]}"],
    ["security.istio.io/v1", "AuthorizationPolicy", "{}"],
    ["security.istio.io/v1", "RequestAuthentication", "{jwtRules: [{issuer: a, jwksUri: 'https://a.example/keys'}]}"],
    ["security.istio.io/v1", "RequestAuthentication", "{jwtRules: [{issuer: 1}]}"],
    ["security.istio.io/v1", "RequestAuthentication", "{jwtRules: [{issuer: a, forwardOriginalToken: sometimes}]}"],
    [
        "telemetry.istio.io/v1",
        "Telemetry",
        "{tracing: [{randomSamplingPercentage: 10.5}], accessLogging: [{providers: [{name: envoy}]}]}",
    ],
    ["telemetry.istio.io/v1alpha1", "Telemetry", "{tracing: [{randomSamplingPercentage: lots}]}"],
    [
        "networking.istio.io/v1alpha3",
        "EnvoyFilter",
        "{configPatches: [{applyTo: HTTP_FILTER, patch: {operation: ADD, value: {name: a}}}]}",
    ],
    ["extensions.istio.io/v1alpha1", "WasmPlugin", "{url: 'oci://a/b', phase: AUTHN}"],
    [
        "networking.istio.io/v1",
        "VirtualService",
        "{hosts: [a], http: [{timeout: 0s, route: [{destination: {host: a}}]}]}",
    ],
    [
        "networking.istio.io/v1",
        "VirtualService",
        "{hosts: [a], http: [{timeout: soon, route: [{destination: {host: a}}]}]}",
    ],
    [
        "networking.istio.io/v1",
        "VirtualService",
        "{hosts: [a], http: [{retries: {attempts: -1, perTryTimeout: 2s}, route: [{destination: {host: a}}]}]}",
    ],
    [
        "networking.istio.io/v1",
        "VirtualService",
        "{hosts: [a], http: [{retries: {attempts: 1, perTryTimeout: 0s}, route: [{destination: {host: a}}]}]}",
    ],
    [
        "networking.istio.io/v1",
        "VirtualService",
        "{hosts: [a], http: [{retries: {backoff: 0.5ms}, route: [{destination: {host: a}}]}]}",
    ],
    [
        "networking.istio.io/v1",
        "VirtualService",
        "{hosts: [a], http: [{retries: {retryRemoteLocalities: null}, route: [{destination: {host: a}}]}]}",
    ],
    [
        "networking.istio.io/v1",
        "VirtualService",
        "{hosts: [a], http: [{match: [{uri: {prefix: /, exact: /a}}], route: [{destination: {host: a}}]}]}",
    ],
    [
        "networking.istio.io/v1",
        "VirtualService",
        "{hosts: [a], http: [{match: [{uri: {}}], route: [{destination: {host: a}}]}]}",
    ],
    [
        "networking.istio.io/v1",
        "VirtualService",
        "{hosts: [a], http: [{match: [{headers: {x: {exact: a, regex: b}}}], route: [{destination: {host: a}}]}]}",
    ],
    [
        "networking.istio.io/v1",
        "VirtualService",
        "{hosts: [a], http: [{match: [{port: 4294967295}], route: [{destination: {host: a, port: {number: 0}}}]}]}",
    ],
    [
        "networking.istio.io/v1",
        "VirtualService",
        "{hosts: [a], http: [{match: [{port: 4294967296}], route: [{destination: {host: a}}]}]}",
    ],
    [
        "networking.istio.io/v1",
        "VirtualService",
        "{hosts: [a], http: [{redirect: {port: 80, derivePort: FROM_REQUEST_PORT}}]}",
    ],
    ["networking.istio.io/v1", "VirtualService", "{hosts: [a], http: [{redirect: {port: 80, redirectCode: 308}}]}"],
    [
        "networking.istio.io/v1",
        "VirtualService",
        "{hosts: [a], http: [{directResponse: {status: 200, body: {string: a, bytes: YQ==}}}]}",
    ],
    [
        "networking.istio.io/v1",
        "VirtualService",
        "{hosts: [a], http: [{fault: {delay: {fixedDelay: 0s}}, route: [{destination: {host: a}}]}]}",
    ],
    [
        "networking.istio.io/v1",
        "VirtualService",
        "{hosts: [a], http: [{fault: {delay: {fixedDelay: 1s, percent: -1}}, route: [{destination: {host: a}}]}]}",
    ],
    [
        "networking.istio.io/v1",
        "VirtualService",
        "{hosts: [a], http: [{fault: {abort: {httpStatus: 500, grpcStatus: ABORTED}}, route: [{destination: {host: a}}]}]}",
    ],
    [
        "networking.istio.io/v1",
        "VirtualService",
        "{hosts: [a], http: [{corsPolicy: {maxAge: 1ms, allowCredentials: null}, route: [{destination: {host: a}}]}]}",
    ],
    [
        "networking.istio.io/v1",
        "VirtualService",
        "{hosts: [a], http: [{corsPolicy: {maxAge: 1us}, route: [{destination: {host: a}}]}]}",
    ],
    [
        "networking.istio.io/v1",
        "DestinationRule",
        "{host: a, trafficPolicy: {loadBalancer: {simple: RANDOM, consistentHash: {useSourceIp: true}}}}",
    ],
    [
        "networking.istio.io/v1",
        "DestinationRule",
        "{host: a, trafficPolicy: {connectionPool: {tcp: {connectTimeout: 0s}}}}",
    ],
    [
        "networking.istio.io/v1",
        "DestinationRule",
        "{host: a, trafficPolicy: {connectionPool: {tcp: {connectTimeout: 1ms, idleTimeout: 0s}, http: {idleTimeout: 1h}}}}",
    ],
    [
        "networking.istio.io/v1",
        "DestinationRule",
        "{host: a, trafficPolicy: {connectionPool: {tcp: {maxConnections: -1, tcpKeepalive: {probes: 4294967295}}}}}",
    ],
    [
        "networking.istio.io/v1",
        "DestinationRule",
        "{host: a, trafficPolicy: {connectionPool: {tcp: {maxConnections: 2147483648}}}}",
    ],
    [
        "networking.istio.io/v1",
        "DestinationRule",
        "{host: a, trafficPolicy: {connectionPool: {tcp: {tcpKeepalive: {probes: -1}}}}}",
    ],
    [
        "networking.istio.io/v1",
        "DestinationRule",
        "{host: a, trafficPolicy: {connectionPool: {http: {http2KeepAlive: {interval: 0s}}}}}",
    ],
    ["networking.istio.io/v1", "DestinationRule", "{host: a, trafficPolicy: {outlierDetection: {interval: 0s}}}"],
    [
        "networking.istio.io/v1",
        "DestinationRule",
        "{host: a, trafficPolicy: {outlierDetection: {consecutive5xxErrors: null, maxEjectionPercent: -5}}}",
    ],
    [
        "networking.istio.io/v1",
        "DestinationRule",
        "{host: a, trafficPolicy: {outlierDetection: {outlierDetectionHttpErrorCodes: [99]}}}",
    ],
    [
        "networking.istio.io/v1",
        "DestinationRule",
        "{host: a, trafficPolicy: {outlierDetection: {outlierDetectionHttpErrorCodes: [599]}}}",
    ],
    ["networking.istio.io/v1", "DestinationRule", "{host: a, trafficPolicy: {loadBalancer: {warmup: {duration: 0s}}}}"],
    [
        "networking.istio.io/v1",
        "DestinationRule",
        "{host: a, trafficPolicy: {loadBalancer: {warmup: {duration: 1s, minimumPercent: 101}}}}",
    ],
    [
        "networking.istio.io/v1",
        "DestinationRule",
        "{host: a, trafficPolicy: {loadBalancer: {warmup: {duration: 1s, aggression: -1}}}}",
    ],
    [
        "networking.istio.io/v1",
        "DestinationRule",
        "{host: a, trafficPolicy: {loadBalancer: {simple: RANDOM, warmup: {duration: 1s, aggression: null}}}}",
    ],
    [
        "networking.istio.io/v1",
        "DestinationRule",
        "{host: a, trafficPolicy: {loadBalancer: {zoneAwareLbSetting: {minClusterSize: 0}}}}",
    ],
    [
        "networking.istio.io/v1",
        "DestinationRule",
        "{host: a, trafficPolicy: {tls: {mode: SIMPLE, insecureSkipVerify: null}}}",
    ],
    ["networking.istio.io/v1", "DestinationRule", "{host: a, workloadSelector: {matchLabels: {'*': a}}}"],
    ["networking.istio.io/v1", "DestinationRule", "{host: a, workloadSelector: {matchLabels: {a: '*'}}}"],
    ["networking.istio.io/v1", "DestinationRule", "{host: a, workloadSelector: {matchLabels: {'': a}}}"],
    ["networking.istio.io/v1", "DestinationRule", "{host: a, workloadSelector: {matchLabels: {a: b}}}"],
    [
        "networking.istio.io/v1",
        "DestinationRule",
        "{host: a, subsets: [{name: v1, trafficPolicy: {portLevelSettings: [{port: {number: 80}, connectionPool: {tcp: {connectTimeout: 0s}}}]}}]}",
    ],
    [
        "networking.istio.io/v1",
        "Gateway",
        "{servers: [{hosts: [a], port: {number: 443, name: a, protocol: HTTPS}, tls: {mode: SIMPLE, credentialName: a, credentialNames: [b]}}]}",
    ],
    [
        "networking.istio.io/v1",
        "Gateway",
        "{servers: [{hosts: [a], port: {number: 443, name: a, protocol: HTTPS}, tls: {mode: SIMPLE, credentialNames: []}}]}",
    ],
    [
        "networking.istio.io/v1",
        "Gateway",
        "{servers: [{hosts: [a], port: {number: 443, name: a, protocol: HTTPS}, tls: {mode: SIMPLE, credentialNames: [a, b]}}]}",
    ],
    [
        "networking.istio.io/v1",
        "Gateway",
        "{servers: [{hosts: [a], port: {number: 443, name: a, protocol: HTTPS}, tls: {mode: SIMPLE, credentialNames: [a, b, c]}}]}",
    ],
    ["networking.istio.io/v1", "ServiceEntry", "{hosts: []}"],
    ["networking.istio.io/v1", "ServiceEntry", "{hosts: ['*']}"],
    [
        "networking.istio.io/v1",
        "ServiceEntry",
        "{hosts: ['*.example.com'], ports: [{number: 80, name: a}], addresses: [10.0.0.0/8]}",
    ],
    [
        "networking.istio.io/v1",
        "ServiceEntry",
        "{hosts: [a.example], ports: [{number: 80, name: a}], addresses: [10.0.0.0/8], resolution: DNS}",
    ],
    [
        "networking.istio.io/v1",
        "ServiceEntry",
        "{hosts: [a.example], ports: [{number: 80, name: a}, {number: 80, name: b}]}",
    ],
    [
        "networking.istio.io/v1",
        "ServiceEntry",
        "{hosts: [a.example], ports: [{number: 80, name: a}, {number: 81, name: a}]}",
    ],
    ["networking.istio.io/v1", "ServiceEntry", "{hosts: [a.example], ports: [{number: 0, name: a}]}"],
    ["networking.istio.io/v1", "ServiceEntry", "{hosts: [a.example], ports: [{number: 65536, name: a}]}"],
    ["networking.istio.io/v1", "ServiceEntry", "{hosts: [a.example], ports: [{number: 80, name: a, targetPort: 0}]}"],
    [
        "networking.istio.io/v1",
        "ServiceEntry",
        "{hosts: [a.example], ports: [{number: 80, name: a}], resolution: STATIC, endpoints: [{address: 10.0.0.1}]}",
    ],
    [
        "networking.istio.io/v1",
        "ServiceEntry",
        "{hosts: [a.example], ports: [{number: 80, name: a}], endpoints: [{address: 10.0.0.1}]}",
    ],
    [
        "networking.istio.io/v1",
        "ServiceEntry",
        "{hosts: [a.example], ports: [{number: 80, name: a}], resolution: STATIC, endpoints: [{labels: {a: b}}]}",
    ],
    [
        "networking.istio.io/v1",
        "ServiceEntry",
        "{hosts: [a.example], ports: [{number: 80, name: a}], resolution: STATIC, endpoints: [{address: 'unix:///a', ports: {a: 1}}]}",
    ],
    [
        "networking.istio.io/v1",
        "ServiceEntry",
        "{hosts: [a.example], ports: [{number: 80, name: a}], resolution: STATIC, endpoints: [{address: 'unix:///a'}]}",
    ],
    [
        "networking.istio.io/v1",
        "ServiceEntry",
        "{hosts: [a.example], ports: [{number: 80, name: a}], resolution: STATIC, endpoints: [{address: 'unix://a'}]}",
    ],
    [
        "networking.istio.io/v1",
        "ServiceEntry",
        "{hosts: [a.example], ports: [{number: 80, name: a}], resolution: STATIC, endpoints: [{address: 'unix:///a/'}]}",
    ],
    [
        "networking.istio.io/v1",
        "ServiceEntry",
        "{hosts: [a.example], ports: [{number: 80, name: a}], resolution: STATIC, endpoints: [{address: 10.0.0.1, ports: {a_b: 1}}]}",
    ],
    [
        "networking.istio.io/v1",
        "ServiceEntry",
        "{hosts: [a.example], ports: [{number: 80, name: a}], resolution: STATIC, endpoints: [{address: 10.0.0.1, ports: {a: 0}}]}",
    ],
    [
        "networking.istio.io/v1",
        "ServiceEntry",
        "{hosts: [a.example], ports: [{number: 80, name: a}], resolution: STATIC, workloadSelector: {labels: {a: b}}, endpoints: [{address: 10.0.0.1}]}",
    ],
    [
        "networking.istio.io/v1",
        "ServiceEntry",
        "{hosts: [a.example], ports: [{number: 80, name: a}], workloadSelector: {labels: {a: 'b*'}}, resolution: STATIC}",
    ],
    [
        "networking.istio.io/v1",
        "ServiceEntry",
        "{hosts: [a.example], ports: [{number: 80, name: a}], resolution: DNS_ROUND_ROBIN, endpoints: [{address: a.b}, {address: c.d}]}",
    ],
    ["networking.istio.io/v1", "WorkloadEntry", "{}"],
    ["networking.istio.io/v1", "WorkloadEntry", "{network: a}"],
    ["networking.istio.io/v1", "WorkloadEntry", "{address: 10.0.0.1, ports: {a: 65536}}"],
    ["networking.istio.io/v1", "WorkloadEntry", "{address: 'unix://@a'}"],
    ["networking.istio.io/v1", "WorkloadEntry", "{address: 'unix:///a', ports: {a: 1}}"],
    ["networking.istio.io/v1", "WorkloadGroup", "{template: {}, probe: {httpGet: {port: 0}}}"],
    ["networking.istio.io/v1", "WorkloadGroup", "{template: {}, probe: {httpGet: {port: 80, scheme: FTP}}}"],
    ["networking.istio.io/v1", "WorkloadGroup", "{template: {}, probe: {httpGet: {port: 80}, tcpSocket: {port: 80}}}"],
    ["networking.istio.io/v1", "WorkloadGroup", "{template: {}, probe: {tcpSocket: {port: 65536}}}"],
    ["networking.istio.io/v1", "WorkloadGroup", "{template: {}, probe: {exec: {command: ['']}}}"],
    [
        "networking.istio.io/v1",
        "WorkloadGroup",
        "{template: {}, probe: {httpGet: {port: 80, httpHeaders: [{name: 'a b', value: c}]}}}",
    ],
    ["networking.istio.io/v1", "WorkloadGroup", "{template: {}, probe: {periodSeconds: -1, tcpSocket: {port: 1}}}"],
    ["networking.istio.io/v1", "Sidecar", "{workloadSelector: {labels: {a: '*'}}}"],
    ["networking.istio.io/v1", "Sidecar", "{inboundConnectionPool: {http: {idleTimeout: 0s}}}"],
    [
        "networking.istio.io/v1",
        "Sidecar",
        "{ingress: [{port: {number: 443, name: a, protocol: HTTPS}, tls: {mode: SIMPLE, credentialName: a, credentialNames: [b]}}]}",
    ],
    ["networking.istio.io/v1beta1", "ProxyConfig", "{selector: {matchLabels: {a: 'b*'}}}"],
    ["networking.istio.io/v1beta1", "ProxyConfig", "{concurrency: null}"],
    ["security.istio.io/v1", "PeerAuthentication", "{portLevelMtls: {8080: {mode: DISABLE}}}"],
    [
        "security.istio.io/v1",
        "PeerAuthentication",
        "{portLevelMtls: {0: {mode: DISABLE}}, selector: {matchLabels: {a: b}}}",
    ],
    ["security.istio.io/v1", "PeerAuthentication", "{portLevelMtls: {}, selector: {matchLabels: {a: b}}}"],
    ["security.istio.io/v1", "PeerAuthentication", "{selector: {matchLabels: {a: 'b*'}}}"],
    ["security.istio.io/v1", "PeerAuthentication", "{selector: {}, portLevelMtls: {80: {mode: STRICT}}}"],
    [
        "security.istio.io/v1",
        "AuthorizationPolicy",
        "{selector: {matchLabels: {a: b}}, targetRefs: [{kind: Service, name: a}]}",
    ],
    [
        "security.istio.io/v1",
        "AuthorizationPolicy",
        "{targetRef: {kind: Service, name: a}, targetRefs: [{kind: Service, name: a}]}",
    ],
    ["security.istio.io/v1", "AuthorizationPolicy", "{targetRefs: [{kind: Service, name: a, namespace: b}]}"],
    ["security.istio.io/v1", "AuthorizationPolicy", "{targetRefs: [{kind: Service, name: a, namespace: ''}]}"],
    ["security.istio.io/v1", "AuthorizationPolicy", "{targetRefs: [{kind: Service}]}"],
    ["security.istio.io/v1", "AuthorizationPolicy", "{targetRefs: [{kind: '1', name: a}]}"],
    ["security.istio.io/v1", "AuthorizationPolicy", "{targetRefs: [{kind: Gateway, name: a, group: A}]}"],
    [
        "security.istio.io/v1",
        "AuthorizationPolicy",
        "{targetRefs: [{kind: Gateway, name: a, group: gateway.networking.k8s.io}]}",
    ],
    [
        "security.istio.io/v1",
        "AuthorizationPolicy",
        "{targetRefs: [{kind: Service, name: a}, {kind: Service, name: a}, {kind: Service, name: a}, {kind: Service, name: a}, {kind: Service, name: a}, {kind: Service, name: a}, {kind: Service, name: a}, {kind: Service, name: a}, {kind: Service, name: a}, {kind: Service, name: a}, {kind: Service, name: a}, {kind: Service, name: a}, {kind: Service, name: a}, {kind: Service, name: a}, {kind: Service, name: a}, {kind: Service, name: a}, {kind: Service, name: a}]}",
    ],
    [
        "security.istio.io/v1",
        "AuthorizationPolicy",
        "{rules: [{from: [{source: {serviceAccounts: [a/b], principals: [c]}}]}]}",
    ],
    [
        "security.istio.io/v1",
        "AuthorizationPolicy",
        "{rules: [{from: [{source: {notServiceAccounts: [a/b], namespaces: [c]}}]}]}",
    ],
    [
        "security.istio.io/v1",
        "AuthorizationPolicy",
        "{rules: [{from: [{source: {serviceAccounts: [a/b], ipBlocks: [10.0.0.1]}}]}]}",
    ],
    [
        "security.istio.io/v1",
        "AuthorizationPolicy",
        "{rules: [{from: [{source: {serviceAccounts: [a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a]}}]}]}",
    ],
    ["security.istio.io/v1", "AuthorizationPolicy", "{action: CUSTOM, provider: {name: a}}"],
    ["security.istio.io/v1", "RequestAuthentication", "{jwtRules: [{issuer: ''}]}"],
    [
        "security.istio.io/v1",
        "RequestAuthentication",
        "{jwtRules: [{issuer: a, jwks: b, jwksUri: 'https://a.example'}]}",
    ],
    ["security.istio.io/v1", "RequestAuthentication", "{jwtRules: [{issuer: a, jwksUri: 'ftp://a.example'}]}"],
    ["security.istio.io/v1", "RequestAuthentication", "{jwtRules: [{issuer: a, jwks_uri: 'https://a.example'}]}"],
    ["security.istio.io/v1", "RequestAuthentication", "{jwtRules: [{issuer: a, jwksUri: a}]}"],
    ["security.istio.io/v1", "RequestAuthentication", "{jwtRules: [{issuer: a, timeout: 0s}]}"],
    ["security.istio.io/v1", "RequestAuthentication", "{jwtRules: [{issuer: a, audiences: ['']}]}"],
    [
        "security.istio.io/v1",
        "RequestAuthentication",
        "{jwtRules: [{issuer: a, outputClaimToHeaders: [{header: 'x y', claim: a}]}]}",
    ],
    [
        "security.istio.io/v1",
        "RequestAuthentication",
        "{jwtRules: [{issuer: a, outputClaimToHeaders: [{header: x-y, claim: a}]}]}",
    ],
    ["security.istio.io/v1", "RequestAuthentication", "{jwtRules: [{issuer: a, fromHeaders: [{name: ''}]}]}"],
    ["telemetry.istio.io/v1", "Telemetry", "{tracing: [{randomSamplingPercentage: 101}]}"],
    ["telemetry.istio.io/v1", "Telemetry", "{tracing: [{randomSamplingPercentage: null}]}"],
    ["telemetry.istio.io/v1", "Telemetry", "{tracing: [{providers: [{name: ''}]}]}"],
    [
        "telemetry.istio.io/v1",
        "Telemetry",
        "{tracing: [{customTags: {a: {literal: {value: b}, environment: {name: c}}}}]}",
    ],
    ["telemetry.istio.io/v1", "Telemetry", "{tracing: [{customTags: {a: {header: {name: ''}}}}]}"],
    ["telemetry.istio.io/v1", "Telemetry", "{metrics: [{reportingInterval: 0s}]}"],
    ["telemetry.istio.io/v1", "Telemetry", "{metrics: [{overrides: [{tagOverrides: {a: {operation: UPSERT}}}]}]}"],
    [
        "telemetry.istio.io/v1",
        "Telemetry",
        "{metrics: [{overrides: [{tagOverrides: {a: {operation: REMOVE, value: b}}}]}]}",
    ],
    [
        "telemetry.istio.io/v1",
        "Telemetry",
        "{metrics: [{overrides: [{tagOverrides: {a: {operation: UPSERT, value: '1'}}, disabled: null}]}]}",
    ],
    [
        "telemetry.istio.io/v1",
        "Telemetry",
        "{metrics: [{overrides: [{match: {metric: ALL_METRICS, customMetric: a}}]}]}",
    ],
    ["telemetry.istio.io/v1", "Telemetry", "{selector: {matchLabels: {'a*': b}}}"],
    ["networking.istio.io/v1alpha3", "EnvoyFilter", "{workloadSelector: {labels: {a: '*'}}}"],
    [
        "networking.istio.io/v1alpha3",
        "EnvoyFilter",
        "{workloadSelector: {labels: {a: b}}, targetRefs: [{kind: Service, name: a}]}",
    ],
    ["networking.istio.io/v1alpha3", "EnvoyFilter", "{targetRefs: [{kind: Service, name: a, namespace: b}]}"],
    ["networking.istio.io/v1alpha3", "EnvoyFilter", "{priority: 3}"],
    ["extensions.istio.io/v1alpha1", "WasmPlugin", "{}"],
    ["extensions.istio.io/v1alpha1", "WasmPlugin", "{url: ''}"],
    ["extensions.istio.io/v1alpha1", "WasmPlugin", "{url: 'ftp://a'}"],
    ["extensions.istio.io/v1alpha1", "WasmPlugin", "{url: a.example/b}"],
    ["extensions.istio.io/v1alpha1", "WasmPlugin", "{url: 'file:///a'}"],
    ["extensions.istio.io/v1alpha1", "WasmPlugin", "{url: a, sha256: abc}"],
    [
        "extensions.istio.io/v1alpha1",
        "WasmPlugin",
        "{url: a, selector: {matchLabels: {a: b}}, targetRefs: [{kind: Gateway, name: a}]}",
    ],
    ["extensions.istio.io/v1alpha1", "TrafficExtension", "{}"],
    ["extensions.istio.io/v1alpha1", "TrafficExtension", "{wasm: {url: a}, lua: {inlineCode: b}}"],
    ["extensions.istio.io/v1alpha1", "TrafficExtension", "{lua: {inlineCode: b}}"],
    ["extensions.istio.io/v1alpha1", "TrafficExtension", "{wasm: {url: 'oci://a'}, selector: {matchLabels: {a: '*'}}}"],
];

#[test]
fn a_real_api_server_gives_the_same_verdicts_as_with_istios_definitions() {
    let [istios, ours] = [(); 2].map(|()| ApiServer::start());
    istios.install(CustomResources::Istio);
    let definitions: Vec<String> = crds::definitions().iter().map(ToString::to_string).collect();
    ours.apply(&definitions.join("\n---\n"));
    ours.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"]);
    let objects: Vec<String> = OBJECTS
        .iter()
        .enumerate()
        .map(|(place, [version, kind, spec])| {
            format!(
                "apiVersion: {version}\nkind: {kind}\nmetadata: {{name: o{place}, namespace: default}}\nspec: {spec}\n"
            )
        })
        .collect();
    let [theirs, own] = [&istios, &ours].map(|server| server.verdicts(&objects.join("---\n")).accepted);
    let different: Vec<String> = OBJECTS
        .iter()
        .enumerate()
        .filter_map(|(place, [version, kind, spec])| {
            let name = format!("o{place}");
            let verdicts = [&theirs, &own].map(|accepted| accepted.contains(&name));
            let is_same = verdicts[0] == verdicts[1];
            (!is_same)
                .then(|| format!("{version} {kind} {spec}: Istio's accept: {}, ours: {}", verdicts[0], verdicts[1]))
        })
        .collect();
    assert!(
        theirs.len() > 40 && theirs.len() < OBJECTS.len() - 40,
        "the table has both kinds of objects: {}",
        theirs.len()
    );
    assert!(different.is_empty(), "{}", different.join("\n"));
}

#[test]
fn every_version_and_name_is_that_of_istio() {
    let names = |server: &ApiServer| {
        let path = "{range .items[*]}{.metadata.name} {.spec.names.shortNames} {.spec.versions[*].name}{\"\\n\"}{end}";
        server.kubectl(&["get", "crd", "-o", &format!("jsonpath={path}")])
    };
    let [istios, ours] = [(); 2].map(|()| ApiServer::start());
    istios.install(CustomResources::Istio);
    let definitions: Vec<String> = crds::definitions().iter().map(ToString::to_string).collect();
    ours.apply(&definitions.join("\n---\n"));
    let normal = |text: String| {
        let mut lines: Vec<Vec<String>> = text
            .lines()
            .map(|line| {
                let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
                words.sort();
                words
            })
            .collect();
        lines.sort();
        lines
    };
    assert_eq!(normal(names(&ours)), normal(names(&istios)));
}
