//! etcd, kube-apiserver, and what of kube-controller-manager and kube-scheduler a suite wants.

use std::{
    fs,
    io::ErrorKind,
    mem,
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
    account,
    certificates::{self, Authority, Pair},
    kubeconfig::{self, Credentials},
    process::{self, Process, Spec},
    run::Run,
};

/// How long a component may take until it is ready, on a busy machine.
const READY: Duration = Duration::from_secs(180);
/// Client rates that are no limit.
const UNLIMITED: [&str; 2] = ["--kube-api-qps=100000", "--kube-api-burst=100000"];
/// kube-controller-manager with all that it has but the loops that are roles of ours.
pub const BUT_OURS: &str = "*,-persistentvolume-binder-controller,-persistentvolume-attach-detach-controller,\
                            -persistentvolume-protection-controller,-persistentvolumeclaim-protection-controller";

/// What a control plane is made of.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The loops of kube-controller-manager, as its flag `--controllers` names them; none: it is not started.
    pub controllers: Option<String>,
    /// Whether kube-scheduler is started.
    pub scheduler: bool,
    /// How long nothing may be heard of a kubelet until its node is not ready; none: Kubernetes' own time.
    pub missed_after: Option<Duration>,
    /// Whether the API takes as many requests as come.
    pub unlimited: bool,
    /// Whether nobody looks for requests of our accounts that are refused, because that takes time of the API.
    pub unaudited: bool,
}

/// A user of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User<'a> {
    /// May do everything.
    Admin,
    /// kube-controller-manager, with the rules that the API has for it.
    ControllerManager,
    /// kube-scheduler, likewise.
    Scheduler,
    /// The kubelet of this node.
    Node(&'a str),
}

/// A Kubernetes without nodes.
pub struct ControlPlane {
    run: Credentialed,
    /// The store.
    pub etcd: Process,
    /// The API.
    pub api: Process,
    /// kube-controller-manager, where it runs.
    pub controller_manager: Option<Process>,
    /// kube-scheduler, where it runs.
    pub scheduler: Option<Process>,
    store: u16,
    client: Client,
    audit: Option<Audit>,
}

/// What the API writes down about requests of our accounts.
#[derive(Debug)]
struct Audit {
    log: PathBuf,
    /// How much of it was looked at.
    seen: usize,
    /// Whether the API has not been ready since it was started: by then it knows no rules, and refuses everybody everything.
    starting: bool,
    refused: Vec<String>,
}

impl Audit {
    fn look(&mut self) -> Result<()> {
        let log =
            fs::read_to_string(&self.log).with_context(|| format!("no audit log {}", self.log.display()))?;
        if !self.starting {
            self.refused.extend(account::refused(log.get(self.seen..).context("the audit log has shrunk")?)?);
        }
        self.seen = log.len();
        Ok(())
    }
}

/// Who may call the API, and how it is reached.
#[derive(Debug)]
struct Credentialed {
    directory: PathBuf,
    authority: Authority,
    server: Pair,
    token: String,
    url: String,
}

impl Credentialed {
    fn new(run: &Run, url: String) -> Result<Self> {
        let directory = run.scratch().join("credentials");
        let authority = Authority::new(directory.clone())?;
        let server = authority.server("kube-apiserver")?;
        let mut secret = [0; 16];
        getrandom::fill(&mut secret).context("no random bytes")?;
        let token = secret.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
        fs::write(directory.join("tokens.csv"), format!("{token},admin,admin,\"system:masters\"\n"))?;
        Ok(Self { directory, authority, server, token, url })
    }

    fn kubeconfig(&self, user: User<'_>) -> Result<PathBuf> {
        let (name, group) = match user {
            User::Admin => ("admin".to_owned(), None),
            User::ControllerManager => ("system:kube-controller-manager".to_owned(), None),
            User::Scheduler => ("system:kube-scheduler".to_owned(), None),
            User::Node(node) => (format!("system:node:{node}"), Some("system:nodes")),
        };
        let path = self.directory.join(format!("{}.kubeconfig", name.replace(':', "-")));
        match user {
            User::Admin => {
                kubeconfig::write(&path, &self.url, &self.authority, Credentials::Token(&self.token))?;
            }
            User::ControllerManager | User::Scheduler | User::Node(_) => {
                let pair = self.authority.client(&name, group)?;
                kubeconfig::write(&path, &self.url, &self.authority, Credentials::Certificate(&pair))?;
            }
        }
        Ok(path)
    }

    /// A client for another server than the API whose certificate is ours, or which has none.
    fn client_of(&self, url: &str) -> Result<Client> {
        let mut config = Config::new(url.parse()?);
        config.root_cert = Some(vec![self.authority.der()]);
        config.default_retry = false;
        Ok(connect::client(config)?)
    }
}

impl ControlPlane {
    /// Starts one, and waits until it is ready.
    ///
    /// # Errors
    /// When a component does not become ready, with the end of its log.
    pub async fn start(run: &Run, options: Options) -> Result<Self> {
        let (store, port) = (run.port()?, run.port()?);
        // What an earlier one of the same run has stored is its own.
        match fs::remove_dir_all(store_directory(run)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let credentials = Credentialed::new(run, format!("https://127.0.0.1:{port}"))?;
        let mut etcd = Process::start(run, etcd(run, store)?)?;
        let store_client = credentials.client_of(&format!("http://127.0.0.1:{store}"))?;
        etcd.ready(READY, async || get(&store_client, "/health").await).await?;
        let api = Process::start(run, apiserver(run, &credentials, store, port, &options)?)?;
        let client = client(&credentials.kubeconfig(User::Admin)?).await?;
        // For people with kubectl, who cannot look into the namespace.
        fs::copy(credentials.kubeconfig(User::Admin)?, run.directory().join("kubeconfig"))?;
        let mut plane = Self {
            run: credentials,
            etcd,
            api,
            controller_manager: None,
            scheduler: None,
            store,
            client,
            audit: (!options.unaudited).then(|| Audit {
                log: run.log("audit"),
                seen: 0,
                starting: true,
                refused: Vec::new(),
            }),
        };
        plane.api_ready().await?;
        if let Some(controllers) = &options.controllers {
            let missed = options.missed_after.map(|after| {
                [
                    "--node-monitor-period=1s".to_owned(),
                    format!("--node-monitor-grace-period={}s", after.as_secs()),
                ]
            });
            plane.controller_manager(run, controllers, missed.as_ref().map_or(&[], |flags| flags)).await?;
        }
        if options.scheduler {
            plane.start_scheduler(run).await?;
        }
        Ok(plane)
    }

    /// A client that may do everything. It repeats nothing by itself.
    #[must_use]
    pub const fn client(&self) -> &Client {
        &self.client
    }

    /// A kubeconfig for a user.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn kubeconfig(&self, user: User<'_>) -> Result<PathBuf> {
        self.run.kubeconfig(user)
    }

    /// A kubeconfig for whom the API takes the bearer of a token for.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn kubeconfig_with_token(&self, name: &str, token: &str) -> Result<PathBuf> {
        let path = self.run.directory.join(format!("{name}.kubeconfig"));
        kubeconfig::write(&path, &self.run.url, &self.run.authority, Credentials::Token(token))?;
        Ok(path)
    }

    /// The requests of our accounts that the API has refused with 403 since the last look, but for those while it started.
    ///
    /// # Errors
    /// When what the API writes down cannot be read.
    pub fn refused(&mut self) -> Result<Vec<String>> {
        let Some(audit) = &mut self.audit else { return Ok(Vec::new()) };
        audit.look()?;
        Ok(mem::take(&mut audit.refused))
    }

    /// The authority of the cluster's certificates.
    #[must_use]
    pub const fn authority(&self) -> &Authority {
        &self.run.authority
    }

    /// Waits until the API answers that it is ready.
    ///
    /// # Errors
    /// When it does not, with the end of its log.
    pub async fn api_ready(&mut self) -> Result<()> {
        let client = self.client.clone();
        self.api.ready(READY, async || get(&client, "/readyz").await).await?;
        if let Some(audit) = &mut self.audit {
            audit.look()?;
            audit.starting = false;
        }
        Ok(())
    }

    /// Starts the API again after it was stopped or killed.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn api_again(&mut self) -> Result<()> {
        if let Some(audit) = &mut self.audit {
            audit.look()?;
            audit.starting = true;
        }
        self.api.again()
    }

    /// Starts the API again after it was stopped or killed, and waits until it is ready.
    ///
    /// # Errors
    /// When it is not, with the end of its log.
    pub async fn start_api(&mut self) -> Result<()> {
        self.api_again()?;
        self.api_ready().await
    }

    /// Starts etcd again after it was stopped or killed, and waits until it is ready.
    ///
    /// # Errors
    /// When it is not, with the end of its log.
    pub async fn start_etcd(&mut self) -> Result<()> {
        self.etcd.again()?;
        let client = self.run.client_of(&format!("http://127.0.0.1:{}", self.store))?;
        self.etcd.ready(READY, async || get(&client, "/health").await).await
    }

    /// Copies what etcd has stored, as it is at this moment. etcd stands still for as long as that takes: what it finds in the
    /// copy is what it would find after the loss of power.
    ///
    /// # Errors
    /// When it does not run, or the copy fails.
    pub async fn snapshot_etcd(&self, run: &Run, name: &str) -> Result<()> {
        self.etcd.pause()?;
        let copied = copy(&store_directory(run), &run.scratch().join(name)).await;
        self.etcd.resume()?;
        copied
    }

    /// Puts a copy in the place of what etcd has stored. Both etcd and the API have to be stopped.
    ///
    /// # Errors
    /// When there is no such copy.
    pub async fn restore_etcd(&self, run: &Run, name: &str) -> Result<()> {
        let store = store_directory(run);
        fs::remove_dir_all(&store)?;
        copy(&run.scratch().join(name), &store).await
    }

    /// Lets etcd forget its history and starts the API anew: what was read before is too old to be watched from.
    ///
    /// # Errors
    /// When etcd refuses, or the API does not become ready again.
    pub async fn compact(&mut self) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let now = namespaces.list(&ListParams::default()).await?.metadata.resource_version;
        let body = serde_json::to_vec(&json!({ "revision": now.context("a list without a version")? }))?;
        let request = Request::post("/v3/kv/compaction").body(body)?;
        self.run.client_of(&format!("http://127.0.0.1:{}", self.store))?.request_text(request).await?;
        self.api.kill().await?;
        self.start_api().await
    }

    /// Puts a copy of etcd back while nothing else runs, as an operator does who restores a cluster.
    ///
    /// # Errors
    /// When there is no such copy, or etcd or the API does not become ready again.
    pub async fn restore(&mut self, run: &Run, name: &str) -> Result<()> {
        self.api.kill().await?;
        self.etcd.kill().await?;
        self.restore_etcd(run, name).await?;
        self.start_etcd().await?;
        self.start_api().await
    }

    /// Starts kube-controller-manager with these loops, and waits until it is healthy.
    ///
    /// # Errors
    /// When it is not, with the end of its log.
    pub async fn start_controller_manager(&mut self, run: &Run, controllers: &str) -> Result<()> {
        self.controller_manager(run, controllers, &[]).await
    }

    /// Kills kube-controller-manager, where it runs, and starts it with these loops.
    ///
    /// # Errors
    /// When it had ended before, or is not healthy, with the end of its log.
    pub async fn replace_controller_manager(&mut self, run: &Run, controllers: &str) -> Result<()> {
        if let Some(running) = &mut self.controller_manager {
            running.kill().await?;
        }
        self.start_controller_manager(run, controllers).await
    }

    async fn controller_manager(&mut self, run: &Run, controllers: &str, more: &[String]) -> Result<()> {
        let kubeconfig = self.run.kubeconfig(User::ControllerManager)?;
        let spec = Spec::new("kube-controller-manager", run.peers().program("kube-controller-manager")?)
            .arg(format_args!("--controllers={controllers}"))
            // Each loop under an account of its own: that is what the API's own roles are bound to.
            .arg("--use-service-account-credentials=true")
            .arg(format_args!("--root-ca-file={}", self.run.authority.file().display()))
            .arg(format_args!(
                "--service-account-private-key-file={}",
                self.run.directory.join("sa.key").display()
            ))
            .args(UNLIMITED)
            .args(more);
        self.controller_manager = Some(self.start_component(run, spec, &kubeconfig).await?);
        Ok(())
    }

    /// Starts kube-scheduler, and waits until it is healthy.
    ///
    /// # Errors
    /// When it is not, with the end of its log.
    pub async fn start_scheduler(&mut self, run: &Run) -> Result<()> {
        let kubeconfig = self.run.kubeconfig(User::Scheduler)?;
        let spec = Spec::new("kube-scheduler", run.peers().program("kube-scheduler")?).args(UNLIMITED);
        self.scheduler = Some(self.start_component(run, spec, &kubeconfig).await?);
        Ok(())
    }

    async fn start_component(&self, run: &Run, spec: Spec, kubeconfig: &Path) -> Result<Process> {
        let port = run.port()?;
        let pair = self.run.authority.server("component")?;
        let spec = spec
            .arg(format_args!("--kubeconfig={}", kubeconfig.display()))
            .arg("--leader-elect=false")
            .arg("--bind-address=127.0.0.1")
            .arg(format_args!("--secure-port={port}"))
            .arg(format_args!("--tls-cert-file={}", pair.certificate.display()))
            .arg(format_args!("--tls-private-key-file={}", pair.key.display()))
            .arg("--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics");
        let client = self.run.client_of(&format!("https://127.0.0.1:{port}"))?;
        let mut process = Process::start(run, spec)?;
        process.ready(READY, async || get(&client, "/healthz").await).await?;
        Ok(process)
    }

    /// Ends it, from the top down.
    ///
    /// # Errors
    /// When a component has ended by itself, or had to be killed; and when one of our accounts was refused something.
    pub async fn stop(mut self) -> Result<()> {
        for component in [&mut self.scheduler, &mut self.controller_manager].into_iter().flatten() {
            component.stop().await?;
        }
        // It would wait for our own idle connections.
        self.client = self.run.client_of(&self.run.url)?;
        self.api.stop().await?;
        self.etcd.stop().await?;
        let refused = self.refused()?;
        ensure!(refused.is_empty(), "the API has refused our accounts (403): {}", refused.join(", "));
        Ok(())
    }
}

fn store_directory(run: &Run) -> PathBuf {
    run.scratch().join("etcd")
}

fn etcd(run: &Run, port: u16) -> Result<Spec> {
    let (client, peer) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{}", run.port()?));
    Ok(Spec::new("etcd", run.peers().program("etcd")?)
        .arg(format_args!("--data-dir={}", store_directory(run).display()))
        .arg("--name=default")
        .arg(format_args!("--listen-client-urls={client}"))
        .arg(format_args!("--advertise-client-urls={client}"))
        .arg(format_args!("--listen-peer-urls={peer}"))
        .arg(format_args!("--initial-advertise-peer-urls={peer}"))
        .arg(format_args!("--initial-cluster=default={peer}"))
        .arg("--quota-backend-bytes=4294967296")
        .arg("--log-level=warn"))
}

fn apiserver(
    run: &Run,
    credentials: &Credentialed,
    store: u16,
    port: u16,
    options: &Options,
) -> Result<Spec> {
    let (private, public) = certificates::signing_key(&credentials.directory)?;
    let kubelets = credentials.authority.client("kube-apiserver-kubelet-client", Some("system:masters"))?;
    let mut spec = Spec::new("kube-apiserver", run.peers().program("kube-apiserver")?)
        .arg(format_args!("--etcd-servers=http://127.0.0.1:{store}"))
        .arg("--bind-address=127.0.0.1")
        .arg(format_args!("--secure-port={port}"))
        // Nobody reaches the API by its Service here, and loopback may not be that Service's end.
        .arg("--endpoint-reconciler-type=none")
        .arg("--advertise-address=127.0.0.1")
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
        // Pods here have no use for a token, and nobody makes the account that it would be of.
        .arg("--disable-admission-plugins=ServiceAccount")
        .arg("--allow-privileged=true");
    if !options.unaudited {
        let policy = credentials.directory.join("audit.json");
        fs::write(&policy, account::audit_policy())?;
        spec = spec
            .arg(format_args!("--audit-policy-file={}", policy.display()))
            .arg(format_args!("--audit-log-path={}", run.log("audit").display()))
            .arg("--audit-log-mode=blocking")
            // In one file: a limit that no run reaches.
            .arg("--audit-log-maxsize=100000");
    }
    if options.unlimited {
        spec = spec
            .arg("--enable-priority-and-fairness=false")
            .arg("--max-requests-inflight=3000")
            .arg("--max-mutating-requests-inflight=3000");
    }
    Ok(spec)
}

/// A client by a kubeconfig file. It repeats nothing by itself.
///
/// # Errors
/// When the file cannot be read or used.
pub async fn client(kubeconfig: &Path) -> Result<Client> {
    let mut config =
        Config::from_custom_kubeconfig(Kubeconfig::read_from(kubeconfig)?, &Default::default()).await?;
    config.default_retry = false;
    Ok(connect::client(config)?)
}

/// A page whose answer is only that it is there.
pub(crate) async fn get(client: &Client, path: &str) -> Result<()> {
    client.request_text(Request::get(path).body(Vec::new())?).await.with_context(|| format!("GET {path}"))?;
    Ok(())
}

async fn copy(from: &Path, to: &Path) -> Result<()> {
    let (from, to) = (from.display().to_string(), to.display().to_string());
    process::output("cp", &["--archive", "--no-target-directory", &from, &to]).await?;
    Ok(())
}
