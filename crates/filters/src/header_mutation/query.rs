//! Edits of the query in a request's path.

use std::collections::BTreeMap;

use evenkeel_http::RequestHead;
use evenkeel_runtime_config::header_edits::AppendAction;
use evenkeel_runtime_config::header_mutation::QueryMutation;
use evenkeel_runtime_config::substitution_format::Format;
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, percent_decode, percent_encode};

/// Characters encoded in added values, as in Envoy: all but letters, digits, and these.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');
/// Characters encoded in names, because they would end the name or the query.
const NAME_ENDS: &AsciiSet = &CONTROLS.add(b' ').add(b'#').add(b'%').add(b'&').add(b'+').add(b'=');

/// Values as they are written, by the decoded name. As in Envoy, the edited query has them in the order of their names.
/// (Envoy decodes values and does not encode them again: a space then ends the path.)
type Parameters = BTreeMap<Vec<u8>, Vec<Vec<u8>>>;

/// The path of a request whose query is edited. Without edits the query stays as it was written. `value_of`: the value of a format string.
pub(super) fn edited(
    head: &RequestHead,
    mutations: &[QueryMutation],
    value_of: impl Fn(&Format) -> Vec<u8>,
) -> Option<Vec<u8>> {
    if mutations.is_empty() {
        return None;
    }
    let mut parts = head.path().splitn(2, |byte| *byte == b'?');
    let (bare, query) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let mut parameters = parse(query);
    for mutation in mutations {
        apply(&mut parameters, mutation, &value_of);
    }
    let mut edited = bare.to_vec();
    let pairs = parameters.iter().flat_map(|(name, values)| values.iter().map(move |value| (name, value)));
    for (index, (name, value)) in pairs.enumerate() {
        edited.push(if index == 0 { b'?' } else { b'&' });
        edited.extend(percent_encode(name, NAME_ENDS).flat_map(str::bytes));
        edited.push(b'=');
        edited.extend_from_slice(value);
    }
    Some(edited)
}

fn parse(query: &[u8]) -> Parameters {
    let mut parameters = Parameters::new();
    if query.is_empty() {
        return parameters;
    }
    for pair in query.split(|byte| *byte == b'&') {
        let mut parts = pair.splitn(2, |byte| *byte == b'=');
        let name = percent_decode(parts.next().unwrap_or_default()).collect();
        parameters.entry(name).or_default().push(parts.next().unwrap_or_default().to_vec());
    }
    parameters
}

fn apply(parameters: &mut Parameters, mutation: &QueryMutation, value_of: &impl Fn(&Format) -> Vec<u8>) {
    match mutation {
        QueryMutation::Remove(key) => _ = parameters.remove(key.as_bytes()),
        QueryMutation::Add { key, value, action } => {
            let formatted = value_of(value);
            let exists = parameters.contains_key(key.as_bytes());
            match action {
                AppendAction::AddIfAbsent if exists => return,
                AppendAction::OverwriteIfExists if !exists => return,
                AppendAction::OverwriteIfExists | AppendAction::OverwriteIfExistsOrAdd => {
                    parameters.remove(key.as_bytes());
                }
                AppendAction::AddIfAbsent | AppendAction::AppendIfExistsOrAdd => {}
            }
            let encoded = percent_encode(&formatted, RESERVED).flat_map(str::bytes).collect();
            parameters.entry(key.as_bytes().to_vec()).or_default().push(encoded);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::{Instant, SystemTime};

    use super::*;
    use crate::format::{Record, header_value};
    use crate::http::HeadView;
    use crate::info::{ConnectionInfo, StreamInfo};

    fn add(key: &str, value: &str, action: AppendAction) -> QueryMutation {
        QueryMutation::Add { key: key.into(), value: Format::parse(value, &|_| None).expect("a format"), action }
    }

    fn value_of(head: &RequestHead, format: &Format) -> Vec<u8> {
        let (now, nowhere) = (Instant::now(), SocketAddr::from(([127, 0, 0, 1], 1)));
        let (stream, connection) = (StreamInfo::new(now), ConnectionInfo::new(1, now, nowhere, nowhere));
        let head = HeadView::new(head, &stream.metadata);
        let record = Record { request: &head, ..Record::headless(&stream, &connection, (SystemTime::now(), now)) };
        header_value(format, &record)
    }

    #[test]
    fn queries_are_edited_as_in_envoy() {
        use AppendAction as A;
        let check = |path: &str, mutations: &[QueryMutation], expected: &str| {
            let mut head = RequestHead::default();
            head.set_path(path.as_bytes());
            head.headers.append(b"x-user", b"a b&c");
            let edited = edited(&head, mutations, |format| value_of(&head, format));
            let edited = edited.unwrap_or_else(|| head.path().to_vec());
            assert_eq!(String::from_utf8_lossy(&edited), expected, "{path}");
        };
        let remove = || QueryMutation::Remove("a".into());
        check("/p?b=2&a=%31", &[], "/p?b=2&a=%31");
        check("/p?b=2&a=1&a=3", &[remove()], "/p?b=2");
        check("/p?a=1", &[remove()], "/p");
        check("/p", &[remove()], "/p");
        check("/p?b=2&a=%31", &[QueryMutation::Remove("x".into())], "/p?a=%31&b=2");
        check("/p?a=1", &[add("a", "2", A::AppendIfExistsOrAdd)], "/p?a=1&a=2");
        check("/p", &[add("a", "2", A::AppendIfExistsOrAdd)], "/p?a=2");
        check("/p?a=1", &[add("a", "2", A::AddIfAbsent)], "/p?a=1");
        check("/p", &[add("a", "2", A::AddIfAbsent)], "/p?a=2");
        check("/p?a=1&a=3", &[add("a", "2", A::OverwriteIfExists)], "/p?a=2");
        check("/p", &[add("a", "2", A::OverwriteIfExists)], "/p");
        check("/p?a=1&a=3", &[add("a", "2", A::OverwriteIfExistsOrAdd)], "/p?a=2");
        check("/p", &[add("a", "2", A::OverwriteIfExistsOrAdd)], "/p?a=2");
        check("/p", &[add("u", "%REQ(x-user)%", A::AddIfAbsent)], "/p?u=a%20b%26c");
        check("/p?x&=y&z=", &[remove()], "/p?=y&x=&z=");
        // Names are compared decoded; values stay as they are written.
        check("/p?%61=1&b=%20+x=", &[remove()], "/p?b=%20+x=");
        check("/p?k%20y=1", &[add("k y", "2", A::AppendIfExistsOrAdd)], "/p?k%20y=1&k%20y=2");
    }
}
