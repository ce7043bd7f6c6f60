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
    Variable { value: String, problem: String },
    #[error("kubeconfig {origin} has no context {context:?}: expected {known}")]
    NoContext { origin: String, context: String, known: String },
    #[error("kubeconfig {origin} cannot be used: {problem}")]
    Context { origin: String, problem: String },
    #[error("cannot use the pod's service account: {0}")]
    InCluster(String),
    #[error(
        "no cluster: expected --kubeconfig FILE, KUBECONFIG, a pod's service account, or {}", path.display()
    )]
    Nowhere { path: PathBuf },
    #[error("cannot make a client for {url}: {problem}")]
    Client { url: String, problem: String },
}

/// A client and the namespace that its configuration names.
#[derive(Clone)]
pub(crate) struct Cluster {
    /// The client. It repeats nothing by itself: the roles decide what a failed request means.
    pub(crate) client: kube::Client,
    /// Where the API is.
    pub(crate) url: String,
    /// Who says so, for people: a kubeconfig, or the pod's service account.
    pub(crate) origin: String,
    /// The namespace of our own objects.
    pub(crate) namespace: String,
}

impl Cluster {
    /// Which API this is, for people who look at one that does not answer.
    pub(crate) fn place(&self) -> String {
        format!("{} ({})", self.url, self.origin)
    }
}

/// The environment's part in the choice, injected for tests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Surroundings {
    /// `KUBECONFIG`
    pub(crate) kubeconfig: Option<String>,
    /// Whether `KUBERNETES_SERVICE_HOST` is set, as in every pod.
    pub(crate) in_cluster: bool,
    /// The home directory.
    pub(crate) home: Option<PathBuf>,
}

/// Which configuration is used.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Choice {
    File(PathBuf),
    Variable(String),
    InCluster,
}

impl Surroundings {
    /// Those of this process.
    pub(crate) fn of_process() -> Self {
        let text = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self {
            kubeconfig: text("KUBECONFIG"),
            in_cluster: text("KUBERNETES_SERVICE_HOST").is_some(),
            home: std::env::home_dir(),
        }
    }

    /// The flag, then `KUBECONFIG`, then the pod's service account, then the user's kubeconfig.
    fn choose(&self, flag: Option<&Path>) -> Result<Choice, ClientError> {
        if let Some(path) = flag {
            return Ok(Choice::File(path.to_owned()));
        }
        if let Some(value) = &self.kubeconfig {
            return Ok(Choice::Variable(value.clone()));
        }
        if self.in_cluster {
            return Ok(Choice::InCluster);
        }
        let path = self.home.clone().unwrap_or_default().join(".kube/config");
        if path.exists() { Ok(Choice::File(path)) } else { Err(ClientError::Nowhere { path }) }
    }
}

/// Connects as the configuration says.
///
/// # Errors
/// [`ClientError`], one line that names the file or variable.
pub(crate) async fn connect(
    configuration: &Configuration,
    surroundings: &Surroundings,
) -> Result<Cluster, ClientError> {
    let choice = surroundings.choose(configuration.kubeconfig.as_deref())?;
    let options =
        KubeConfigOptions { context: configuration.context.clone(), ..KubeConfigOptions::default() };
    let (client, origin) = match choice {
        Choice::InCluster => {
            let client =
                kube::Config::incluster().map_err(|error| ClientError::InCluster(one_line(&error)))?;
            (client, "the pod's service account".to_owned())
        }
        Choice::File(path) => {
            let origin = path.display().to_string();
            (of_kubeconfig(read(&path)?, &options, &origin).await?, format!("kubeconfig {origin}"))
        }
        Choice::Variable(value) => {
            let origin = format!("KUBECONFIG={value}");
            (of_kubeconfig(read_all(&value)?, &options, &origin).await?, origin)
        }
    };
    let given = configuration.namespace.as_ref().map(|label| label.0.clone());
    let namespace = given.unwrap_or_else(|| client.default_namespace.clone());
    build(client, origin, namespace)
}

/// One file.
fn read(path: &Path) -> Result<Kubeconfig, ClientError> {
    let unreadable =
        |error: KubeconfigError| ClientError::Kubeconfig { path: path.to_owned(), problem: told(&error) };
    Kubeconfig::read_from(path).map_err(unreadable)
}

/// The files of `KUBECONFIG`, merged; the first that says something is right.
fn read_all(value: &str) -> Result<Kubeconfig, ClientError> {
    let unreadable = |problem: String| ClientError::Variable { value: value.to_owned(), problem };
    let mut merged: Option<Kubeconfig> = None;
    for path in std::env::split_paths(value).filter(|path| !path.as_os_str().is_empty()) {
        let next = read(&path)?;
        merged = Some(match merged {
            None => next,
            Some(merged) => merged.merge(next).map_err(|error| unreadable(told(&error)))?,
        });
    }
    merged.ok_or_else(|| unreadable("it names no file".to_owned()))
}

async fn of_kubeconfig(
    kubeconfig: Kubeconfig,
    options: &KubeConfigOptions,
    origin: &str,
) -> Result<kube::Config, ClientError> {
    if let Some(context) = &options.context
        && !kubeconfig.contexts.iter().any(|known| known.name == *context)
    {
        let known: Vec<&str> = kubeconfig.contexts.iter().map(|known| known.name.as_str()).collect();
        return Err(ClientError::NoContext {
            origin: origin.to_owned(),
            context: context.clone(),
            known: if known.is_empty() {
                "one, and it has none".to_owned()
            } else {
                format!("one of {}", known.join(", "))
            },
        });
    }
    kube::Config::from_custom_kubeconfig(kubeconfig, options)
        .await
        .map_err(|error| ClientError::Context { origin: origin.to_owned(), problem: told(&error) })
}

fn build(mut config: kube::Config, origin: String, namespace: String) -> Result<Cluster, ClientError> {
    config.default_retry = false;
    let url = config.cluster_url.to_string();
    let client = connect::client(config)
        .map_err(|error| ClientError::Client { url: url.clone(), problem: of_credentials(&error) })?;
    Ok(Cluster { client, url, origin, namespace })
}

/// What is wrong with a kubeconfig, and nothing of what stands in it: that may be a token or a key. The parser's own words quote the
/// lines around the mistake.
fn told(error: &KubeconfigError) -> String {
    if let KubeconfigError::Parse(error) = error {
        return format!(
            "{}not a kubeconfig: what stands there is not shown, for it may be secret",
            place(error)
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
fn place(error: &serde_saphyr::Error) -> String {
    error.location().map_or_else(String::new, |at| format!("line {}, column {}: ", at.line(), at.column()))
}

/// Why credentials cannot be used, without them.
fn of_credentials(error: &kube::Error) -> String {
    if let kube::Error::InferKubeconfig(error) = error {
        return told(error);
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
pub(crate) async fn from_text(kubeconfig: &str, origin: &str) -> Result<Cluster, ClientError> {
    let problem =
        |error: KubeconfigError| ClientError::Context { origin: origin.to_owned(), problem: told(&error) };
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig).map_err(problem)?;
    let config = of_kubeconfig(kubeconfig, &KubeConfigOptions::default(), origin).await?;
    let namespace = config.default_namespace.clone();
    build(config, format!("kubeconfig {origin}"), namespace)
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
