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
mod tests {
    use std::{io::Write as _, net::TcpListener};

    use super::*;

    /// Accepts one connection after the other, and returns the Authorization header of each request.
    fn serve() -> (u16, std::sync::mpsc::Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut lines = std::io::BufRead::lines(std::io::BufReader::new(stream.try_clone().unwrap()));
                let mut header = String::new();
                while let Some(Ok(line)) = lines.next().filter(|line| !line.as_ref().unwrap().is_empty()) {
                    if let Some(value) = line.strip_prefix("authorization: ") {
                        value.clone_into(&mut header);
                    }
                }
                stream
                    .write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}")
                    .unwrap();
                if sender.send(header).is_err() {
                    return;
                }
            }
        });
        (port, receiver)
    }

    struct Fixture {
        directory: tempfile::TempDir,
        reloader: ConnectionReloader,
        client: kube::Client,
        headers: std::sync::mpsc::Receiver<String>,
        port: u16,
    }

    impl Fixture {
        async fn start() -> Self {
            let directory = tempfile::TempDir::new().unwrap();
            let (port, headers) = serve();
            write(&directory, port, "token: first");
            let settings = ClientSettings {
                kubeconfig: Some(directory.path().join("kubeconfig")),
                ..ClientSettings::default()
            };
            let environment = ClientEnvironment::default();
            let mut reloader = ConnectionReloader::new(settings.clone(), &environment);
            let connection = client::connect_with(&settings, &environment).await.unwrap();
            let client = connection.client.clone();
            reloader.add(connection);
            Self { directory, reloader, client, headers, port }
        }

        /// Checks for changes. Returns the problem, and the credentials of the next request.
        async fn check(&mut self) -> (Option<String>, String) {
            self.reloader.check().await;
            self.client.request_text(http::Request::get("/x").body(Vec::new()).unwrap()).await.unwrap();
            (self.reloader.problem.clone(), self.headers.recv().unwrap())
        }
    }

    fn write(directory: &tempfile::TempDir, port: u16, user: &str) {
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             contexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\n\
             users: [{{name: u, user: {{{user}}}}}]\n"
        );
        let new = directory.path().join("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, directory.path().join("kubeconfig")).unwrap();
    }

    #[tokio::test]
    async fn changed_credentials_are_used_by_running_clients() {
        let mut fixture = Fixture::start().await;
        assert_eq!(fixture.check().await, (None, "Bearer first".to_owned()));
        write(&fixture.directory, fixture.port, "token: second");
        assert_eq!(fixture.check().await, (None, "Bearer second".to_owned()));
    }

    #[tokio::test]
    async fn unusable_credentials_and_another_server_are_reported_and_not_used() {
        let mut fixture = Fixture::start().await;
        write(&fixture.directory, fixture.port, "client-certificate: /nonexistent, client-key: /nonexistent");
        let (problem, header) = fixture.check().await;
        let problem = problem.unwrap();
        assert!(problem.contains("/nonexistent"), "{problem}");
        assert_eq!(header, "Bearer first");

        write(&fixture.directory, 1, "token: second");
        let (problem, header) = fixture.check().await;
        assert!(problem.unwrap().ends_with("and is http://127.0.0.1:1/; this change needs a restart"));
        assert_eq!(header, "Bearer first");

        let token = fixture.directory.path().join("token");
        write(&fixture.directory, fixture.port, &format!("tokenFile: '{}'", token.display()));
        assert!(fixture.check().await.0.is_some());
        // Only the file with the token changes.
        std::fs::write(&token, "from-file").unwrap();
        assert_eq!(fixture.check().await, (None, "Bearer from-file".to_owned()));
        // kube itself would read the file again after a minute, by the wall clock.
        std::fs::write(&token, "rotated").unwrap();
        assert_eq!(fixture.check().await, (None, "Bearer rotated".to_owned()));

        std::fs::write(fixture.directory.path().join("kubeconfig"), "{").unwrap();
        assert!(fixture.check().await.0.unwrap().contains("not a kubeconfig"));
        write(&fixture.directory, fixture.port, "token: third");
        assert_eq!(fixture.check().await, (None, "Bearer third".to_owned()));
    }

    #[test]
    fn files_are_the_kubeconfig_and_those_that_it_names() {
        let directory = tempfile::TempDir::new().unwrap();
        write(&directory, 1, "client-certificate: user.crt, client-key: /k");
        let path = directory.path().join("kubeconfig");
        let settings = ClientSettings { kubeconfig: Some(path.clone()), ..ClientSettings::default() };
        let files = client::files(&settings, &ClientEnvironment::default());
        assert_eq!(files, [directory.path().join("user.crt"), "/k".into(), path.clone()]);
        write(&directory, 1, "tokenFile: /token");
        assert_eq!(client::files(&settings, &ClientEnvironment::default()), ["/token".into(), path]);
        let in_pod = ClientEnvironment { in_cluster: true, ..ClientEnvironment::default() };
        let account = |name| std::path::Path::new("/var/run/secrets/kubernetes.io/serviceaccount").join(name);
        assert_eq!(client::files(&ClientSettings::default(), &in_pod), [account("ca.crt"), account("token")]);
    }
}
