//! The client of the API: who says where it is, and in which namespace our own objects live.

use std::path::{Path, PathBuf};

use cofferdam_cluster::connect;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError, LoadDataError};

use crate::config::Configuration;

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    #[error("cannot read kubeconfig {}: {problem}", path.display())]
    Kubeconfig { path: PathBuf, problem: String },
    #[error("cannot read the kubeconfig that KUBECONFIG names, {value:?}: {problem}")]
    KubeconfigVariable { value: String, problem: String },
    #[error("kubeconfig {origin} has no context {context:?}: expected {known}")]
    UnknownContext { origin: String, context: String, known: String },
    #[error("kubeconfig {origin} cannot be used: {problem}")]
    Context { origin: String, problem: String },
    #[error("cannot use the pod's service account: {0}")]
    InCluster(String),
    #[error(
        "no cluster: expected --kubeconfig FILE, KUBECONFIG, a pod's service account, or {}", path.display()
    )]
    NotConfigured { path: PathBuf },
    #[error("cannot make a client for {url}: {problem}")]
    Client { url: String, problem: String },
}

/// A client and the namespace that its configuration names.
#[derive(Clone)]
pub(crate) struct ClusterConnection {
    /// The client. It repeats nothing by itself: the roles decide what a failed request means.
    pub(crate) client: kube::Client,
    /// Where the API is.
    pub(crate) url: String,
    /// Who says so, for people: a kubeconfig, or the pod's service account.
    pub(crate) origin: String,
    /// The namespace of our own objects.
    pub(crate) namespace: String,
}

impl ClusterConnection {
    /// Which API this is, for people who look at one that does not answer.
    pub(crate) fn api_description(&self) -> String {
        format!("{} ({})", self.url, self.origin)
    }
}

/// The environment's part in the choice, injected for tests.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientEnvironment {
    /// `KUBECONFIG`
    pub(crate) kubeconfig: Option<String>,
    /// Whether `KUBERNETES_SERVICE_HOST` is set, as in every pod.
    pub(crate) in_cluster: bool,
    /// The home directory.
    pub(crate) home: Option<PathBuf>,
}

/// Which configuration is used.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ClientConfigSource {
    File(PathBuf),
    KubeconfigVariable(String),
    InCluster,
}

impl ClientEnvironment {
    /// Those of this process.
    pub(crate) fn from_process() -> Self {
        let text = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self {
            kubeconfig: text("KUBECONFIG"),
            in_cluster: text("KUBERNETES_SERVICE_HOST").is_some(),
            home: std::env::home_dir(),
        }
    }

    /// The flag, then `KUBECONFIG`, then the pod's service account, then the user's kubeconfig.
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
            Err(ClientError::NotConfigured { path })
        }
    }
}

/// Connects as the configuration says.
///
/// # Errors
/// [`ClientError`], one line that names the file or variable.
pub(crate) async fn connect(
    configuration: &Configuration,
    environment: &ClientEnvironment,
) -> Result<ClusterConnection, ClientError> {
    let source = environment.choose_source(configuration.kubeconfig.as_deref())?;
    let options =
        KubeConfigOptions { context: configuration.context.clone(), ..KubeConfigOptions::default() };
    let (client, origin) = match source {
        ClientConfigSource::InCluster => {
            let client =
                kube::Config::incluster().map_err(|error| ClientError::InCluster(one_line(&error)))?;
            (client, "the pod's service account".to_owned())
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
    let configured_namespace = configuration.namespace.as_ref().map(|label| label.0.clone());
    let namespace = configured_namespace.unwrap_or_else(|| client.default_namespace.clone());
    build_connection(client, origin, namespace)
}

/// One file.
fn read_kubeconfig(path: &Path) -> Result<Kubeconfig, ClientError> {
    let unreadable = |error: KubeconfigError| ClientError::Kubeconfig {
        path: path.to_owned(),
        problem: redacted_message(&error),
    };
    Kubeconfig::read_from(path).map_err(unreadable)
}

/// The files of `KUBECONFIG`, merged; the first that says something is right.
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
    merged.ok_or_else(|| unreadable("it names no file".to_owned()))
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

fn build_connection(
    mut config: kube::Config,
    origin: String,
    namespace: String,
) -> Result<ClusterConnection, ClientError> {
    config.default_retry = false;
    let url = config.cluster_url.to_string();
    let client = connect::client(config).map_err(|error| ClientError::Client {
        url: url.clone(),
        problem: credential_error_message(&error),
    })?;
    Ok(ClusterConnection { client, url, origin, namespace })
}

/// What is wrong with a kubeconfig, and nothing of what stands in it: that may be a token or a key. The
/// parser's own words quote the lines around the mistake.
fn redacted_message(error: &KubeconfigError) -> String {
    if let KubeconfigError::Parse(error) = error {
        return format!(
            "{}not a kubeconfig: what stands there is not shown, for it may be secret",
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

/// Where a parser stopped.
fn parse_location(error: &serde_saphyr::Error) -> String {
    error.location().map_or_else(String::new, |at| format!("line {}, column {}: ", at.line(), at.column()))
}

/// Why credentials cannot be used, without them.
fn credential_error_message(error: &kube::Error) -> String {
    if let kube::Error::InferKubeconfig(error) = error {
        return redacted_message(error);
    }
    if let kube::Error::ProxyProtocolDisabled { .. } = error {
        // kube's own text has the proxy's password.
        return "proxy-url is set: expected none, connections through a proxy are not supported".to_owned();
    }
    if let kube::Error::Auth(error) = error
        && let Some(problem) = connect::exec_plugin_error(error)
    {
        return problem;
    }
    one_line(error)
}

/// A client from a kubeconfig's text.
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
    build_connection(config, format!("kubeconfig {origin}"), namespace)
}

/// An error with its causes, each once, in one line.
pub(crate) fn one_line(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
        cause = error.source();
    }
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
