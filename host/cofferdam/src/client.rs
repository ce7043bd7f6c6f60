//! The client of the API: who says where it is, and in which namespace our own objects live.

use std::path::{Path, PathBuf};

use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::config::Configuration;

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    #[error("cannot read kubeconfig {}: {problem}", path.display())]
    Kubeconfig { path: PathBuf, problem: String },
    #[error("cannot read the kubeconfig that KUBECONFIG names, {value:?}: {problem}")]
    Variable { value: String, problem: String },
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
    /// The namespace of our own objects.
    pub(crate) namespace: String,
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
    let client = match choice {
        Choice::InCluster => {
            kube::Config::incluster().map_err(|error| ClientError::InCluster(one_line(&error)))?
        }
        Choice::File(path) => {
            let read = Kubeconfig::read_from(&path);
            let kubeconfig =
                read.map_err(|error| ClientError::Kubeconfig { path: path.clone(), problem: cause(&error) })?;
            of_kubeconfig(kubeconfig, &options, path.display().to_string()).await?
        }
        Choice::Variable(value) => {
            let unreadable = |problem: String| ClientError::Variable { value: value.clone(), problem };
            let kubeconfig = Kubeconfig::from_env()
                .map_err(|error| unreadable(cause(&error)))?
                .ok_or_else(|| unreadable("it names no file".to_owned()))?;
            of_kubeconfig(kubeconfig, &options, format!("KUBECONFIG={value}")).await?
        }
    };
    let given = configuration.namespace.as_ref().map(|label| label.0.clone());
    let namespace = given.unwrap_or_else(|| client.default_namespace.clone());
    build(client, namespace)
}

async fn of_kubeconfig(
    kubeconfig: Kubeconfig,
    options: &KubeConfigOptions,
    origin: String,
) -> Result<kube::Config, ClientError> {
    kube::Config::from_custom_kubeconfig(kubeconfig, options)
        .await
        .map_err(|error| ClientError::Context { origin, problem: one_line(&error) })
}

fn build(mut config: kube::Config, namespace: String) -> Result<Cluster, ClientError> {
    config.default_retry = false;
    let url = config.cluster_url.to_string();
    let client = cofferdam_cluster::connect::client(config)
        .map_err(|error| ClientError::Client { url: url.clone(), problem: one_line(&error) })?;
    Ok(Cluster { client, url, namespace })
}

/// A client from a kubeconfig's text.
///
/// # Errors
/// [`ClientError`]
pub(crate) async fn from_text(kubeconfig: &str, origin: &str) -> Result<Cluster, ClientError> {
    let problem = |error: &dyn std::error::Error| ClientError::Context {
        origin: origin.to_owned(),
        problem: one_line(error),
    };
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig).map_err(|error| problem(&error))?;
    let config = of_kubeconfig(kubeconfig, &KubeConfigOptions::default(), origin.to_owned()).await?;
    let namespace = config.default_namespace.clone();
    build(config, namespace)
}

/// The innermost cause, where the outer ones only repeat the path.
fn cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    one_line(cause)
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
