//! TLS configuration of one origin.

use std::{
    fmt,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        VerifierBuilderError, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
};
use sha2::{Digest as _, Sha256};
use tokio_rustls::TlsConnector;

use super::{config::OriginConfig, origin::UrlHost};

/// Maximum bytes of a PEM file: far more than a bundle of all public certificate authorities has.
const MAX_PEM_BYTES: u64 = 4 << 20;

/// TLS options of an origin that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// No certificate can have the host's name.
    #[error("its host is not a name that a certificate can have")]
    HostName,
    /// The TLS library rejects the configuration.
    #[error("TLS cannot be set up: {0}")]
    Setup(#[source] rustls::Error),
    /// A TLS option of a plain HTTP origin, where it would have no effect.
    #[error("`{0}` is for https only")]
    HttpsOnly(&'static str),
    /// One of two options that belong together is absent.
    #[error("`{present}` needs `{missing}`")]
    MissingOption {
        /// The option that is set.
        present: &'static str,
        /// The option that is not set.
        missing: &'static str,
    },
    /// The certificates of the authorities cannot verify servers.
    #[error("the authorities cannot be used: {0}")]
    Authorities(#[source] VerifierBuilderError),
    /// No certificate of an authority can be read from the system.
    #[error("the system has no certificates of authorities; expected `ca-file` or `pin-sha256`")]
    NoSystemAuthorities,
    /// The pin is not a SHA-256.
    #[error(
        "`pin-sha256` has {characters} characters; expected 64 hexadecimal digits, \
         the SHA-256 of the server's certificate in DER"
    )]
    Pin {
        /// Number of characters of the configured pin.
        characters: usize,
    },
    /// A file that an option names cannot be used.
    #[error("`{option}` {}: {source}", .file.display())]
    File {
        /// The option.
        option: &'static str,
        /// The file.
        file: PathBuf,
        /// The problem of the file.
        source: PemFileError,
    },
}

/// A PEM file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PemFileError {
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// The file is a directory, a pipe or a device.
    #[error("is not a regular file")]
    NotAFile,
    /// The file is too large.
    #[error("has more than {MAX_PEM_BYTES} bytes")]
    TooLarge,
    /// The file has no private key in PEM that the TLS library knows, or a damaged PEM section before it.
    #[error("expected a private key in PEM")]
    NoPrivateKey,
    /// A PEM section of the file is damaged. A file without PEM has [`NoCertificate`](Self::NoCertificate).
    #[error("expected certificates in PEM")]
    NotCertificates,
    /// The file has no PEM section, or only sections other than certificates.
    #[error("has no certificate; expected certificates in PEM")]
    NoCertificate,
    /// The TLS library rejects a certificate, or the private key: it has an unsupported type, or belongs to
    /// another certificate.
    #[error(transparent)]
    Rejected(#[from] rustls::Error),
}

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
    pub(super) fn new(config: &OriginConfig, host: &UrlHost) -> Result<Self, TlsError> {
        let name = match host {
            UrlHost::Name(name) => ServerName::try_from(name.clone()).map_err(|_| TlsError::HostName)?,
            UrlHost::Address(address) => ServerName::IpAddress((*address).into()),
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = OriginCertVerifier::new(config, &provider)?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Setup)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut tls = match (&config.certificate_file, &config.key_file) {
            (Some(certificates), Some(key)) => {
                let key = read_private_key("key-file", key)?;
                let chain = read_certificates("certificate-file", certificates)?;
                builder
                    .with_client_auth_cert(chain, key)
                    .map_err(|error| file_error("certificate-file", certificates, error))?
            }
            (None, None) => builder.with_no_client_auth(),
            (Some(_), None) => {
                return Err(TlsError::MissingOption { present: "certificate-file", missing: "key-file" });
            }
            (None, Some(_)) => {
                return Err(TlsError::MissingOption { present: "key-file", missing: "certificate-file" });
            }
        };
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { connector: Arc::new(tls).into(), name })
    }
}

/// Rejects TLS options of an origin without TLS.
pub(super) fn reject_tls_options(config: &OriginConfig) -> Result<(), TlsError> {
    let options = [
        ("ca-file", config.ca_file.is_some()),
        ("pin-sha256", config.pin_sha256.is_some()),
        ("certificate-file", config.certificate_file.is_some()),
        ("key-file", config.key_file.is_some()),
    ];
    match options.into_iter().find(|(_, is_set)| *is_set) {
        Some((option, _)) => Err(TlsError::HttpsOnly(option)),
        None => Ok(()),
    }
}

/// Verifies the server certificate of one origin: against authorities, against a pin, or both.
#[derive(Debug)]
struct OriginCertVerifier {
    /// Absent if only the pin is checked.
    authorities: Option<Arc<WebPkiServerVerifier>>,
    pin: Option<[u8; 32]>,
    provider: Arc<CryptoProvider>,
}

impl OriginCertVerifier {
    fn new(config: &OriginConfig, provider: &Arc<CryptoProvider>) -> Result<Self, TlsError> {
        let pin = config.pin_sha256.as_deref().map(parse_pin).transpose()?;
        let roots = match (&config.ca_file, pin) {
            (Some(file), _) => Some(custom_roots(file)?),
            (None, Some(_)) => None,
            (None, None) => Some(system_roots()?),
        };
        let verifier = |roots| {
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
                .build()
                .map_err(TlsError::Authorities)
        };
        let authorities = roots.map(verifier).transpose()?;
        Ok(Self { authorities, pin, provider: Arc::clone(provider) })
    }
}

impl ServerCertVerifier for OriginCertVerifier {
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

fn custom_roots(file: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates("ca-file", file)? {
        roots.add(certificate).map_err(|error| file_error("ca-file", file, error))?;
    }
    Ok(roots)
}

fn system_roots() -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() { Err(TlsError::NoSystemAuthorities) } else { Ok(roots) }
}

fn read_private_key(option: &'static str, file: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let pem = read_pem(file).map_err(|error| file_error(option, file, error))?;
    PrivateKeyDer::from_pem_slice(&pem).map_err(|_| file_error(option, file, PemFileError::NoPrivateKey))
}

fn read_certificates(option: &'static str, file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let parse = |pem: &[u8]| {
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        match certificates {
            Ok(certificates) if certificates.is_empty() => Err(PemFileError::NoCertificate),
            Ok(certificates) => Ok(certificates),
            Err(_) => Err(PemFileError::NotCertificates),
        }
    };
    read_pem(file).and_then(|pem| parse(&pem)).map_err(|error| file_error(option, file, error))
}

/// Reads a small file. Its content is wiped when it is dropped: it may be a key.
fn read_pem(file: &Path) -> Result<zeroize::Zeroizing<Vec<u8>>, PemFileError> {
    if !std::fs::metadata(file)?.is_file() {
        return Err(PemFileError::NotAFile);
    }
    let mut bytes = zeroize::Zeroizing::new(Vec::new());
    std::fs::File::open(file)?.take(MAX_PEM_BYTES + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAX_PEM_BYTES {
        return Err(PemFileError::TooLarge);
    }
    Ok(bytes)
}

fn file_error(option: &'static str, file: &Path, error: impl Into<PemFileError>) -> TlsError {
    TlsError::File { option, file: file.to_owned(), source: error.into() }
}

fn parse_pin(text: &str) -> Result<[u8; 32], TlsError> {
    crate::digest::parse_hex(text).ok_or_else(|| TlsError::Pin { characters: text.chars().count() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_is_64_hexadecimal_digits() {
        let pin = parse_pin(&"aB0f".repeat(16)).unwrap();
        assert_eq!(crate::digest::to_hex(&pin), "ab0f".repeat(16));
        for text in ["", "ab", &"g".repeat(64), &"a".repeat(63), &"a".repeat(66), &"ab:".repeat(32)] {
            let error = parse_pin(text).unwrap_err().to_string();
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
            let host = UrlHost::Name("array.example".to_owned());
            TlsTarget::new(&config, &host).unwrap_err().to_string()
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
