//! The descriptors of every message this project understands, loaded when needed and freed when idle.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use prost::Message as _;
use prost_reflect::{DescriptorError, DescriptorPool, DynamicMessage, MessageDescriptor};
use prost_types::FileDescriptorSet;

use crate::{Any, pb, type_url};

/// Istio's messages and our own, with the messages they refer to; written by `scripts/schema`.
static OWN: &[u8] = include_bytes!("../protos/own.bin");

static LOADED: Mutex<Weak<Schema>> = Mutex::new(Weak::new());

/// Descriptors for reading messages without their Rust types: field walks, JSON.
///
/// Loading takes milliseconds and megabytes, and a proxy needs the descriptors only while configuration changes. Hold
/// the handle during one task, not for the life of the process.
#[derive(Debug)]
pub struct Schema {
    pool: DescriptorPool,
}

impl Schema {
    /// Returns the descriptors; loads them if nobody holds them.
    pub fn acquire() -> Arc<Self> {
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(schema) = loaded.upgrade() {
            return schema;
        }
        // The descriptor sets are covered by a test, so they can fail to load only in a broken
        // build; types are then reported as unknown.
        let pool = load_apart().unwrap_or_else(|error| {
            tracing::error!(%error, "the embedded protobuf schema does not load");
            DescriptorPool::new()
        });
        let schema = Arc::new(Self { pool });
        *loaded = Arc::downgrade(&schema);
        schema
    }

    /// The descriptor of a message, by full name.
    pub fn message(&self, full_name: &str) -> Option<MessageDescriptor> {
        self.pool.get_message_by_name(full_name)
    }

    /// Decodes the content of an [`Any`]; `None` if its type is not in the schema.
    pub fn decode(&self, any: &Any) -> Option<Result<DynamicMessage, prost::DecodeError>> {
        let descriptor = self.message(type_url::message_name(&any.type_url))?;
        Some(DynamicMessage::decode(descriptor, &*any.value))
    }
}

/// Loads on a thread of its own. The allocator keeps the blocks of each thread in separate pages, so whole pages become
/// free when the descriptors are dropped; otherwise long-lived blocks would be scattered among them.
fn load_apart() -> Result<DescriptorPool, DescriptorError> {
    let loading = std::thread::Builder::new().name("schema".to_owned()).spawn(load);
    // If no thread can be started, memory matters less.
    loading.ok().and_then(|thread| thread.join().ok()).unwrap_or_else(load)
}

/// Envoy's descriptors, and ours in files that Envoy's set lacks.
fn load() -> Result<DescriptorPool, DescriptorError> {
    let mut pool = DescriptorPool::decode(pb::DESCRIPTORS)?;
    let own = FileDescriptorSet::decode(OWN).unwrap_or_default();
    let known = |name: &str| pool.get_file_by_name(name).is_some();
    let files: Vec<_> = own.file.into_iter().filter(|file| !known(file.name())).collect();
    pool.add_file_descriptor_protos(files)?;
    Ok(pool)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_every_root_and_istios_messages() {
        let schema = Schema::acquire();
        let roots = include_str!("../../envoy-api/protos/roots.txt").lines().take_while(|line| *line != "# Services");
        let roots = roots.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let mut count = 0;
        for name in roots.chain(["istio.networking.nds.v1.NameTable", "istio.v1.auth.IstioCertificateRequest"]) {
            assert!(schema.message(name).is_some(), "{name}");
            count += 1;
        }
        assert!(count > 50, "{count}");
    }

    #[test]
    fn is_freed_when_nobody_holds_it() {
        let held = Schema::acquire();
        assert!(Arc::ptr_eq(&held, &Schema::acquire()));
        // Other tests of this binary may hold it too; what counts is that the static does not.
        let weak = Arc::downgrade(&held);
        assert!(Arc::strong_count(&held) >= 1);
        drop(held);
        assert!(weak.strong_count() < 64);
    }
}
