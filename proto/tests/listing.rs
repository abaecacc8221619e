//! The listing of all messages and calls in `docs/reference/api/proto.txt` matches the `.proto` files. A line that changes or
//! goes away breaks programs that were built before. `DURAMEN_UPDATE=1` writes the listing again.

use std::fs;
use std::path::Path;

use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};

fn kind(field: &FieldDescriptorProto) -> String {
    let named = || field.type_name().trim_start_matches('.').to_string();
    let name = match field.r#type() {
        Type::Message | Type::Enum => named(),
        other => other.as_str_name().trim_start_matches("TYPE_").to_lowercase(),
    };
    match field.label() {
        Label::Repeated => format!("repeated {name}"),
        _ if field.proto3_optional() => format!("optional {name}"),
        _ if field.oneof_index.is_some() => format!("{name}, one of several"),
        _ => name,
    }
}

fn list_message(package: &str, message: &DescriptorProto, lines: &mut Vec<String>) {
    let name = format!("{package}.{}", message.name());
    lines.push(name.clone());
    for field in &message.field {
        lines.push(format!("{name}.{} = {}: {}", field.name(), field.number(), kind(field)));
    }
    for nested in &message.nested_type {
        list_message(&name, nested, lines);
    }
}

fn listing() -> String {
    let set = FileDescriptorSet::decode(duramen_proto::DESCRIPTORS).unwrap();
    let mut lines = Vec::new();
    for file in &set.file {
        let package = file.package();
        for message in &file.message_type {
            list_message(package, message, &mut lines);
        }
        for listed in &file.enum_type {
            for value in &listed.value {
                lines.push(format!(
                    "{package}.{}.{} = {}",
                    listed.name(),
                    value.name(),
                    value.number()
                ));
            }
        }
        for service in &file.service {
            for call in &service.method {
                let stream = |is_stream| if is_stream { "stream " } else { "" };
                lines.push(format!(
                    "{package}.{}/{}: {}{} -> {}{}",
                    service.name(),
                    call.name(),
                    stream(call.client_streaming()),
                    call.input_type().trim_start_matches('.'),
                    stream(call.server_streaming()),
                    call.output_type().trim_start_matches('.')
                ));
            }
        }
    }
    lines.sort();
    lines.join("\n") + "\n"
}

#[test]
fn the_listing_matches_the_proto_files() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/api/proto.txt");
    let listing = listing();
    if std::env::var_os("DURAMEN_UPDATE").is_some() {
        fs::write(&path, &listing).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    let gone: Vec<_> = kept
        .lines()
        .filter(|line| !listing.lines().any(|now| now == *line))
        .collect();
    let new: Vec<_> = listing
        .lines()
        .filter(|line| !kept.lines().any(|then| then == *line))
        .collect();
    assert!(
        gone.is_empty() && new.is_empty(),
        "the messages changed; a line that is gone breaks programs that were built before.\ngone: {gone:#?}\nnew: {new:#?}\n\
         DURAMEN_UPDATE=1 cargo test -p duramen-proto accepts it"
    );
}
