//! Connection info, as PersistentVolumes and VolumeAttachments have it: users other than the driver can write
//! these objects.

use std::path::{Component, Path};

use cofferdam_backend::checks::ResponseLimits;
use cofferdam_domain::{
    names,
    storage::{
        ConnectionInfo, Parameters,
        connection_info::{
            CSI_KIND, MAX_ENCODED_BYTES, decode, driver_attributes, encode, from_contexts,
            into_publish_context, into_volume_context,
        },
    },
    text::printable,
};
use cofferdam_node::{ConnectionKind, NfsExport, NodeConnection};

use crate::message::assert_printable;

/// Most bytes of a message: a printable text and its ellipsis.
const MAX_MESSAGE_BYTES: usize = 1_003;

/// Decodes the input as encoded connection info, and encodes connection info that is made of its lines.
///
/// - A node decodes an encoding if and only if the host accepts the connection info from a driver.
/// - Decoding and encoding are inverse, and the encoding is within its limit.
/// - The node finds in the contexts what the controller put there, and only in the right one.
/// - Connection info that a node parses leads to a plain relative path, a device name, a size, an export, a
///   namespace or an RBD image.
pub fn connection_info(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match decode(text) {
        Ok(decoded) => {
            assert!(text.len() <= MAX_ENCODED_BYTES);
            check_encoding(&decoded);
        }
        Err(error) => assert_printable(&printable(&error.to_string()), MAX_MESSAGE_BYTES),
    }
    check_encoding(&from_lines(text));
}

/// Connection info of a kind, a version, and a field in each further line.
fn from_lines(text: &str) -> ConnectionInfo {
    let mut lines = text.split('\n');
    let kind = lines.next().unwrap_or_default().to_owned();
    let version = lines.next().and_then(|version| version.parse().ok()).unwrap_or(1);
    let field = |line: &str| {
        let (key, value) = line.split_once('=').unwrap_or((line, ""));
        (key.to_owned(), value.to_owned())
    };
    ConnectionInfo { kind, version, fields: lines.map(field).collect() }
}

fn check_encoding(info: &ConnectionInfo) {
    let encoded = encode(info);
    let accepted = ResponseLimits::CSI_SPEC.check_connection_info(info);
    match decode(&encoded) {
        Ok(decoded) => {
            assert_eq!(decoded, *info);
            assert_eq!(accepted, Ok(()), "a node accepts what the host rejects");
            assert!(encoded.len() <= MAX_ENCODED_BYTES);
            check_contexts(info);
            check_node(info);
        }
        Err(error) => {
            assert_printable(&printable(&error.to_string()), MAX_MESSAGE_BYTES);
            assert!(accepted.is_err(), "the host accepts what no node decodes: {error}");
        }
    }
}

/// Connection info reaches the node by the context that the driver's abilities select.
fn check_contexts(info: &ConnectionInfo) {
    let attributes = driver_attributes(info.fields.clone());
    let volume_context = into_volume_context(attributes.clone(), Some(info), None);
    let none = Parameters::new();
    assert_eq!(from_contexts(&none, &volume_context, false).as_ref(), Ok(info));
    assert!(from_contexts(&none, &volume_context, true).is_err());
    assert_eq!(driver_attributes(volume_context.clone()), attributes);

    let publish_context = into_publish_context(info.clone());
    if info.kind == CSI_KIND {
        // The node service of the CSI driver receives its own publish context.
        assert_eq!(publish_context, info.fields);
        return;
    }
    assert!(publish_context.keys().eq([names::CONNECTION_INFO]));
    assert_eq!(from_contexts(&publish_context, &none, true).as_ref(), Ok(info));
    assert!(from_contexts(&publish_context, &none, false).is_err());
    assert!(from_contexts(&publish_context, &volume_context, true).is_err());
    assert!(from_contexts(&publish_context, &volume_context, false).is_err());
}

/// The node parses only connection info whose every field it uses.
fn check_node(info: &ConnectionInfo) {
    let connection = match NodeConnection::parse(info) {
        Ok(connection) => connection,
        Err(error) => {
            let message = error.to_string();
            assert!(!message.is_empty() && !message.contains('\n'), "{message}");
            return;
        }
    };
    let (key, value) = match &connection {
        NodeConnection::Directory { path } | NodeConnection::Image { path } => {
            let is_name = |name: &str| !matches!(name, "" | "." | "..") && !name.contains('\0');
            assert!(path.as_str().split('/').all(is_name), "{path:?}");
            ("path", path.as_str().to_owned())
        }
        NodeConnection::Tmpfs { size } => ("size", size.to_string()),
        NodeConnection::LocalDevice { stable_id } => {
            let mut parts = Path::new(stable_id).components();
            assert!(
                matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)),
                "{stable_id}"
            );
            ("stable-id", stable_id.clone())
        }
        NodeConnection::Nfs(export) => {
            let path = export.path();
            let is_name = |name: &str| !matches!(name, "" | "." | "..") && !name.contains(char::is_control);
            assert!(path.strip_prefix('/').is_some_and(|path| path.split('/').all(is_name)), "{path:?}");
            assert!(info.fields.keys().eq(["path", "server", "version"]), "{info:?}");
            assert_eq!((info.kind.as_str(), info.version), (ConnectionKind::Nfs.as_str(), 1));
            // The server's only spelling is the same server.
            let again = NfsExport::parse(&export.server.to_string(), &path, export.version.as_str());
            assert_eq!(again.as_ref(), Ok(export));
            return;
        }
        NodeConnection::NvmeTcp(namespace) => {
            assert!(
                info.fields.keys().all(|key| ["nguid", "nqn", "portals", "uuid"].contains(&key.as_str()))
            );
            assert_eq!((info.kind.as_str(), info.version), (ConnectionKind::NvmeTcp.as_str(), 1));
            // The only spelling is the same namespace, and has no separator of the kernel's options.
            let fields = namespace.fields();
            assert!(!namespace.nqn.as_str().contains([',', ' ', '=', '\n']), "{fields:?}");
            let again = NodeConnection::parse(&ConnectionInfo { fields, ..info.clone() });
            assert_eq!(again.as_ref(), Ok(&connection));
            return;
        }
        NodeConnection::Rbd(image) => {
            assert_eq!((info.kind.as_str(), info.version), (ConnectionKind::Rbd.as_str(), 1));
            // The only spelling is the same image, and has no separator of the kernel's command.
            let fields = image.fields();
            assert!(info.fields.keys().eq(fields.keys()), "{info:?}");
            assert!(
                fields.values().all(|value| !value.contains([' ', '\n', '\t', '\0', '/', '@'])),
                "{fields:?}"
            );
            let again = NodeConnection::parse(&ConnectionInfo { fields, ..info.clone() });
            assert_eq!(again.as_ref(), Ok(&connection));
            return;
        }
        NodeConnection::None => {
            assert!(info.fields.is_empty());
            assert_eq!((info.kind.as_str(), info.version), (ConnectionKind::None.as_str(), 1));
            return;
        }
    };
    let fields = [(key.to_owned(), value)].into();
    assert_eq!(*info, ConnectionInfo { kind: connection.kind().as_str().to_owned(), version: 1, fields });
}
