//! TLS configuration of one origin.

use std::{fmt, io::Read as _, path::Path, sync::Arc};

use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
};
use sha2::{Digest as _, Sha256};
use tokio_rustls::TlsConnector;

use super::policy::{OriginConfig, UrlHost};

/// Most bytes of a file of certificates: ten times all authorities of the web.
const MAX_PEM_BYTES: u64 = 4 << 20;

/// TLS configuration of one origin.
#[derive(Clone)]
pub(crate) struct TlsTarget {
    pub(crate) connector: TlsConnector,
    pub(crate) name: ServerName<'static>,
}

impl fmt::Debug for TlsTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("name", &self.name).finish_non_exhaustive()
    }
}

impl TlsTarget {
    pub(super) fn new(config: &OriginConfig, host: &UrlHost) -> Result<Self, String> {
        let name = match host {
            UrlHost::Name(name) => ServerName::try_from(name.clone())
                .map_err(|_| "its host is not a name that a certificate can have".to_owned())?,
            UrlHost::Address(address) => ServerName::IpAddress((*address).into()),
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = PinnedCertVerifier::new(config, &provider)?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("TLS cannot be set up: {error}"))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut tls = match (&config.certificate_file, &config.key_file) {
            (Some(certificates), Some(key)) => {
                let key = PrivateKeyDer::from_pem_slice(&read("key-file", key)?)
                    .map_err(|_| file_error("key-file", key, "expected a private key in PEM"))?;
                builder
                    .with_client_auth_cert(read_certificates("certificate-file", certificates)?, key)
                    .map_err(|error| file_error("certificate-file", certificates, &error.to_string()))?
            }
            (None, None) => builder.with_no_client_auth(),
            (Some(_), None) => return Err("`certificate-file` needs `key-file`".to_owned()),
            (None, Some(_)) => return Err("`key-file` needs `certificate-file`".to_owned()),
        };
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { connector: Arc::new(tls).into(), name })
    }
}

/// Refuses what plain HTTP has no use for: it would look as if it protected something.
pub(super) fn reject_tls_options(config: &OriginConfig) -> Result<(), String> {
    let options = [
        ("ca-file", config.ca_file.is_some()),
        ("pin-sha256", config.pin_sha256.is_some()),
        ("certificate-file", config.certificate_file.is_some()),
        ("key-file", config.key_file.is_some()),
    ];
    match options.into_iter().find(|(_, options)| *options) {
        Some((key, _)) => Err(format!("`{key}` is for https only")),
        None => Ok(()),
    }
}

/// Checks a server's certificate: against authorities, against a pin, or both.
#[derive(Debug)]
struct PinnedCertVerifier {
    /// Absent where the pin alone counts.
    authorities: Option<Arc<WebPkiServerVerifier>>,
    pin: Option<[u8; 32]>,
    provider: Arc<CryptoProvider>,
}

impl PinnedCertVerifier {
    fn new(config: &OriginConfig, provider: &Arc<CryptoProvider>) -> Result<Self, String> {
        let pin = config.pin_sha256.as_deref().map(parse_pin).transpose()?;
        let roots = match (&config.ca_file, pin) {
            (Some(file), _) => Some(custom_roots(file)?),
            (None, Some(_)) => None,
            (None, None) => Some(system_roots()?),
        };
        let verifier = |roots| {
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
                .build()
                .map_err(|error| format!("the authorities cannot be used: {error}"))
        };
        let authorities = roots.map(verifier).transpose()?;
        Ok(Self { authorities, pin, provider: Arc::clone(provider) })
    }
}

impl ServerCertVerifier for PinnedCertVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(authorities) = &self.authorities {
            authorities.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)?;
        }
        let found: [u8; 32] = Sha256::digest(end_entity).into();
        match self.pin {
            Some(pin) if pin != found => Err(rustls::Error::General(format!(
                "the SHA-256 of the server's certificate is {}; expected {} (`pin-sha256`)",
                crate::digest::to_hex(&found),
                crate::digest::to_hex(&pin)
            ))),
            Some(_) | None => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn custom_roots(file: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates("ca-file", file)? {
        roots.add(certificate).map_err(|error| file_error("ca-file", file, &error.to_string()))?;
    }
    Ok(roots)
}

fn system_roots() -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(
            "the system has no certificates of authorities; expected `ca-file` or `pin-sha256`".to_owned()
        );
    }
    Ok(roots)
}

fn read_certificates(key: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let wrong = |_| file_error(key, file, "expected certificates in PEM");
    let pem = read(key, file)?;
    let certificates = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>().map_err(wrong)?;
    if certificates.is_empty() {
        return Err(file_error(key, file, "has no certificate; expected certificates in PEM"));
    }
    Ok(certificates)
}

/// Reads a small file. What it holds is wiped: it may be a key.
fn read(key: &str, file: &Path) -> Result<zeroize::Zeroizing<Vec<u8>>, String> {
    let failed = |error: std::io::Error| file_error(key, file, &error.to_string());
    if !std::fs::metadata(file).map_err(failed)?.is_file() {
        return Err(file_error(key, file, "is not a regular file"));
    }
    let mut bytes = zeroize::Zeroizing::new(Vec::new());
    let opened = std::fs::File::open(file).map_err(failed)?;
    opened.take(MAX_PEM_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAX_PEM_BYTES {
        return Err(file_error(key, file, &format!("has more than {MAX_PEM_BYTES} bytes")));
    }
    Ok(bytes)
}

fn file_error(key: &str, file: &Path, reason: &str) -> String {
    format!("`{key}` {}: {reason}", file.display())
}

fn parse_pin(text: &str) -> Result<[u8; 32], String> {
    crate::digest::parse_hex(text).ok_or_else(|| {
        format!(
            "`pin-sha256` has {} characters; expected 64 hexadecimal digits, the SHA-256 of the server's \
             certificate in DER",
            text.chars().count()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_is_64_hexadecimal_digits() {
        assert_eq!(
            parse_pin(&"aB0f".repeat(16)).map(|digest| crate::digest::to_hex(&digest)),
            Ok("ab0f".repeat(16))
        );
        for text in ["", "ab", &"g".repeat(64), &"a".repeat(63), &"a".repeat(66), &"ab:".repeat(32)] {
            let error = parse_pin(text).unwrap_err();
            assert!(error.starts_with(&format!("`pin-sha256` has {} characters", text.len())), "{error}");
        }
    }

    #[test]
    fn invalid_tls_files_are_named_in_the_error() {
        let config = |edit: fn(&mut OriginConfig)| {
            let mut config =
                OriginConfig { origin: "https://array.example".to_owned(), ..OriginConfig::default() };
            config.pin_sha256 = Some("0".repeat(64));
            edit(&mut config);
            TlsTarget::new(&config, &UrlHost::Name("array.example".to_owned())).unwrap_err()
        };
        assert!(
            config(|c| c.ca_file = Some("/nowhere/ca".into())).starts_with("`ca-file` /nowhere/ca: No such")
        );
        assert_eq!(config(|c| c.ca_file = Some("/".into())), "`ca-file` /: is not a regular file");
        assert_eq!(config(|c| c.key_file = Some("k".into())), "`key-file` needs `certificate-file`");
        assert_eq!(config(|c| c.certificate_file = Some("c".into())), "`certificate-file` needs `key-file`");
        assert!(
            config(|c| c.ca_file = Some(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml").into()))
                .ends_with("Cargo.toml: has no certificate; expected certificates in PEM")
        );
    }
}
