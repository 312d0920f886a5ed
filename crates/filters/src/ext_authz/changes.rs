//! Applies a service's changes to the request and its response.

use std::collections::BTreeMap;

use evenkeel_http::{HeaderId, Headers, RequestHead};
use evenkeel_runtime_config::ext_authz::MutationRules;

use super::answer::{Action, Edit, HeaderChanges};
use super::check::is_of_framing;

/// The service requests an invalid change, or one that it may not make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Invalid;

/// Whether names and values of all headers and query parameters are such that HTTP can carry them.
pub(super) fn are_valid(wanted: &HeaderChanges) -> bool {
    let HeaderChanges { request, response, set_parameters, remove: _, remove_parameters: _ } = wanted;
    let parameter = |text: &String| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte));
    edits_are_valid(request)
        && edits_are_valid(response)
        && set_parameters.iter().all(|(name, value)| parameter(name) && parameter(value))
}

/// Whether edits of a response's headers are valid.
pub(super) fn edits_are_valid(edits: &[Edit]) -> bool {
    let token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let is_name = |name: &[u8]| {
        let bare = name.strip_prefix(b":").unwrap_or(name);
        !bare.is_empty() && bare.iter().all(token)
    };
    let is_value = |value: &[u8]| value.iter().all(|byte| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f));
    edits.iter().all(|edit| is_name(&edit.name) && is_value(&edit.value))
}

/// Changes the request.
pub(super) fn change(
    head: &mut RequestHead,
    wanted: &HeaderChanges,
    rules: Option<&MutationRules>,
) -> Result<(), Invalid> {
    let may = |name: &[u8]| match rules {
        Some(rules) if !rules.allow(name) => {
            if rules.disallow_is_error {
                Err(Invalid)
            } else {
                Ok(false)
            }
        }
        _ => Ok(true),
    };
    for edit in &wanted.request {
        let name = edit.name.to_ascii_lowercase();
        if may(&name)? {
            match name.as_slice() {
                b":path" | b":authority" | b"host" | b":method" | b":scheme" => set_pseudo(head, &name, edit),
                _ => apply(&mut head.headers, &name, edit),
            }
        }
    }
    for name in &wanted.remove {
        let name = name.to_ascii_lowercase();
        let name = name.as_bytes();
        // A request without them is none.
        let is_removable = !name.starts_with(b":") && name != b"host" && !is_of_framing(HeaderId::of(name));
        if is_removable && may(name)? {
            head.headers.remove_name(name);
        }
    }
    if !(wanted.set_parameters.is_empty() && wanted.remove_parameters.is_empty()) {
        let path = with_parameters(head.path(), wanted);
        head.set_path(&path);
    }
    Ok(())
}

/// Sets a pseudo header. It always has one value, so only replacing it has an effect.
fn set_pseudo(head: &mut RequestHead, name: &[u8], edit: &Edit) {
    if !matches!(edit.action, Action::Set | Action::SetIfPresent) || edit.value.is_empty() {
        return;
    }
    match name {
        b":path" => head.set_path(&edit.value),
        b":authority" | b"host" => head.set_authority(&edit.value),
        b":scheme" => head.headers.set(HeaderId::ForwardedProto, &edit.value),
        // Both say how the messages of this exchange end, which was settled when the request arrived.
        _ if [head.method(), &edit.value].iter().any(|method| matches!(*method, b"HEAD" | b"CONNECT")) => {}
        _ => head.set_method(&edit.value),
    }
}

/// Adds headers to a response.
pub(super) fn add(headers: &mut Headers, edits: &[Edit]) {
    edits.iter().for_each(|edit| apply(headers, &edit.name.to_ascii_lowercase(), edit));
}

/// `name`: in lower case. What says where a message ends stays as it is.
fn apply(headers: &mut Headers, name: &[u8], edit: &Edit) {
    let value = edit.value.as_slice();
    if name.is_empty() || name.starts_with(b":") || is_of_framing(HeaderId::of(name)) {
        return;
    }
    match (edit.action, headers.find(name)) {
        (Action::Add, _) | (Action::AddIfAbsent, None) => headers.append(name, value),
        (Action::Set, _) | (Action::SetIfPresent, Some(_)) => headers.set_name(name, value),
        (Action::Append, Some(_)) => {
            let all = headers.find_all(name).chain([value]).collect::<Vec<_>>().join(&b","[..]);
            headers.set_name(name, &all);
        }
        (Action::Append | Action::SetIfPresent, None) | (Action::AddIfAbsent, Some(_)) => {}
    }
}

/// The path with other query parameters. They get into the order of their names, as in Envoy.
fn with_parameters(path: &[u8], wanted: &HeaderChanges) -> Vec<u8> {
    let (path, query) = match path.iter().position(|byte| *byte == b'?') {
        Some(at) => (path.get(..at).unwrap_or(path), path.get(at + 1..).unwrap_or_default()),
        None => (path, &b""[..]),
    };
    let mut parameters: BTreeMap<&[u8], Vec<&[u8]>> = BTreeMap::new();
    for pair in query.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty()) {
        let mut parts = pair.splitn(2, |byte| *byte == b'=');
        let (name, value) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        parameters.entry(name).or_default().push(value);
    }
    for (name, value) in &wanted.set_parameters {
        parameters.insert(name.as_bytes(), vec![value.as_bytes()]);
    }
    for name in &wanted.remove_parameters {
        parameters.remove(name.as_bytes());
    }
    let pairs = parameters.iter().flat_map(|(name, values)| values.iter().map(move |value| (*name, *value)));
    let mut new = path.to_vec();
    for (index, (name, value)) in pairs.enumerate() {
        new.push(if index == 0 { b'?' } else { b'&' });
        new.extend_from_slice(&[name, b"=", value].concat());
    }
    new
}

/// Adds the headers of a denial. The first of a name replaces existing values, and the others are added, such as
/// several `set-cookie`.
pub(super) fn add_all(headers: &mut Headers, edits: &[Edit]) {
    for edit in edits {
        let name = edit.name.to_ascii_lowercase();
        if !name.is_empty() && !name.starts_with(b":") && !is_of_framing(HeaderId::of(&name)) {
            headers.append(&name, &edit.value);
        }
    }
}
