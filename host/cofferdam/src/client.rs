//! The client of the Kubernetes API: its configuration, and the namespace of Cofferdam's own objects.

use std::path::{Path, PathBuf};

use cofferdam_cluster::connect::{self, ReplaceableConnections};
use cofferdam_domain::text::escape_control_and_format;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError, LoadDataError};

use crate::config::Configuration;

/// Directory of the pod's service account, as kube has it.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Origin of the URL that `--master` sets without a kubeconfig, for output.
const MASTER: &str = "--master";

/// An error that prevents the creation of a client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    #[error("cannot read kubeconfig {}: {problem}", path.display())]
    Kubeconfig { path: PathBuf, problem: String },
    #[error("cannot read KUBECONFIG={value:?}: {problem}")]
    KubeconfigVariable { value: String, problem: String },
    #[error("kubeconfig {origin} has no context {context:?}: expected {known}")]
    UnknownContext { origin: String, context: String, known: String },
    #[error("kubeconfig {origin} cannot be used: {problem}")]
    Context { origin: String, problem: String },
    #[error("cannot use the pod's service account: {0}")]
    InCluster(String),
    #[error(
        "no cluster: expected --kubeconfig FILE, {}a pod's service account, or {}",
        if *ignores_variable { "" } else { "KUBECONFIG, " },
        path.display()
    )]
    NotConfigured { path: PathBuf, ignores_variable: bool },
    #[error("cannot create a client for {url}: {problem}")]
    Client { url: String, problem: String },
}

/// A client of an API server, with the URL, the origin and the namespace of its configuration.
#[derive(Clone)]
pub(crate) struct ClusterConnection {
    /// The client. It does not retry: the roles handle failed requests.
    pub(crate) client: kube::Client,
    /// URL of the API.
    pub(crate) url: String,
    /// Origin of the URL, for output: a kubeconfig, or the pod's service account.
    pub(crate) origin: String,
    /// Namespace of the intent journal, the restore marker and the orphan reports: the configured one, else
    /// that of the kubeconfig's context or of the pod, else `default`.
    pub(crate) namespace: String,
    /// The connections of the client.
    pub(crate) connections: ReplaceableConnections,
}

/// The settings that select the cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientSettings {
    pub(crate) master: Option<http::Uri>,
    pub(crate) kubeconfig: Option<PathBuf>,
    pub(crate) context: Option<String>,
    pub(crate) namespace: Option<String>,
}

impl ClientSettings {
    /// True if `--master` alone selects the cluster.
    const fn is_master_only(&self, environment: &ClientEnvironment) -> bool {
        self.master.is_some() && self.kubeconfig.is_none() && environment.kubeconfig.is_none()
    }
}

impl From<&Configuration> for ClientSettings {
    fn from(configuration: &Configuration) -> Self {
        Self {
            master: configuration.master.as_ref().map(|url| url.0.clone()),
            kubeconfig: configuration.kubeconfig.clone(),
            context: configuration.context.clone(),
            namespace: configuration.namespace.as_ref().map(|label| label.0.clone()),
        }
    }
}

/// The configuration of a client, and its origin and namespace.
pub(crate) struct ClientConfig {
    pub(crate) config: kube::Config,
    origin: String,
    namespace: String,
}

impl ClusterConnection {
    /// URL and origin of the API, for messages about an API that does not respond.
    pub(crate) fn api_description(&self) -> String {
        format!("{} ({})", self.url, self.origin)
    }
}

/// Values of the environment that select the configuration of the client. Tests pass their own values.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientEnvironment {
    /// `KUBECONFIG`; absent if the variable is unset or empty.
    pub(crate) kubeconfig: Option<String>,
    /// `true` if the process does not read `KUBECONFIG`.
    pub(crate) ignores_kubeconfig_variable: bool,
    /// `true` if `KUBERNETES_SERVICE_HOST` is set and not empty, as in every pod.
    pub(crate) in_cluster: bool,
    /// Home directory.
    pub(crate) home: Option<PathBuf>,
}

/// Source of the client's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ClientConfigSource {
    File(PathBuf),
    KubeconfigVariable(String),
    InCluster,
}

impl ClientEnvironment {
    /// Reads the environment of this process.
    pub(crate) fn from_process() -> Self {
        let text = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self {
            kubeconfig: text("KUBECONFIG"),
            ignores_kubeconfig_variable: false,
            in_cluster: text("KUBERNETES_SERVICE_HOST").is_some(),
            home: std::env::home_dir(),
        }
    }

    /// This environment for a sidecar that does not read `KUBECONFIG`.
    pub(crate) fn without_kubeconfig_variable(self) -> Self {
        Self { kubeconfig: None, ignores_kubeconfig_variable: true, ..self }
    }

    /// Selects the first of: `flag`, which is the setting `kubeconfig`; `KUBECONFIG`; the pod's service
    /// account; `~/.kube/config` if that exists.
    fn choose_source(&self, flag: Option<&Path>) -> Result<ClientConfigSource, ClientError> {
        if let Some(path) = flag {
            return Ok(ClientConfigSource::File(path.to_owned()));
        }
        if let Some(value) = &self.kubeconfig {
            return Ok(ClientConfigSource::KubeconfigVariable(value.clone()));
        }
        if self.in_cluster {
            return Ok(ClientConfigSource::InCluster);
        }
        let path = self.home.clone().unwrap_or_default().join(".kube/config");
        if path.exists() {
            Ok(ClientConfigSource::File(path))
        } else {
            Err(ClientError::NotConfigured { path, ignores_variable: self.ignores_kubeconfig_variable })
        }
    }
}

/// Creates a client for the configured cluster. Sends no request to the API server.
///
/// # Errors
/// [`ClientError`]; its message is one line and contains no secret.
pub(crate) async fn connect(
    configuration: &Configuration,
    environment: &ClientEnvironment,
) -> Result<ClusterConnection, ClientError> {
    connect_with(&configuration.into(), environment).await
}

/// As [`connect()`], for the settings that select the cluster.
///
/// # Errors
/// As [`connect()`].
pub(crate) async fn connect_with(
    settings: &ClientSettings,
    environment: &ClientEnvironment,
) -> Result<ClusterConnection, ClientError> {
    build_connection(load(settings, environment).await?)
}

/// Reads the configuration of a client for the configured cluster.
///
/// # Errors
/// As [`connect()`].
pub(crate) async fn load(
    settings: &ClientSettings,
    environment: &ClientEnvironment,
) -> Result<ClientConfig, ClientError> {
    if let Some(url) = &settings.master
        && settings.is_master_only(environment)
    {
        // As in client-go, the URL alone means a connection without credentials.
        let namespace = settings.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let config = kube::Config::new(url.clone());
        return Ok(ClientConfig { config, origin: MASTER.to_owned(), namespace });
    }
    let source = environment.choose_source(settings.kubeconfig.as_deref())?;
    let options = KubeConfigOptions { context: settings.context.clone(), ..KubeConfigOptions::default() };
    let (mut config, origin) = match source {
        ClientConfigSource::InCluster => {
            let config =
                kube::Config::incluster().map_err(|error| ClientError::InCluster(one_line(&error)))?;
            (config, "the pod's service account".to_owned())
        }
        ClientConfigSource::File(path) => {
            let origin = path.display().to_string();
            (
                config_from_kubeconfig(read_kubeconfig(&path)?, &options, &origin).await?,
                format!("kubeconfig {origin}"),
            )
        }
        ClientConfigSource::KubeconfigVariable(value) => {
            let origin = format!("KUBECONFIG={value}");
            (config_from_kubeconfig(read_kubeconfig_list(&value)?, &options, &origin).await?, origin)
        }
    };
    if let Some(url) = &settings.master {
        config.cluster_url = url.clone();
    }
    let namespace = settings.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    Ok(ClientConfig { config, origin, namespace })
}

/// The files of the client's configuration and credentials. kube reads files with tokens again by itself, a
/// minute after the last time by the wall clock: a token that it read while the clock was ahead would
/// otherwise stay in use until then.
pub(crate) fn files(settings: &ClientSettings, environment: &ClientEnvironment) -> Vec<PathBuf> {
    if settings.is_master_only(environment) {
        return Vec::new();
    }
    let kubeconfigs = match environment.choose_source(settings.kubeconfig.as_deref()) {
        Ok(ClientConfigSource::InCluster) => {
            return ["ca.crt", "token"].map(|name| Path::new(SERVICE_ACCOUNT).join(name)).into();
        }
        Ok(ClientConfigSource::File(path)) => vec![path],
        Ok(ClientConfigSource::KubeconfigVariable(value)) => std::env::split_paths(&value).collect(),
        Err(_) => Vec::new(),
    };
    let mut files = Vec::new();
    for path in kubeconfigs {
        // A file that cannot be read now may be readable later.
        let kubeconfig = Kubeconfig::read_from(&path).unwrap_or_default();
        let authorities = kubeconfig.clusters.into_iter().filter_map(|cluster| cluster.cluster);
        files.extend(authorities.filter_map(|cluster| cluster.certificate_authority));
        for user in kubeconfig.auth_infos.into_iter().filter_map(|user| user.auth_info) {
            files.extend([user.client_certificate, user.client_key, user.token_file].into_iter().flatten());
        }
        files.push(path.display().to_string());
    }
    files.into_iter().map(PathBuf::from).collect()
}

/// Reads one kubeconfig file.
fn read_kubeconfig(path: &Path) -> Result<Kubeconfig, ClientError> {
    let unreadable = |error: KubeconfigError| ClientError::Kubeconfig {
        path: path.to_owned(),
        problem: redacted_message(&error),
    };
    Kubeconfig::read_from(path).map_err(unreadable)
}

/// Reads and merges the files of `KUBECONFIG`; the first file that sets a value wins.
fn read_kubeconfig_list(value: &str) -> Result<Kubeconfig, ClientError> {
    let unreadable = |problem: String| ClientError::KubeconfigVariable { value: value.to_owned(), problem };
    let mut merged: Option<Kubeconfig> = None;
    for path in std::env::split_paths(value).filter(|path| !path.as_os_str().is_empty()) {
        let next = read_kubeconfig(&path)?;
        merged = Some(match merged {
            None => next,
            Some(merged) => merged.merge(next).map_err(|error| unreadable(redacted_message(&error)))?,
        });
    }
    merged.ok_or_else(|| unreadable("it has no file".to_owned()))
}

async fn config_from_kubeconfig(
    kubeconfig: Kubeconfig,
    options: &KubeConfigOptions,
    origin: &str,
) -> Result<kube::Config, ClientError> {
    if let Some(context) = &options.context
        && !kubeconfig.contexts.iter().any(|candidate| candidate.name == *context)
    {
        let candidate: Vec<&str> =
            kubeconfig.contexts.iter().map(|candidate| candidate.name.as_str()).collect();
        return Err(ClientError::UnknownContext {
            origin: origin.to_owned(),
            context: context.clone(),
            known: if candidate.is_empty() {
                "one, and it has none".to_owned()
            } else {
                format!("one of {}", candidate.join(", "))
            },
        });
    }
    kube::Config::from_custom_kubeconfig(kubeconfig, options).await.map_err(|error| ClientError::Context {
        origin: origin.to_owned(),
        problem: redacted_message(&error),
    })
}

fn build_connection(config: ClientConfig) -> Result<ClusterConnection, ClientError> {
    let ClientConfig { mut config, origin, namespace } = config;
    config.default_retry = false;
    let url = config.cluster_url.to_string();
    let (client, connections) =
        connect::replaceable_client(config).map_err(|error| unusable_credentials(&url, &error))?;
    Ok(ClusterConnection { client, url, origin, namespace, connections })
}

impl ClusterConnection {
    /// Replaces the certificates and credentials by those of another configuration.
    ///
    /// # Errors
    /// [`ClientError::Client`]. The client then continues with what it has.
    pub(crate) fn replace_credentials(&self, config: kube::Config) -> Result<(), ClientError> {
        let url = config.cluster_url.to_string();
        self.connections.replace(config).map_err(|error| unusable_credentials(&url, &error))
    }
}

fn unusable_credentials(url: &str, error: &kube::Error) -> ClientError {
    ClientError::Client { url: url.to_owned(), problem: credential_error_message(error) }
}

/// Describes an error in a kubeconfig without quoting the file, which may have a token or a key. The parser's
/// message quotes the lines around the error.
fn redacted_message(error: &KubeconfigError) -> String {
    if let KubeconfigError::Parse(error) = error {
        return format!(
            "{}not a kubeconfig: the content is not shown, because it may be secret",
            parse_location(error)
        );
    }
    if let KubeconfigError::LoadCertificateAuthority(LoadDataError::DecodeBase64(_))
    | KubeconfigError::LoadClientCertificate(LoadDataError::DecodeBase64(_))
    | KubeconfigError::LoadClientKey(LoadDataError::DecodeBase64(_)) = error
    {
        return "a certificate or key is not base64".to_owned();
    }
    if let KubeconfigError::ParseCertificates(_) = error {
        return "a certificate is not PEM".to_owned();
    }
    if let KubeconfigError::ReadConfig(source, _) = error {
        return one_line(source);
    }
    one_line(error)
}

/// Line and column of a parser's error, as a prefix of a message; empty if unknown.
fn parse_location(error: &serde_saphyr::Error) -> String {
    error.location().map_or_else(String::new, |at| format!("line {}, column {}: ", at.line(), at.column()))
}

/// Describes why a client cannot be created, without quoting credentials.
fn credential_error_message(error: &kube::Error) -> String {
    if let kube::Error::InferKubeconfig(error) = error {
        return redacted_message(error);
    }
    if let kube::Error::ProxyProtocolDisabled { .. } | kube::Error::ProxyProtocolUnsupported { .. } = error {
        // kube's message has the proxy's password.
        return "proxy-url is set: expected none, connections through a proxy are not supported".to_owned();
    }
    if let kube::Error::Auth(error) = error
        && let Some(problem) = connect::exec_plugin_error(error)
    {
        return problem;
    }
    one_line(error)
}

/// Creates a client from the text of a kubeconfig; messages call it `origin`.
///
/// # Errors
/// [`ClientError`]
pub(crate) async fn connect_with_kubeconfig(
    kubeconfig: &str,
    origin: &str,
) -> Result<ClusterConnection, ClientError> {
    let problem = |error: KubeconfigError| ClientError::Context {
        origin: origin.to_owned(),
        problem: redacted_message(&error),
    };
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig).map_err(problem)?;
    let config = config_from_kubeconfig(kubeconfig, &KubeConfigOptions::default(), origin).await?;
    let namespace = config.default_namespace.clone();
    build_connection(ClientConfig { config, origin: format!("kubeconfig {origin}"), namespace })
}

/// Formats an error and its sources in one line, each text once, without control and format characters: the
/// texts may be an API server's or a driver's.
pub(crate) fn one_line(error: &(dyn std::error::Error + 'static)) -> String {
    let mut line = message(error);
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = message(error);
        if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
        cause = error.source();
    }
    escape_control_and_format(&line.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The message of an error. That of kube for a response of the API contains the fields of the whole object;
/// this is its message and reason.
fn message(error: &(dyn std::error::Error + 'static)) -> String {
    match error.downcast_ref() {
        Some(kube::Error::Api(status)) => status.to_string(),
        Some(_) | None => error.to_string(),
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
