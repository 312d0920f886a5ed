//! What proxies are sent for whole configurations: golden files, stability, and stock Envoy's opinion.

mod bootstrap;
mod calls;
mod decisions;
mod decisions_destination_rules;
mod decisions_dynamic_dns;
mod decisions_http_policies;
mod decisions_http_routes;
mod decisions_ingress_tls;
mod decisions_l4;
mod decisions_mesh;
mod decisions_proxy_config;
mod decisions_services;
mod decisions_tokens;
mod edits;
mod endpoints;
mod fleet;
mod gateway_tls;
mod golden;
mod grpc;
mod incremental;
mod names;
mod own_proxy;
mod refused;
mod scenario;
mod shadow;
mod stability;
