//! Certificates of one cluster.

use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
};

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

/// A certificate and its key, as files.
#[derive(Clone, Debug)]
pub struct CertificateFiles {
    /// The certificate, PEM.
    pub certificate: PathBuf,
    /// The private key, PEM.
    pub key: PathBuf,
}

/// Certificate authority of one cluster.
#[derive(Debug)]
pub struct CertificateAuthority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: PathBuf,
}

impl CertificateAuthority {
    /// Creates an authority with its files in `directory`.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn new(directory: PathBuf) -> Result<Self> {
        fs::create_dir_all(&directory)?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, "conformance");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        fs::write(directory.join("ca.crt"), issuer.pem())?;
        Ok(Self { issuer, directory })
    }

    /// The authority's own certificate, PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// The authority's certificate, DER.
    #[must_use]
    pub fn der(&self) -> Vec<u8> {
        self.issuer.der().to_vec()
    }

    /// The file of the authority's certificate.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.directory.join("ca.crt")
    }

    /// Issues a certificate for a server on loopback and on further addresses. `name` is its common name and
    /// the name of its files.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn server(&self, name: &str, further: &[IpAddr]) -> Result<CertificateFiles> {
        let names = ["localhost", "127.0.0.1", "kubernetes", "kubernetes.default.svc", "10.0.0.1"];
        let names = names.into_iter().map(str::to_owned).chain(further.iter().map(ToString::to_string));
        let mut params = CertificateParams::new(names.collect::<Vec<_>>())?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(name, params)
    }

    /// Issues a client certificate for a user and, optionally, a group.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn client(&self, user: &str, group: Option<&str>) -> Result<CertificateFiles> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, user);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(&user.replace(':', "-"), params)
    }

    fn sign(&self, name: &str, params: CertificateParams) -> Result<CertificateFiles> {
        let key = KeyPair::generate()?;
        let pair = CertificateFiles {
            certificate: self.directory.join(format!("{name}.crt")),
            key: self.directory.join(format!("{name}.key")),
        };
        fs::write(&pair.certificate, params.signed_by(&key, &self.issuer)?.pem())?;
        fs::write(&pair.key, key.serialize_pem())?;
        Ok(pair)
    }
}

/// Creates the key pair that signs service account tokens. Returns the files of the private and the public
/// key.
///
/// # Errors
/// If a file cannot be written.
pub fn signing_key(directory: &Path) -> Result<(PathBuf, PathBuf)> {
    let key = KeyPair::generate()?;
    let (private, public) = (directory.join("sa.key"), directory.join("sa.pub"));
    fs::write(&private, key.serialize_pem())?;
    fs::write(&public, key.public_key_pem())?;
    Ok((private, public))
}
