//! From a Pod to its sidecar, as a pure function, for an admission webhook, a command and `evenkeel up`.
//!
//! Read [`inject`] first: it has all parts of what a Pod of a cluster gets; [`inject_json`] puts them into the Pod. `evenkeel up` starts processes instead of containers; it
//! shares [`ProxySettings`] and the command line of the agent ([`Agent`]) with them.

#![forbid(unsafe_code)]

mod admission;
mod agent;
mod apply;
pub mod container;
mod decision;
mod document;
mod init;
mod injection;
mod labels;
mod merge;
mod pod;
mod probes;
mod settings;
mod sidecar;
mod template;
mod undo;
mod volumes;

pub use admission::AdmissionRequest;
pub use agent::{
    ADMIN_VARIABLE, ANNOTATIONS_VARIABLE, Agent, Defaults, Expansion, Files, Identity, PROMETHEUS_VARIABLE, Role,
};
pub use apply::{Subject, inject_json};
pub use decision::{GATEWAY_TEMPLATE, PROXY_CONTAINER, TEMPLATES_ANNOTATION, is_gateway, is_injected};
pub use document::Mesh;
pub use init::{NAME as INIT, VALIDATION, VALIDATION_FLAGS};
pub use injection::{Injection, inject};
pub use labels::{canonical_name, canonical_revision};
pub use pod::{Owner, Pod};
pub use probes::PROBES_VARIABLE;
pub use settings::{ADMIN_PORT, Membership, ProxySettings};
pub use template::{InitContainer, SidecarForm, Template};
