//! Schema, JSON and field walk over messages of a real control plane, and the gRPC client and server against each other.

mod grpc;
mod json;
mod protojson;
mod protos;
