//! Every field of every supported message, set alone, is either in the table or refused by name.

use std::collections::{HashMap, HashSet};

use evenkeel_runtime_config::support::{self, Role, Support};
use evenkeel_testkit::{golden, workspace};
use evenkeel_xds::{Any, Schema};
use prost::Message;
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value};

use crate::input;

const NOT_SUPPORTED: &str = "not supported";

#[test]
fn each_field_is_supported_or_refused_by_name() {
    let schema = Schema::acquire();
    let mut checked = 0;
    for message in support::messages() {
        let descriptor = schema.message(message.name).unwrap_or_else(|| panic!("{} is in no schema", message.name));
        for field in descriptor.fields() {
            let any = only(&descriptor, &field);
            let problems = support::named_problems(&schema, &any);
            assert_eq!(support::check(&any), problems, "{}.{}", message.name, field.name());
            let refused =
                problems.iter().any(|problem| problem.path == field.name() && problem.reason == NOT_SUPPORTED);
            let listed = message.field(field.name()).is_some();
            assert_ne!(refused, listed, "{}.{}", message.name, field.name());
            checked += 1;
        }
    }
    assert!(checked > 600, "{checked}");
}

#[test]
fn the_table_names_only_fields_that_exist_and_each_once() {
    let schema = Schema::acquire();
    let mut names = HashSet::new();
    for message in support::messages() {
        assert!(names.insert(message.name), "{} is listed twice", message.name);
        let descriptor = schema.message(message.name).expect(message.name);
        let values = message.values.iter().map(|(field, _)| *field);
        let no_effect = message.no_effect.iter().flat_map(|(_, fields)| fields.iter().copied());
        let mut fields = HashSet::new();
        for field in message.full.iter().copied().chain(values).chain(no_effect) {
            assert!(descriptor.get_field_by_name(field).is_some(), "{} has no {field}", message.name);
            assert!(fields.insert(field), "{}.{field} is listed twice", message.name);
        }
    }
}

#[test]
fn the_table_is_closed_over_messages_it_lets_in() {
    // A supported field of a message type that is not in the table could never be filled.
    let schema = Schema::acquire();
    for message in support::messages() {
        let descriptor = schema.message(message.name).expect(message.name);
        for field in descriptor
            .fields()
            .filter(|field| matches!(message.field(field.name()), Some(Support::Full | Support::Values(_))))
        {
            let Kind::Message(of) = value_kind(&field) else { continue };
            let known = of.full_name().starts_with("google.protobuf.") || support::message(of.full_name()).is_some();
            assert!(known, "{}.{} is a {}, which is not in the table", message.name, field.name(), of.full_name());
        }
    }
}

fn value_kind(field: &FieldDescriptor) -> Kind {
    match field.kind() {
        Kind::Message(entry) if field.is_map() => entry.map_entry_value_field().kind(),
        kind => kind,
    }
}

#[test]
fn resources_refuse_unsupported_fields_with_their_path() {
    let schema = Schema::acquire();
    for (message, base) in [
        ("envoy.config.listener.v3.Listener", "name: l"),
        ("envoy.config.cluster.v3.Cluster", "name: c"),
        ("envoy.config.route.v3.RouteConfiguration", "name: r"),
        ("envoy.config.endpoint.v3.ClusterLoadAssignment", "cluster_name: e"),
        ("envoy.extensions.transport_sockets.tls.v3.Secret", "name: s"),
    ] {
        let descriptor = schema.message(message).expect(message);
        let base = input::resource(message, base);
        for field in descriptor.fields() {
            if support::message(message).expect(message).field(field.name()).is_some() {
                continue;
            }
            let mut resource = base.clone();
            // Concatenated protobuf messages merge.
            resource.value.extend(only(&descriptor, &field).value);
            let rejection = input::set(&mut input::builder(), &resource).expect_err(field.name());
            assert!(
                rejection.problems.iter().any(|p| p.path == field.name() && p.reason == NOT_SUPPORTED),
                "{rejection}"
            );
        }
    }
}

#[test]
fn unknown_field_numbers_are_refused() {
    let mut cluster = input::cluster("name: c");
    // Field 1999, varint 1: from an API newer than ours.
    cluster.value.extend([0xf8, 0x7c, 0x01]);
    let rejection = input::builder().set_cluster(&cluster).unwrap_err();
    assert!(rejection.problems[0].path == "#1999", "{rejection}");
}

/// A message in which only this field is set, to something that is not its default.
fn only(descriptor: &MessageDescriptor, field: &FieldDescriptor) -> Any {
    let mut message = DynamicMessage::new(descriptor.clone());
    let value = if field.is_map() {
        let Kind::Message(entry) = field.kind() else { unreachable!("a map's entries are messages") };
        let key = match entry.map_entry_key_field().kind() {
            Kind::String => MapKey::String("k".into()),
            Kind::Uint32 => MapKey::U32(1),
            kind => panic!("{kind:?}"),
        };
        Value::Map(HashMap::from([(key, sample(&entry.map_entry_value_field().kind()))]))
    } else if field.is_list() {
        Value::List(vec![sample(&field.kind())])
    } else {
        sample(&field.kind())
    };
    message.set_field(field, value);
    let type_url = format!("type.googleapis.com/{}", descriptor.full_name());
    Any { type_url, value: message.encode_to_vec() }
}

fn sample(kind: &Kind) -> Value {
    match kind {
        Kind::Double => Value::F64(1.0),
        Kind::Float => Value::F32(1.0),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Value::I32(1),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Value::I64(1),
        Kind::Uint32 | Kind::Fixed32 => Value::U32(1),
        Kind::Uint64 | Kind::Fixed64 => Value::U64(1),
        Kind::Bool => Value::Bool(true),
        Kind::String => Value::String("x".into()),
        Kind::Bytes => Value::Bytes(b"x"[..].to_vec().into()),
        Kind::Message(of) => Value::Message(DynamicMessage::new(of.clone())),
        Kind::Enum(_) => Value::EnumNumber(1),
    }
}

#[test]
fn the_documentation_is_the_table() {
    assert!(support::messages().any(|message| message.role == Role::Extension));
    golden::check(workspace::root().join("docs/proxy-xds-fields.md"), &support::markdown());
}
