//! Takes over certificates and credentials for the API server that change on disk.

use std::collections::BTreeMap;

use super::files::{FileVersions, file_version};
use crate::client::{self, ClientEnvironment, ClientError, ClientSettings, ClusterConnection};

/// The reason why changed credentials are not used.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("the API server was {running} at the start, and is {changed}; this change needs a restart")]
    OtherServer { running: String, changed: String },
    #[error("the certificate authority has no certificate")]
    NoAuthority,
}

/// Watches the files of the clients' configuration.
pub(crate) struct ConnectionReloader {
    settings: ClientSettings,
    environment: ClientEnvironment,
    connections: Vec<ClusterConnection>,
    files: FileVersions,
    /// The last problem that was logged.
    problem: Option<String>,
}

impl ConnectionReloader {
    /// A reloader without clients. Create it before the clients: it notices all later changes.
    pub(crate) fn new(settings: ClientSettings, environment: &ClientEnvironment) -> Self {
        let (environment, files) = (environment.clone(), versions(&settings, environment));
        Self { settings, environment, connections: Vec::new(), files, problem: None }
    }

    /// Adds a client of the same configuration.
    pub(crate) fn add(&mut self, connection: ClusterConnection) {
        self.connections.push(connection);
    }

    /// Takes over changes since the last check. A failure is logged once, and the clients continue with what
    /// they have.
    pub(super) async fn check(&mut self) {
        let files = versions(&self.settings, &self.environment);
        if self.files == files {
            return;
        }
        let updated = self.update().await;
        match &updated {
            Ok(()) => {
                // After a failure the next check tries again: a file with a token may be missing, or a
                // credential plugin may fail during an outage.
                self.files = files;
                tracing::info!("the changed credentials for the API server are in use");
            }
            Err(error) => {
                let problem = error.to_string();
                if self.problem.as_ref() != Some(&problem) {
                    tracing::warn!("the changed credentials for the API server are not in use: {problem}");
                }
            }
        }
        self.problem = updated.err().map(|error| error.to_string());
    }

    async fn update(&self) -> Result<(), ConnectionError> {
        let changed = client::load(&self.settings, &self.environment).await?.config;
        let url = changed.cluster_url.to_string();
        if let Some(running) = self.connections.iter().find(|connection| connection.url != url) {
            return Err(ConnectionError::OtherServer { running: running.url.clone(), changed: url });
        }
        // A client without authorities trusts no server. A file that is being written may be empty.
        if changed.root_cert.as_ref().is_some_and(Vec::is_empty) {
            return Err(ConnectionError::NoAuthority);
        }
        for connection in &self.connections {
            connection.replace_credentials(changed.clone())?;
        }
        Ok(())
    }
}

fn versions(settings: &ClientSettings, environment: &ClientEnvironment) -> FileVersions {
    let files = client::files(settings, environment).into_iter();
    files.map(|path| (path.clone(), file_version(&path))).collect::<BTreeMap<_, _>>()
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
