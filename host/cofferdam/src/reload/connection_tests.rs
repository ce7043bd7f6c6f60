use std::{path::Path, sync::Arc};

use cofferdam_cluster::{api::ApiClient, metrics::Metrics};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring::default_provider,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    server::WebPkiClientVerifier,
};
use tempfile::TempDir;

use super::*;
use crate::reload::test_server::{Fixture, TestServer, replace_file, write_kubeconfig};

/// Checks for changes. Returns the problem, and the Authorization header of the next request.
async fn check(fixture: &Fixture, reloader: &mut ConnectionReloader) -> (Option<String>, String) {
    reloader.check().await;
    (reloader.problem.clone(), fixture.send().await.authorization)
}

#[tokio::test]
async fn changed_credentials_are_used_by_running_clients() {
    let (fixture, mut reloader) = Fixture::with_token().await;
    assert_eq!(check(&fixture, &mut reloader).await, (None, "Bearer first".to_owned()));
    fixture.write_user("token: second");
    assert_eq!(check(&fixture, &mut reloader).await, (None, "Bearer second".to_owned()));
}

#[tokio::test]
async fn unusable_credentials_and_another_server_are_reported_and_not_used() {
    let (fixture, mut reloader) = Fixture::with_token().await;
    fixture.write_user("client-certificate: /nonexistent, client-key: /nonexistent");
    let (problem, header) = check(&fixture, &mut reloader).await;
    let problem = problem.unwrap();
    assert!(problem.contains("/nonexistent"), "{problem}");
    assert_eq!(header, "Bearer first");

    write_kubeconfig(&fixture.directory, "http://127.0.0.1:1", "", "token: second");
    let (problem, header) = check(&fixture, &mut reloader).await;
    assert!(problem.unwrap().ends_with("and is http://127.0.0.1:1/; this change needs a restart"));
    assert_eq!(header, "Bearer first");

    let token = fixture.directory.path().join("token");
    fixture.write_user(&format!("tokenFile: '{}'", token.display()));
    assert!(check(&fixture, &mut reloader).await.0.is_some());
    // Only the file with the token changes.
    std::fs::write(&token, "from-file").unwrap();
    assert_eq!(check(&fixture, &mut reloader).await, (None, "Bearer from-file".to_owned()));
    // kube itself would read the file again after a minute, by the wall clock.
    std::fs::write(&token, "rotated").unwrap();
    assert_eq!(check(&fixture, &mut reloader).await, (None, "Bearer rotated".to_owned()));

    std::fs::write(fixture.directory.path().join("kubeconfig"), "{").unwrap();
    assert!(check(&fixture, &mut reloader).await.0.unwrap().contains("not a kubeconfig"));
    fixture.write_user("token: third");
    assert_eq!(check(&fixture, &mut reloader).await, (None, "Bearer third".to_owned()));
}

#[test]
fn files_are_the_kubeconfig_and_those_that_it_names() {
    let directory = TempDir::new().unwrap();
    let (path, url) = (directory.path().join("kubeconfig"), "https://127.0.0.1:1");
    let settings = ClientSettings { kubeconfig: Some(path.clone()), ..ClientSettings::default() };
    let files = || client::files(&settings, &ClientEnvironment::default());
    write_kubeconfig(&directory, url, "", "client-certificate: user.crt, client-key: /k");
    assert_eq!(files(), [directory.path().join("user.crt"), "/k".into(), path.clone()]);
    write_kubeconfig(&directory, url, "certificate-authority: /ca", "tokenFile: /token");
    assert_eq!(files(), ["/ca".into(), "/token".into(), path.clone()]);
    let in_pod = ClientEnvironment { in_cluster: true, ..ClientEnvironment::default() };
    let account = |name| Path::new("/var/run/secrets/kubernetes.io/serviceaccount").join(name);
    assert_eq!(client::files(&ClientSettings::default(), &in_pod), [account("ca.crt"), account("token")]);
}

/// The certificate authority of an API server and of its clients.
struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key.
struct Certificate {
    certificate: rcgen::Certificate,
    key: KeyPair,
}

/// Year at whose begin a certificate expires.
const EXPIRED: i32 = 2021;
const VALID: i32 = 4000;

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn sign(&self, usage: ExtendedKeyUsagePurpose, not_after: i32) -> Certificate {
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.extended_key_usages = vec![usage];
        params.not_after = date_time_ymd(not_after, 1, 1);
        let key = KeyPair::generate().unwrap();
        Certificate { certificate: params.signed_by(&key, &self.0).unwrap(), key }
    }

    fn client_certificate(&self, not_after: i32) -> Certificate {
        self.sign(ExtendedKeyUsagePurpose::ClientAuth, not_after)
    }

    /// A server with a certificate of this authority, which demands client certificates of it.
    fn server(&self) -> ServerConfig {
        let provider = Arc::new(default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build();
        let server = self.sign(ExtendedKeyUsagePurpose::ServerAuth, VALID);
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(server.key.serialize_der()));
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.unwrap().with_client_cert_verifier(verifier.unwrap());
        builder.with_single_cert(vec![server.certificate.der().clone()], key).unwrap()
    }
}

/// A client with certificates in files, and a server with TLS.
struct TlsFixture {
    fixture: Fixture,
    reloader: ConnectionReloader,
}

impl TlsFixture {
    async fn start(authority: &Authority, client: &Certificate) -> Self {
        let (directory, server) = (TempDir::new().unwrap(), TestServer::start());
        server.use_tls(authority.server());
        let path = |name: &str| directory.path().join(name).display().to_string();
        let cluster = format!("certificate-authority: '{}'", path("ca.crt"));
        let user = format!("client-certificate: '{}', client-key: '{}'", path("tls.crt"), path("tls.key"));
        replace_file(&directory, "ca.crt", authority.0.pem().as_bytes());
        replace_file(&directory, "tls.crt", client.certificate.pem().as_bytes());
        replace_file(&directory, "tls.key", client.key.serialize_pem().as_bytes());
        let url = "https://127.0.0.1:{port}";
        let (fixture, reloader) = Fixture::start(directory, server, url, &cluster, &user).await;
        Self { fixture, reloader }
    }

    /// The next connections are to a server of this authority.
    fn use_server_of(&self, authority: &Authority) {
        self.fixture.server.use_tls(authority.server());
    }

    fn write(&self, name: &str, pem: &str) {
        replace_file(&self.fixture.directory, name, pem.as_bytes());
    }

    /// Checks for changes, and returns the problem.
    async fn check(&mut self) -> Option<String> {
        self.reloader.check().await;
        self.reloader.problem.clone()
    }

    /// Sends a request. Returns the client certificate that the server has received, or the text that a role
    /// logs.
    async fn send(&self) -> Result<Vec<u8>, String> {
        let client = ApiClient::new(self.fixture.connection.client.clone(), Metrics::default());
        client.read("/x", "x").await.map_err(|error| error.to_string())?;
        Ok(self.fixture.server.next_credentials().certificate.unwrap())
    }
}

#[tokio::test]
async fn certificates_of_a_new_authority_are_used_by_running_clients() {
    let (former, new) = (Authority::new(), Authority::new());
    let (former_client, new_client) = (former.client_certificate(VALID), new.client_certificate(VALID));
    let mut fixture = TlsFixture::start(&former, &former_client).await;
    let der = |client: &Certificate| Ok(client.certificate.der().to_vec());
    assert_eq!(fixture.send().await, der(&former_client));

    // The authorities of both, before the server changes, and then the certificate and its key.
    fixture.write("ca.crt", &format!("{}{}", former.0.pem(), new.0.pem()));
    assert_eq!((fixture.check().await, fixture.send().await), (None, der(&former_client)));
    fixture.use_server_of(&new);
    let error = fixture.send().await.unwrap_err();
    assert!(error.contains("received fatal alert"), "the new server accepts no former certificate: {error}");
    fixture.write("tls.crt", &new_client.certificate.pem());
    fixture.write("tls.key", &new_client.key.serialize_pem());
    assert_eq!((fixture.check().await, fixture.send().await), (None, der(&new_client)));

    // All at once, and back.
    fixture.use_server_of(&former);
    fixture.write("ca.crt", &new.0.pem());
    assert_eq!(fixture.check().await, None);
    let error = fixture.send().await.unwrap_err();
    assert!(error.contains("invalid peer certificate"), "it trusts the new authority only: {error}");
    fixture.write("ca.crt", &former.0.pem());
    fixture.write("tls.crt", &former_client.certificate.pem());
    fixture.write("tls.key", &former_client.key.serialize_pem());
    assert_eq!((fixture.check().await, fixture.send().await), (None, der(&former_client)));
}

#[tokio::test]
async fn a_client_certificate_is_used_once_its_key_and_authority_are_there() {
    let authority = Authority::new();
    let (former, new) = (authority.client_certificate(VALID), authority.client_certificate(VALID));
    let mut fixture = TlsFixture::start(&authority, &former).await;
    let der = |client: &Certificate| Ok(client.certificate.der().to_vec());
    fixture.write("tls.crt", &new.certificate.pem());
    let problem = fixture.check().await.unwrap();
    assert!(problem.starts_with("cannot create a client for https://127.0.0.1:"), "{problem}");
    assert_eq!(fixture.send().await, der(&former), "after {problem}");
    fixture.write("tls.key", &new.key.serialize_pem());
    fixture.write("ca.crt", "");
    assert_eq!(fixture.check().await.as_deref(), Some("the certificate authority has no certificate"));
    assert_eq!(fixture.send().await, der(&former));
    fixture.write("ca.crt", &authority.0.pem());
    fixture.write("tls.crt", "");
    assert!(fixture.check().await.is_some());
    assert_eq!(fixture.send().await, der(&former));
    fixture.write("tls.crt", &new.certificate.pem());
    assert_eq!((fixture.check().await, fixture.send().await), (None, der(&new)));
}

#[tokio::test]
async fn an_expired_client_certificate_is_reported_by_each_request_until_it_is_renewed() {
    let authority = Authority::new();
    let expired = authority.client_certificate(EXPIRED);
    let mut fixture = TlsFixture::start(&authority, &expired).await;
    for _ in 0..3 {
        assert_eq!(fixture.check().await, None);
        let error = fixture.send().await.unwrap_err();
        assert!(error.contains("CertificateExpired") && !error.contains('\n'), "{error}");
    }
    let renewed = authority.client_certificate(VALID);
    fixture.write("tls.crt", &renewed.certificate.pem());
    fixture.write("tls.key", &renewed.key.serialize_pem());
    assert_eq!(fixture.check().await, None);
    assert_eq!(fixture.send().await, Ok(renewed.certificate.der().to_vec()));
}
