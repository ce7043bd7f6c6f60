//! Kubeconfig files.

use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use anyhow::{Context as _, Result};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::certificates::{CertificateAuthority, CertificateFiles};

/// Credentials of a kubeconfig.
#[derive(Clone, Copy, Debug)]
pub enum KubeconfigCredentials<'a> {
    /// A bearer token.
    Token(&'a str),
    /// A client certificate.
    Certificate(&'a CertificateFiles),
}

/// Writes a kubeconfig as JSON, which is valid YAML.
///
/// # Errors
/// If a file cannot be read or written.
pub fn write(
    path: &Path,
    url: &str,
    authority: &CertificateAuthority,
    credentials: KubeconfigCredentials<'_>,
) -> Result<()> {
    let user = match credentials {
        KubeconfigCredentials::Token(token) => json!({ "token": token }),
        KubeconfigCredentials::Certificate(pair) => json!({
            "client-certificate-data": STANDARD.encode(fs::read(&pair.certificate)?),
            "client-key-data": STANDARD.encode(fs::read(&pair.key)?),
        }),
    };
    let text = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "conformance", "cluster": {
            "server": url,
            "certificate-authority-data": STANDARD.encode(authority.pem()),
        }}],
        "users": [{ "name": "conformance", "user": user }],
        "contexts": [{
            "name": "conformance",
            "context": { "cluster": "conformance", "user": "conformance" },
        }],
        "current-context": "conformance",
    });
    write_private_file(path, &text)
}

/// Writes a file with mode 0600.
fn write_private_file(path: &Path, text: &Value) -> Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(file.write_all(text.to_string().as_bytes())?)
}
