//! The control plane over real sockets, with a real xDS client.

mod authority_attacks;
mod authority_rotation;
mod certificates;
mod configuration;
mod divergence;
mod envoy;
mod envoy_on_demand;
mod external_signer;
mod fixture;
mod go_client;
mod grpc_programs;
mod jwks;
mod metrics;
mod registration;
mod sources;
mod startup;
mod strangers;
mod stream_tokens;
mod streams;
mod webhooks;
