//! Schema, JSON and field walk on what a real control plane sends, and the gRPC halves against each other.

mod grpc;
mod json;
mod protos;
