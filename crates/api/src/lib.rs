//! Every user-facing kind: decodes YAML with source spans to typed values and diagnostics.
//!
//! Start at [`load`]. A kind is declared once, as a table of its fields ([`decode`]). The table decodes an object, names unknown and
//! unsupported fields, and is the kind's schema.

#![forbid(unsafe_code)]

pub mod annotations;
mod applied;
mod applied_from;
#[macro_use]
pub mod decode;
pub mod definition;
mod foreign;
pub mod formats;
pub mod gateway_api;
pub mod istio;
pub mod kubernetes;
mod kustomize;
mod load;
mod local;
mod mesh_settings;
mod object;
mod object_meta;
mod refused;
pub mod remote;
mod resource;
mod served;
mod unread;

pub use applied::{APPLIED_ANNOTATION, DELETED_ANNOTATION, Document, documents, in_force};
pub use applied_from::{APPLIED_FROM_ANNOTATION, STANDARD_INPUT, applied_from, relocated};
pub use foreign::SKIPPED;
pub use kustomize::{KUSTOMIZATIONS, may_guard, patch_files};
pub use load::{load, unreadable, unreadable_objects};
pub use local::{LOCAL_FILE, LocalFile, LocalWorkload, is_local_file, read_local};
pub use object::{Guarded, Judged, Object, ObjectKey, Places, ProxyPlace, Refusal, Unsupported};
pub use object_meta::{ObjectMeta, ObjectName, OwnerReference};
pub use resource::{Kind, Resource};
pub use served::load_object;
