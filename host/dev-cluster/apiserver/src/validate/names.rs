//! Validation of names, labels and keys.

use crate::descriptors::ResourceKind;

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, \
    '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for \
    validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', \
    and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for \
    validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const QUALIFIED_NAME: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must \
    start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used \
    for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const PREFIX: &str = "prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
    characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex \
    used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL_KEY: &str = "a valid label key must consist of alphanumeric characters, '-', '_' or '.', and \
    must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex \
    used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix \
    and '/' (e.g. 'example.com/MyName')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', \
    '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or \
    '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const CONFIG_KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. \
    'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
const TOO_LONG_LABEL: &str = "must be no more than 63 characters";
const TOO_LONG_VALUE: &str = "must be no more than 63 bytes";
const TOO_LONG_NAME: &str = "must be no more than 253 characters";

fn is_label(text: &str) -> bool {
    let edge = |c: Option<u8>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let bytes = text.as_bytes();
    edge(bytes.first().copied())
        && edge(bytes.last().copied())
        && bytes.iter().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || *c == b'-')
}

/// Validates an RFC 1123 label. Returns the violated rule; `None` if the label is valid.
pub(crate) fn label(text: &str) -> Option<&'static str> {
    if text.contains('.') {
        return Some("must not contain dots");
    }
    if text.len() > 63 { Some(TOO_LONG_LABEL) } else { (!is_label(text)).then_some(LABEL) }
}

/// Validates an RFC 1123 subdomain. Returns the violated rule; `None` if the subdomain is valid.
pub(crate) fn subdomain(text: &str) -> Option<&'static str> {
    if text.len() > 253 {
        return Some(TOO_LONG_NAME);
    }
    (!text.split('.').all(is_label)).then_some(SUBDOMAIN)
}

/// Validates the name of an object. Returns the violated rule.
pub(crate) fn object_name(kind: ResourceKind, name: &str) -> Option<&'static str> {
    match kind {
        ResourceKind::Namespace => label(name),
        ResourceKind::CsiDriver if name.len() > 63 => Some(TOO_LONG_LABEL),
        ResourceKind::CsiDriver
        | ResourceKind::Pod
        | ResourceKind::Node
        | ResourceKind::PersistentVolume
        | ResourceKind::PersistentVolumeClaim
        | ResourceKind::Event
        | ResourceKind::Secret
        | ResourceKind::ConfigMap
        | ResourceKind::ServiceAccount
        | ResourceKind::StorageClass
        | ResourceKind::CsiNode
        | ResourceKind::CsiStorageCapacity
        | ResourceKind::VolumeAttachment
        | ResourceKind::VolumeAttributesClass
        | ResourceKind::Lease
        | ResourceKind::VolumeSnapshot
        | ResourceKind::VolumeSnapshotContent
        | ResourceKind::VolumeSnapshotClass => subdomain(name),
    }
}

fn is_qualified_name_part(text: &str) -> bool {
    let edge = |c: Option<u8>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let bytes = text.as_bytes();
    edge(bytes.first().copied())
        && edge(bytes.last().copied())
        && bytes.iter().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.'))
}

/// Validates a label key, annotation key or finalizer: `[prefix/]name`. Returns the violated rules.
pub(crate) fn qualified_name(key: &str) -> Vec<&'static str> {
    let mut problems = Vec::new();
    let mut parts = key.split('/');
    let name = match (parts.next(), parts.next(), parts.next()) {
        (Some(prefix), Some(name), None) => {
            if prefix.is_empty() {
                problems.push("prefix part must be non-empty");
            } else if let Some(problem) = subdomain(prefix) {
                problems.push(if problem == SUBDOMAIN { PREFIX } else { problem });
            }
            name
        }
        (Some(name), None, None) => name,
        _ => return vec![LABEL_KEY],
    };
    if name.is_empty() {
        problems.push("name part must be non-empty");
    } else if name.len() > 63 {
        problems.push("name part must be no more than 63 bytes");
    }
    if !is_qualified_name_part(name) {
        problems.push(QUALIFIED_NAME);
    }
    problems
}

/// Validates a label value. Returns the violated rule.
pub(crate) fn label_value(value: &str) -> Option<&'static str> {
    if value.len() > 63 {
        return Some(TOO_LONG_VALUE);
    }
    (!value.is_empty() && !is_qualified_name_part(value)).then_some(LABEL_VALUE)
}

/// Validates a key of a ConfigMap or Secret. Returns the violated rule.
pub(crate) fn data_key(key: &str) -> Option<&'static str> {
    let is_allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    let is_valid = !key.is_empty()
        && key.len() <= 253
        && key.bytes().all(is_allowed)
        && !key.starts_with("..")
        && key != ".";
    (!is_valid).then_some(CONFIG_KEY)
}
