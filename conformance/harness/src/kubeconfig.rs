//! Kubeconfig files.

use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    net::SocketAddr,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::Uri;
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

/// Writes a copy of a kubeconfig that connects to another address, beside it and with this extension. Returns
/// the path of the copy and the URL of the original.
///
/// # Errors
/// If the kubeconfig cannot be read or has no URL of a server, or the copy cannot be written.
pub(crate) fn redirect(path: &Path, extension: &str, address: SocketAddr) -> Result<(PathBuf, Uri)> {
    let mut text: Value = serde_json::from_slice(&fs::read(path)?)?;
    let server = text.pointer_mut("/clusters/0/cluster/server").context("a kubeconfig without a server")?;
    let original = std::mem::replace(server, json!(format!("https://{address}")));
    let copy = path.with_extension(extension);
    write_private_file(&copy, &text)?;
    Ok((copy, original.as_str().context("a server that is no text")?.parse()?))
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
