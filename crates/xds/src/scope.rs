//! `evenkeel.scope.v1`: what a workload uses, remembered by the control plane for its other and later replicas.

#![allow(missing_docs, reason = "generated from protos/evenkeel, documented there")]

include!("generated/evenkeel.scope.v1.rs");
