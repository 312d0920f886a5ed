//! Limits on the number of parts in a request, checked before it is decoded: a message of many small parts needs a
//! multiple of its bytes in memory, 24 bytes for an empty name of 2, and 30 times its size for an empty value in a
//! node's metadata.

use crate::server::MAX_NAMES_PER_TYPE;

/// Maximum number of names, and versions by name, in one request: the largest numbers of names to subscribe to, to drop, and
/// to resume with.
const MAX_NAMES: usize = 3 * MAX_NAMES_PER_TYPE;
/// Maximum size of the rest of a request, in bytes: the node, and the reason of a rejection.
const MAX_OTHER_BYTES: usize = 1024 * 1024;
/// Fields of DiscoveryRequest and DeltaDiscoveryRequest that hold names: `resource_names`, `resource_names_subscribe`,
/// `resource_names_unsubscribe` and `initial_resource_versions`. Of the former, 4 and 5 are single texts.
const NAMES: std::ops::RangeInclusive<u64> = 3..=5;

/// Checks that a request is not inflated in memory; the decoder refuses malformed requests.
pub(super) fn check(mut message: &[u8]) -> Result<(), String> {
    let (mut names, mut other) = (0_usize, 0_usize);
    while !message.is_empty() {
        let before = message.len();
        let Some(field) = skip_field(&mut message) else { return Ok(()) };
        if NAMES.contains(&field) {
            names += 1
        } else {
            other += before - message.len()
        }
        if names > MAX_NAMES {
            return Err(format!("a request with more than {MAX_NAMES} names and versions"));
        }
        if other > MAX_OTHER_BYTES {
            return Err(format!("a request with more than {MAX_OTHER_BYTES} bytes besides names and versions"));
        }
    }
    Ok(())
}

/// Skips a field (protobuf, "Message Structure") and returns its number; `None` if it is malformed or a group, which is
/// not used here.
fn skip_field(message: &mut &[u8]) -> Option<u64> {
    let key = varint(message)?;
    let length = match key & 7 {
        0 => {
            varint(message)?;
            0
        }
        1 => 8,
        2 => usize::try_from(varint(message)?).ok()?,
        5 => 4,
        _ => return None,
    };
    *message = message.get(length..)?;
    Some(key >> 3)
}

fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = message.split_first()?;
        *message = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::pb::envoy::config::core::v3::Node;
    use crate::pb::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};

    #[test]
    fn what_clients_send_passes_and_a_multiple_of_it_does_not() {
        let names = |count: usize| (0..count).map(|n| format!("outbound|80||service-{n}.namespace.svc.cluster.local"));
        let all = DeltaDiscoveryRequest {
            node: Some(Node { id: "a".repeat(1000), ..Node::default() }),
            resource_names_subscribe: names(MAX_NAMES_PER_TYPE).collect(),
            initial_resource_versions: names(MAX_NAMES_PER_TYPE)
                .map(|name| (name, "0123456789abcdef".into()))
                .collect(),
            ..Default::default()
        };
        assert_eq!(check(&all.encode_to_vec()), Ok(()));
        let sotw = DiscoveryRequest { resource_names: names(MAX_NAMES_PER_TYPE).collect(), ..Default::default() };
        assert_eq!(check(&sotw.encode_to_vec()), Ok(()));

        let refused = |message: Vec<u8>, expected: &str| {
            let found = check(&message).expect_err("a refusal");
            assert!(found.contains(expected), "{found}");
        };
        let many = DeltaDiscoveryRequest {
            resource_names_subscribe: vec![String::new(); MAX_NAMES + 1],
            ..Default::default()
        };
        refused(many.encode_to_vec(), "names and versions");
        // A node in parts counts as a whole.
        let part = DeltaDiscoveryRequest {
            node: Some(Node { id: "a".repeat(MAX_OTHER_BYTES / 2), ..Node::default() }),
            ..Default::default()
        };
        assert_eq!(check(&part.encode_to_vec()), Ok(()));
        refused([part.encode_to_vec(), part.encode_to_vec()].concat(), "besides names");
    }

    #[test]
    fn what_is_malformed_is_left_to_the_decoder() {
        for message in [&[0xff; 20][..], &[0x0a], &[0x0a, 5, 1], &[0x0b], &[0x09, 1, 2], &[0x08, 0x80]] {
            assert_eq!(check(message), Ok(()), "{message:?}");
            assert!(DeltaDiscoveryRequest::decode(message).is_err(), "{message:?}");
        }
    }
}
