//! etcd, kube-apiserver, and optionally kube-controller-manager and kube-scheduler.

use std::{
    fs,
    io::ErrorKind,
    net::{IpAddr, SocketAddr, UdpSocket},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use cofferdam_cluster::connect;
use http::Request;
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, Config, api::ListParams, config::Kubeconfig};
use serde_json::json;

use crate::{
    audit::{self, AuditLog},
    certificates::{self, CertificateAuthority, CertificateFiles},
    kubeconfig::{self, KubeconfigCredentials},
    process::{self, CommandSpec, ManagedProcess},
    run::SuiteRun,
};

/// Maximum wait for a component to become ready. Sufficient on a busy machine.
const READY_TIMEOUT: Duration = Duration::from_secs(180);
/// Flags for practically unlimited client rates.
const UNLIMITED: [&str; 2] = ["--kube-api-qps=100000", "--kube-api-burst=100000"];
/// Value of `--controllers`: the controllers that kube-controller-manager runs by default, except those that
/// Cofferdam's roles replace. `volumeattributesclass-protection-controller` runs although the role
/// `protection` replaces it.
pub const UNREPLACED_CONTROLLERS: &str = "*,-persistentvolume-binder-controller,\
     -persistentvolume-attach-detach-controller,\
     -persistentvolume-protection-controller,-persistentvolumeclaim-protection-controller";

/// Value of `--controllers`: the controllers of kube-controller-manager that bind claims and protect claims
/// and volumes.
pub const BINDER_CONTROLLERS: &str = "persistentvolume-binder-controller,\
                                      persistentvolume-protection-controller,\
                                      persistentvolumeclaim-protection-controller";

/// Options of a control plane.
#[derive(Clone, Debug, Default)]
pub struct ControlPlaneOptions {
    /// Value of kube-controller-manager's `--controllers`. If `None`, kube-controller-manager is not started.
    pub controllers: Option<String>,
    /// Start kube-scheduler.
    pub has_scheduler: bool,
    /// Node monitor grace period of kube-controller-manager in whole seconds, with a monitor period of 1 s.
    /// If `None`, the defaults of both. Only [`ControlPlane::start`] uses this period; when
    /// kube-controller-manager is started later, it has the defaults.
    pub node_monitor_grace: Option<Duration>,
    /// Disable priority and fairness of the API server, and raise its limits of concurrent requests.
    pub is_unlimited: bool,
    /// Disable the audit log, which uses CPU time of the API server. Forbidden requests are not detected
    /// then.
    pub is_unaudited: bool,
    /// Log the bodies of requests of Cofferdam's accounts in the audit log.
    pub has_audited_bodies: bool,
    /// Let pods use the API server, at [`ControlPlane::pod_address`], with the tokens of their service
    /// accounts. The controllers of service accounts have to run.
    pub serves_pods: bool,
    /// Start etcd with a copy of this data, which [`keep_etcd`] returned, instead of an empty one.
    pub etcd_data: Option<PathBuf>,
}

/// Limits of the requests that an upstream program makes per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientRates {
    /// The program's own limits.
    Default,
    /// Practically none.
    Unlimited,
}

impl ClientRates {
    /// Flags of kube-controller-manager, kube-scheduler and the sidecars.
    pub(crate) const fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Default => &[],
            Self::Unlimited => &UNLIMITED,
        }
    }
}

/// A user of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiUser<'a> {
    /// Administrator, a member of `system:masters`.
    Admin,
    /// kube-controller-manager, with its default RBAC rules.
    ControllerManager,
    /// kube-scheduler, with its default RBAC rules.
    Scheduler,
    /// kubelet of this node.
    Node(&'a str),
}

/// A control plane without nodes.
pub struct ControlPlane {
    credentials: ClusterCredentials,
    /// etcd.
    pub etcd: ManagedProcess,
    /// kube-apiserver.
    pub api: ManagedProcess,
    /// kube-controller-manager; `None` if it was never started, or a caller took it.
    pub controller_manager: Option<ManagedProcess>,
    /// kube-scheduler; `None` if it was never started.
    pub scheduler: Option<ManagedProcess>,
    etcd_port: u16,
    client: Client,
    audit: Option<AuditLog>,
}

/// Credentials and address of the API server.
#[derive(Debug)]
struct ClusterCredentials {
    directory: PathBuf,
    authority: CertificateAuthority,
    server: CertificateFiles,
    token: String,
    url: String,
    /// Address and port of the API server for pods; `None` if pods do not use it.
    pod_address: Option<SocketAddr>,
}

impl ClusterCredentials {
    fn new(run: &SuiteRun, port: u16, serves_pods: bool) -> Result<Self> {
        let directory = run.scratch().join("credentials");
        let authority = CertificateAuthority::new(directory.clone())?;
        let machine = if serves_pods { Some(machine_address()?) } else { None };
        let server = authority.server("kube-apiserver", machine.as_slice())?;
        let mut secret = [0; 16];
        getrandom::fill(&mut secret).context("no random bytes")?;
        let token = secret.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
        fs::write(directory.join("tokens.csv"), format!("{token},admin,admin,\"system:masters\"\n"))?;
        let (url, pod_address) =
            (format!("https://127.0.0.1:{port}"), machine.map(|address| SocketAddr::new(address, port)));
        Ok(Self { directory, authority, server, token, url, pod_address })
    }

    fn kubeconfig(&self, user: ApiUser<'_>) -> Result<PathBuf> {
        let (name, group) = match user {
            ApiUser::Admin => ("admin".to_owned(), None),
            ApiUser::ControllerManager => ("system:kube-controller-manager".to_owned(), None),
            ApiUser::Scheduler => ("system:kube-scheduler".to_owned(), None),
            ApiUser::Node(node) => (format!("system:node:{node}"), Some("system:nodes")),
        };
        let path = self.directory.join(format!("{}.kubeconfig", name.replace(':', "-")));
        match user {
            ApiUser::Admin => {
                kubeconfig::write(
                    &path,
                    &self.url,
                    &self.authority,
                    KubeconfigCredentials::Token(&self.token),
                )?;
            }
            ApiUser::ControllerManager | ApiUser::Scheduler | ApiUser::Node(_) => {
                let pair = self.authority.client(&name, group)?;
                kubeconfig::write(
                    &path,
                    &self.url,
                    &self.authority,
                    KubeconfigCredentials::Certificate(&pair),
                )?;
            }
        }
        Ok(path)
    }

    /// A client that sends no credentials. The server at `url` uses a certificate of this authority, or no
    /// TLS.
    fn client_for_url(&self, url: &str) -> Result<Client> {
        let mut config = Config::new(url.parse()?);
        config.root_cert = Some(vec![self.authority.der()]);
        config.default_retry = false;
        Ok(connect::client(config)?)
    }
}

impl ControlPlane {
    /// Starts a control plane, and waits until it is ready.
    ///
    /// # Errors
    /// If a component does not become ready. The error contains the end of its log.
    pub async fn start(run: &SuiteRun, options: ControlPlaneOptions) -> Result<Self> {
        let (etcd_port, port) = (run.free_port()?, run.free_port()?);
        // Remove the data of an earlier control plane of the same run.
        match fs::remove_dir_all(etcd_directory(run)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        if let Some(data) = &options.etcd_data {
            copy(data, &etcd_directory(run)).await?;
        }
        let credentials = ClusterCredentials::new(run, port, options.serves_pods)?;
        let mut etcd = ManagedProcess::start(run, etcd_command(run, etcd_port)?)?;
        let store_client = credentials.client_for_url(&format!("http://127.0.0.1:{etcd_port}"))?;
        etcd.wait_ready(READY_TIMEOUT, async || probe_path(&store_client, "/health").await).await?;
        let api =
            ManagedProcess::start(run, apiserver_command(run, &credentials, etcd_port, port, &options)?)?;
        let client = client(&credentials.kubeconfig(ApiUser::Admin)?).await?;
        // A copy for kubectl outside of the run's mount namespace, which does not see the scratch directory.
        fs::copy(credentials.kubeconfig(ApiUser::Admin)?, run.directory().join("kubeconfig"))?;
        let mut plane = Self {
            credentials,
            etcd,
            api,
            controller_manager: None,
            scheduler: None,
            etcd_port,
            client,
            audit: (!options.is_unaudited).then(|| AuditLog::new(run.log("audit"))),
        };
        plane.wait_api_ready().await?;
        if let Some(controllers) = &options.controllers {
            let monitor_flags = options.node_monitor_grace.map(|after| {
                [
                    "--node-monitor-period=1s".to_owned(),
                    format!("--node-monitor-grace-period={}s", after.as_secs()),
                ]
            });
            plane
                .start_controller_manager_with(
                    run,
                    controllers,
                    monitor_flags.as_ref().map_or(&[], |flags| flags),
                )
                .await?;
        }
        if options.has_scheduler {
            plane.start_scheduler(run).await?;
        }
        Ok(plane)
    }

    /// A client of the administrator. It does not retry.
    #[must_use]
    pub const fn client(&self) -> &Client {
        &self.client
    }

    /// Writes a kubeconfig for a user, and returns its path. Users other than the administrator get a new
    /// client certificate.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn kubeconfig(&self, user: ApiUser<'_>) -> Result<PathBuf> {
        self.credentials.kubeconfig(user)
    }

    /// Writes a kubeconfig with a bearer token, and returns its path.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn kubeconfig_with_token(&self, name: &str, token: &str) -> Result<PathBuf> {
        let path = self.credentials.directory.join(format!("{name}.kubeconfig"));
        kubeconfig::write(
            &path,
            &self.credentials.url,
            &self.credentials.authority,
            KubeconfigCredentials::Token(token),
        )?;
        Ok(path)
    }

    /// The requests of Cofferdam's accounts that were rejected with 403 since the last call, except during a
    /// start of the API server. Always empty without an audit log
    /// ([`is_unaudited`](ControlPlaneOptions::is_unaudited)).
    ///
    /// # Errors
    /// If the audit log cannot be read.
    pub fn take_forbidden(&mut self) -> Result<Vec<String>> {
        self.audit.as_mut().map_or_else(|| Ok(Vec::new()), AuditLog::take_forbidden)
    }

    /// Address and port of the API server for pods, with
    /// [`serves_pods`](ControlPlaneOptions::serves_pods).
    #[must_use]
    pub const fn pod_address(&self) -> Option<SocketAddr> {
        self.credentials.pod_address
    }

    /// The certificate authority.
    #[must_use]
    pub const fn authority(&self) -> &CertificateAuthority {
        &self.credentials.authority
    }

    /// Waits until the API server is ready. From then on, forbidden requests are recorded.
    ///
    /// # Errors
    /// If it does not become ready. The error contains the end of its log.
    pub async fn wait_api_ready(&mut self) -> Result<()> {
        let client = self.client.clone();
        self.api.wait_ready(READY_TIMEOUT, async || probe_path(&client, "/readyz").await).await?;
        self.audit.as_mut().map_or(Ok(()), AuditLog::set_ready)
    }

    /// Restarts the API server after it was stopped or killed. Does not wait until it is ready; see
    /// [`wait_api_ready`](Self::wait_api_ready).
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn spawn_api(&mut self) -> Result<()> {
        self.audit.as_mut().map_or(Ok(()), AuditLog::set_starting)?;
        self.api.restart()
    }

    /// Restarts the API server after it was stopped or killed, and waits until it is ready.
    ///
    /// # Errors
    /// If it does not become ready. The error contains the end of its log.
    pub async fn restart_api(&mut self) -> Result<()> {
        self.spawn_api()?;
        self.wait_api_ready().await
    }

    /// Restarts etcd after it was stopped or killed, and waits until it is ready.
    ///
    /// # Errors
    /// If it does not become ready. The error contains the end of its log.
    pub async fn restart_etcd(&mut self) -> Result<()> {
        self.etcd.restart()?;
        let client = self.credentials.client_for_url(&format!("http://127.0.0.1:{}", self.etcd_port))?;
        self.etcd.wait_ready(READY_TIMEOUT, async || probe_path(&client, "/health").await).await
    }

    /// Copies etcd's data directory to the run's scratch directory, as `name`. etcd is paused meanwhile, so
    /// the copy has the data that a SIGKILL of etcd would leave.
    ///
    /// # Errors
    /// If etcd does not run, or the copy fails.
    pub async fn snapshot_etcd(&self, run: &SuiteRun, name: &str) -> Result<()> {
        self.etcd.pause().await?;
        let copied = copy(&etcd_directory(run), &run.scratch().join(name)).await;
        self.etcd.resume()?;
        copied
    }

    /// Replaces etcd's data directory with the copy `name` of [`snapshot_etcd`](Self::snapshot_etcd). etcd
    /// and the API server have to be stopped.
    ///
    /// # Errors
    /// If there is no such copy.
    pub async fn restore_etcd(&self, run: &SuiteRun, name: &str) -> Result<()> {
        let store = etcd_directory(run);
        fs::remove_dir_all(&store)?;
        copy(&run.scratch().join(name), &store).await
    }

    /// Compacts etcd, kills the API server and starts it again: watches that continue from an earlier
    /// resource version fail.
    ///
    /// # Errors
    /// If etcd rejects the compaction, or the API server does not become ready again.
    pub async fn compact(&mut self) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let now = namespaces.list(&ListParams::default()).await?.metadata.resource_version;
        let body = serde_json::to_vec(&json!({ "revision": now.context("a list without a version")? }))?;
        let request = Request::post("/v3/kv/compaction").body(body)?;
        self.credentials
            .client_for_url(&format!("http://127.0.0.1:{}", self.etcd_port))?
            .request_text(request)
            .await?;
        self.api.kill().await?;
        self.restart_api().await
    }

    /// Kills etcd and the API server, restores the copy `name` of [`snapshot_etcd`](Self::snapshot_etcd) and
    /// restarts both, as an administrator restores a cluster from a backup.
    ///
    /// # Errors
    /// If there is no such copy, or etcd or the API server does not become ready again.
    pub async fn restore(&mut self, run: &SuiteRun, name: &str) -> Result<()> {
        self.api.kill().await?;
        self.etcd.kill().await?;
        self.restore_etcd(run, name).await?;
        self.restart_etcd().await?;
        self.restart_api().await
    }

    /// Starts kube-controller-manager with these controllers, and waits until it is healthy.
    ///
    /// # Errors
    /// If it does not become healthy. The error contains the end of its log.
    pub async fn start_controller_manager(&mut self, run: &SuiteRun, controllers: &str) -> Result<()> {
        self.start_controller_manager_with(run, controllers, &[]).await
    }

    /// Kills kube-controller-manager, if it runs, and starts it with these controllers.
    ///
    /// # Errors
    /// If it had exited before, or does not become healthy. The error contains the end of its log.
    pub async fn replace_controller_manager(&mut self, run: &SuiteRun, controllers: &str) -> Result<()> {
        if let Some(running) = &mut self.controller_manager {
            running.kill().await?;
        }
        self.start_controller_manager(run, controllers).await
    }

    async fn start_controller_manager_with(
        &mut self,
        run: &SuiteRun,
        controllers: &str,
        extra_flags: &[String],
    ) -> Result<()> {
        let kubeconfig = self.credentials.kubeconfig(ApiUser::ControllerManager)?;
        let flags = UNLIMITED.iter().copied().chain(extra_flags.iter().map(String::as_str));
        let manager = self.controller_manager_at(run, &kubeconfig, controllers, flags).await?;
        self.controller_manager = Some(manager);
        Ok(())
    }

    /// Starts kube-controller-manager with these controllers and client rates on the API server of a
    /// kubeconfig, whose user is [`ApiUser::ControllerManager`]. Returns the process when it is healthy; its
    /// caches may not be complete then.
    ///
    /// # Errors
    /// If it does not become healthy. The error contains the end of its log.
    pub(crate) async fn controller_manager_with_rates(
        &self,
        run: &SuiteRun,
        kubeconfig: &Path,
        controllers: &str,
        rates: ClientRates,
    ) -> Result<ManagedProcess> {
        self.controller_manager_at(run, kubeconfig, controllers, rates.flags().iter().copied()).await
    }

    async fn controller_manager_at(
        &self,
        run: &SuiteRun,
        kubeconfig: &Path,
        controllers: &str,
        flags: impl Iterator<Item = &str>,
    ) -> Result<ManagedProcess> {
        let spec =
            CommandSpec::new("kube-controller-manager", run.peers().program("kube-controller-manager")?)
                .arg(format_args!("--controllers={controllers}"))
                // The default RBAC rules are bound to one service account per controller.
                .arg("--use-service-account-credentials=true")
                .arg(format_args!("--root-ca-file={}", self.credentials.authority.file().display()))
                .arg(format_args!(
                    "--service-account-private-key-file={}",
                    self.credentials.directory.join("sa.key").display()
                ))
                .args(flags);
        self.start_component(run, spec, kubeconfig).await
    }

    /// Starts kube-scheduler, and waits until it is healthy.
    ///
    /// # Errors
    /// If it does not become healthy. The error contains the end of its log.
    pub async fn start_scheduler(&mut self, run: &SuiteRun) -> Result<()> {
        let kubeconfig = self.credentials.kubeconfig(ApiUser::Scheduler)?;
        let spec = CommandSpec::new("kube-scheduler", run.peers().program("kube-scheduler")?).args(UNLIMITED);
        self.scheduler = Some(self.start_component(run, spec, &kubeconfig).await?);
        Ok(())
    }

    async fn start_component(
        &self,
        run: &SuiteRun,
        spec: CommandSpec,
        kubeconfig: &Path,
    ) -> Result<ManagedProcess> {
        let port = run.free_port()?;
        let pair = self.credentials.authority.server("component", &[])?;
        let spec = spec
            .arg(format_args!("--kubeconfig={}", kubeconfig.display()))
            .arg("--leader-elect=false")
            .arg("--bind-address=127.0.0.1")
            .arg(format_args!("--secure-port={port}"))
            .arg(format_args!("--tls-cert-file={}", pair.certificate.display()))
            .arg(format_args!("--tls-private-key-file={}", pair.key.display()))
            .arg("--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics");
        let client = self.credentials.client_for_url(&format!("https://127.0.0.1:{port}"))?;
        let mut process = ManagedProcess::start(run, spec)?;
        process.wait_ready(READY_TIMEOUT, async || probe_path(&client, "/healthz").await).await?;
        Ok(process.with_metrics(client))
    }

    /// Stops the components, kube-apiserver and etcd last.
    ///
    /// # Errors
    /// If a component exited by itself or had to be killed, or a request of Cofferdam's accounts was
    /// forbidden.
    pub async fn stop(mut self) -> Result<()> {
        for component in [&mut self.scheduler, &mut self.controller_manager].into_iter().flatten() {
            component.stop().await?;
        }
        // kube-apiserver waits for idle connections: close those of the client.
        self.client = self.credentials.client_for_url(&self.credentials.url)?;
        self.api.stop().await?;
        self.etcd.stop().await?;
        let forbidden = self.take_forbidden()?;
        ensure!(forbidden.is_empty(), "the API has refused our accounts (403): {}", forbidden.join(", "));
        Ok(())
    }
}

/// Moves etcd's data of a control plane that was stopped to the run's scratch directory, for
/// [`etcd_data`](ControlPlaneOptions::etcd_data). Returns the directory.
///
/// # Errors
/// If there is no data, or the directory cannot be moved.
pub fn keep_etcd(run: &SuiteRun, name: &str) -> Result<PathBuf> {
    let (from, to) = (etcd_directory(run), run.scratch().join(name));
    fs::rename(&from, &to).with_context(|| format!("cannot move {} to {}", from.display(), to.display()))?;
    Ok(to)
}

fn etcd_directory(run: &SuiteRun) -> PathBuf {
    run.scratch().join("etcd")
}

fn etcd_command(run: &SuiteRun, port: u16) -> Result<CommandSpec> {
    let (client, peer) =
        (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{}", run.free_port()?));
    Ok(CommandSpec::new("etcd", run.peers().program("etcd")?)
        .arg(format_args!("--data-dir={}", etcd_directory(run).display()))
        .arg("--name=default")
        .arg(format_args!("--listen-client-urls={client}"))
        .arg(format_args!("--advertise-client-urls={client}"))
        .arg(format_args!("--listen-peer-urls={peer}"))
        .arg(format_args!("--initial-advertise-peer-urls={peer}"))
        .arg(format_args!("--initial-cluster=default={peer}"))
        .arg("--quota-backend-bytes=4294967296")
        .arg("--log-level=warn"))
}

fn apiserver_command(
    run: &SuiteRun,
    credentials: &ClusterCredentials,
    etcd_port: u16,
    port: u16,
    options: &ControlPlaneOptions,
) -> Result<CommandSpec> {
    let (private, public) = certificates::signing_key(&credentials.directory)?;
    let kubelets = credentials.authority.client("kube-apiserver-kubelet-client", Some("system:masters"))?;
    let mut spec = CommandSpec::new("kube-apiserver", run.peers().program("kube-apiserver")?)
        .arg(format_args!("--etcd-servers=http://127.0.0.1:{etcd_port}"))
        .arg(format_args!("--secure-port={port}"))
        // The Service `kubernetes` is not used: there is no kube-proxy, and its endpoint must not be a
        // loopback address.
        .arg("--endpoint-reconciler-type=none")
        .arg("--service-cluster-ip-range=10.0.0.0/24")
        .arg(format_args!("--cert-dir={}", credentials.directory.display()))
        .arg(format_args!("--tls-cert-file={}", credentials.server.certificate.display()))
        .arg(format_args!("--tls-private-key-file={}", credentials.server.key.display()))
        .arg(format_args!("--client-ca-file={}", credentials.authority.file().display()))
        .arg(format_args!("--token-auth-file={}", credentials.directory.join("tokens.csv").display()))
        .arg("--authorization-mode=Node,RBAC")
        .arg("--service-account-issuer=https://kubernetes.default.svc")
        .arg(format_args!("--service-account-key-file={}", public.display()))
        .arg(format_args!("--service-account-signing-key-file={}", private.display()))
        .arg(format_args!("--kubelet-client-certificate={}", kubelets.certificate.display()))
        .arg(format_args!("--kubelet-client-key={}", kubelets.key.display()))
        .arg("--kubelet-preferred-address-types=InternalIP")
        .arg("--allow-privileged=true");
    spec = match credentials.pod_address {
        Some(address) => {
            spec.arg("--bind-address=0.0.0.0").arg(format_args!("--advertise-address={}", address.ip()))
        }
        // Pods do not use tokens, and no controller creates the ServiceAccount `default`.
        None => spec
            .arg("--bind-address=127.0.0.1")
            .arg("--advertise-address=127.0.0.1")
            .arg("--disable-admission-plugins=ServiceAccount"),
    };
    if !options.is_unaudited {
        let policy = credentials.directory.join("audit.json");
        fs::write(&policy, audit::policy(options.has_audited_bodies))?;
        spec = spec
            .arg(format_args!("--audit-policy-file={}", policy.display()))
            .arg(format_args!("--audit-log-path={}", run.log("audit").display()))
            .arg("--audit-log-mode=blocking")
            // A limit that no run reaches: the log has to stay in one file.
            .arg("--audit-log-maxsize=100000");
    }
    if options.is_unlimited {
        spec = spec
            .arg("--enable-priority-and-fairness=false")
            .arg("--max-requests-inflight=3000")
            .arg("--max-mutating-requests-inflight=3000");
    }
    Ok(spec)
}

/// The address of this machine on the network of its default route, which is also the address of its
/// kubelets.
fn machine_address() -> Result<IpAddr> {
    // Nothing is sent: the address belongs to no machine (RFC 5737).
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect("192.0.2.1:9").context("this machine has no default route, which pods need")?;
    Ok(socket.local_addr()?.ip())
}

/// A client from a kubeconfig file. It does not retry.
///
/// # Errors
/// If the file cannot be read or used.
pub async fn client(kubeconfig: &Path) -> Result<Client> {
    let mut config =
        Config::from_custom_kubeconfig(Kubeconfig::read_from(kubeconfig)?, &Default::default()).await?;
    config.default_retry = false;
    Ok(connect::client(config)?)
}

/// Requests a path, and fails unless the response is successful. Ignores its body.
pub(crate) async fn probe_path(client: &Client, path: &str) -> Result<()> {
    client.request_text(Request::get(path).body(Vec::new())?).await.with_context(|| format!("GET {path}"))?;
    Ok(())
}

async fn copy(from: &Path, to: &Path) -> Result<()> {
    let (from, to) = (from.display().to_string(), to.display().to_string());
    process::run_to_completion("cp", &["--archive", "--no-target-directory", &from, &to]).await?;
    Ok(())
}
