//! Secrets. They are read on demand and neither watched nor cached.
//!
//! A user who may write a StorageClass or a PersistentVolume can name any Secret there, and the driver gets
//! its values. A [`SecretReader`] therefore reads Secrets of listed namespaces only, and no Secrets whose
//! type shows that they are not for drivers.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use cofferdam_domain::{
    dns::{is_dns_label, is_dns_subdomain},
    storage::{Secret, Secrets},
    volume::SecretRef,
};
use serde::Deserialize;
use zeroize::Zeroizing;

use crate::{
    api::{ApiClient, ApiError},
    writer::Writer,
};

/// Types of Secrets that are not for drivers: credentials of service accounts, of nodes that join the cluster
/// and of image registries, and the releases of Helm, which contain the values of whole applications.
const FOREIGN_TYPES: [&str; 5] = [
    "kubernetes.io/service-account-token",
    "bootstrap.kubernetes.io/token",
    "kubernetes.io/dockercfg",
    "kubernetes.io/dockerconfigjson",
    "helm.sh/release.v1",
];

/// The namespaces whose Secrets a process reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretNamespaces {
    /// Every namespace.
    All,
    /// These namespaces; no Secret is read if there are none.
    Listed(BTreeSet<String>),
}

impl SecretNamespaces {
    /// Only this namespace.
    pub fn only(namespace: &str) -> Self {
        Self::Listed([namespace.to_owned()].into())
    }

    /// Returns `true` if Secrets of the namespace are read.
    pub fn contains(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::Listed(listed) => listed.contains(namespace),
        }
    }
}

impl fmt::Display for SecretNamespaces {
    /// Formats as the value of the setting `secret-namespaces`, or as `none`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("*"),
            Self::Listed(listed) if listed.is_empty() => f.write_str("none"),
            Self::Listed(listed) => {
                let names: Vec<&str> = listed.iter().map(String::as_str).collect();
                f.write_str(&names.join(","))
            }
        }
    }
}

/// The reason why a Secret cannot be read or used. No error contains a value of the Secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The name cannot be that of a Secret. No request was sent.
    #[error(
        "the name of a Secret is {0:?}: expected at most 253 lower-case letters, digits, dashes and dots"
    )]
    Name(Box<str>),
    /// The namespace cannot be that of a Secret. No request was sent.
    #[error("the namespace of a Secret is {0:?}: expected at most 63 lower-case letters, digits and dashes")]
    Namespace(Box<str>),
    /// The process does not read Secrets of the namespace. No request was sent.
    #[error(
        "Secret {secret} is not read: expected its namespace in the setting secret-namespaces ({listed}) of the \
         process that runs provisioner, attacher or resizer, not of csi-server"
    )]
    NamespaceNotListed {
        /// The Secret.
        secret: SecretRef,
        /// The namespaces that the process reads.
        listed: SecretNamespaces,
    },
    /// The type of the Secret shows that it is not for drivers.
    #[error("Secret {secret} has type {found:?}, which is not for drivers: expected another, such as Opaque")]
    Type {
        /// The Secret.
        secret: SecretRef,
        /// Its type.
        found: String,
    },
    /// The Secret does not exist ([`ApiError::NotFound`]), is not a Secret or has a value that is not UTF-8
    /// text in Base64 ([`ApiError::InvalidResponse`]), or the other errors of a read.
    #[error(transparent)]
    Api(#[from] ApiError),
}

/// Reads Secrets for driver calls. Clones share the client.
#[derive(Clone)]
pub struct SecretReader {
    api: ApiClient,
    namespaces: Arc<SecretNamespaces>,
}

impl SecretReader {
    /// A reader of Secrets of these namespaces, with the client of the writer.
    pub fn new(writer: &Writer, namespaces: SecretNamespaces) -> Self {
        Self { api: writer.api().clone(), namespaces: Arc::new(namespaces) }
    }

    /// Reads the values of a Secret as text.
    ///
    /// # Errors
    /// [`SecretError`]
    pub async fn read(&self, secret: &SecretRef) -> Result<Secrets, SecretError> {
        self.check_reference(secret)?;
        let target = format!("Secret {secret}");
        let path = format!(
            "/api/v1/namespaces/{}/secrets/{}",
            path_segment(&secret.namespace),
            path_segment(&secret.name)
        );
        let response = Zeroizing::new(self.api.read(&path, &target).await?);
        decode(&response, secret, &target)
    }

    /// As [`SecretReader::read`], but returns `None` if the Secret does not exist.
    ///
    /// # Errors
    /// [`SecretError`]
    pub async fn read_if_exists(&self, secret: &SecretRef) -> Result<Option<Secrets>, SecretError> {
        match self.read(secret).await {
            Ok(secrets) => Ok(Some(secrets)),
            Err(SecretError::Api(ApiError::NotFound(_))) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn check_reference(&self, secret: &SecretRef) -> Result<(), SecretError> {
        if !is_dns_label(&secret.namespace) {
            return Err(SecretError::Namespace(secret.namespace.clone()));
        }
        if !is_dns_subdomain(&secret.name) {
            return Err(SecretError::Name(secret.name.clone()));
        }
        if !self.namespaces.contains(&secret.namespace) {
            let listed = (*self.namespaces).clone();
            return Err(SecretError::NamespaceNotListed { secret: secret.clone(), listed });
        }
        Ok(())
    }
}

/// Escapes a part of a path. A valid name needs no escapes; they keep a path from naming another object
/// should the check of names ever miss a character.
fn path_segment(name: &str) -> String {
    form_urlencoded::byte_serialize(name.as_bytes()).collect()
}

/// Decodes a Secret. Its type is checked before its values are decoded.
fn decode(response: &str, secret: &SecretRef, target: &str) -> Result<Secrets, SecretError> {
    #[derive(Deserialize)]
    struct Wire<'a> {
        #[serde(rename = "type", borrow)]
        kind: Option<Cow<'a, str>>,
        // Base64 needs no JSON escapes, so it can be borrowed.
        #[serde(borrow)]
        data: Option<BTreeMap<String, &'a str>>,
    }
    // The parser's error may contain a value, so it is dropped.
    let wire: Wire<'_> =
        serde_json::from_str(response).map_err(|_| ApiError::invalid_response(target, "not a Secret"))?;
    if let Some(found) = wire.kind.filter(|kind| FOREIGN_TYPES.contains(&&**kind)) {
        return Err(SecretError::Type { secret: secret.clone(), found: found.into_owned() });
    }
    let texts = wire.data.into_iter().flatten().map(|(key, value)| {
        let bytes = STANDARD.decode(value).map(Zeroizing::new).ok();
        let text = bytes.as_deref().and_then(|bytes| std::str::from_utf8(bytes).ok());
        match text {
            Some(text) => Ok((key, Secret::new(text))),
            None => Err(ApiError::invalid_response(target, format!("data.{key} is not UTF-8 text")).into()),
        }
    });
    texts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "storage/array";

    fn reference() -> SecretRef {
        SecretRef { namespace: "storage".into(), name: "array".into() }
    }

    fn decode_text(response: &str) -> Result<Secrets, SecretError> {
        decode(response, &reference(), &format!("Secret {SECRET}"))
    }

    #[test]
    fn values_are_decoded_to_text() {
        let decoded =
            decode_text(r#"{"type": "Opaque", "data": {"user": "YWRtaW4=", "empty": ""}}"#).unwrap();
        let values: Vec<_> = decoded.iter().map(|(key, value)| (key, value.expose())).collect();
        assert_eq!(values, [("empty", ""), ("user", "admin")]);
        assert_eq!(decode_text("{}").unwrap().iter().count(), 0);
    }

    #[test]
    fn errors_do_not_contain_values() {
        for (response, expected) in [
            (r#"{"data": {"user": "/w=="}}"#, "data.user is not UTF-8 text"),
            (r#"{"data": {"user": "hunter2"}}"#, "data.user is not UTF-8 text"),
            (r#"{"data": {"user": 7, "password": "hunter2"}}"#, "not a Secret"),
            ("hunter2", "not a Secret"),
        ] {
            let error = decode_text(response).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains(SECRET), "{error}");
            assert!(!error.contains("hunter2") && !error.contains("/w=="), "{error}");
        }
    }

    #[test]
    fn secrets_that_are_not_for_drivers_are_refused_by_type() {
        for kind in FOREIGN_TYPES {
            let error = decode_text(&format!(r#"{{"type": "{kind}", "data": {{"a": "eA=="}}}}"#))
                .unwrap_err()
                .to_string();
            assert!(error.contains(kind) && error.contains(SECRET), "{error}");
        }
        for kind in ["Opaque", "kubernetes.io/basic-auth", "kubernetes.io/tls", "kubernetes.io/rbd", ""] {
            assert!(decode_text(&format!(r#"{{"type": "{kind}"}}"#)).is_ok(), "{kind}");
        }
    }

    #[test]
    fn path_segments_are_escaped() {
        assert_eq!(path_segment("a-1.b"), "a-1.b");
        assert_eq!(path_segment("../x?y"), "..%2Fx%3Fy");
    }
}
