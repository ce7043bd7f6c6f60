//! Service accounts for Cofferdam's roles (values of its flag `--role`), with exactly the rights that
//! `cofferdam render rbac` prints.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, api::PostParams};
use serde_json::json;

use crate::{
    control_plane::{ApiUser, ControlPlane},
    namespaces, process,
    run::SuiteRun,
};

/// Every role of Cofferdam that reconciles objects of a cluster; not RBAC ClusterRoles. Together these roles
/// replace csi-provisioner, csi-attacher and csi-resizer, and the controllers of kube-controller-manager that
/// bind, attach and protect volumes. The roles of a node and `csi-server` do not belong to them.
pub const CLUSTER_ROLES: [&str; 6] =
    ["provisioner", "pv-controller", "protection", "attacher", "attach-detach", "resizer"];

/// Roles of Cofferdam, and a kubeconfig with a token of the service account that they share.
#[derive(Clone, Debug)]
pub struct Account {
    roles: Vec<String>,
    kubeconfig: PathBuf,
}

impl Account {
    /// Creates the namespace [`namespaces::COFFERDAM`] if it does not exist. Applies the output of
    /// `cofferdam render rbac` for these roles, creates a token, and writes a kubeconfig with it.
    ///
    /// # Errors
    /// If `cofferdam`, kubectl or the API fails, or a file cannot be written.
    pub async fn new(run: &SuiteRun, plane: &ControlPlane, roles: &[&str]) -> Result<Self> {
        Self::in_namespace(run, plane, roles, namespaces::COFFERDAM).await
    }

    /// As [`new`](Self::new), with more flags of `cofferdam render rbac`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) async fn with_flags(
        run: &SuiteRun,
        plane: &ControlPlane,
        roles: &[&str],
        flags: &[&str],
    ) -> Result<Self> {
        Self::render(run, plane, &roles.join("-"), roles, namespaces::COFFERDAM, flags).await
    }

    /// As [`with_flags`](Self::with_flags), with a name other than that of the roles.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) async fn with_name(
        run: &SuiteRun,
        plane: &ControlPlane,
        name: &str,
        roles: &[&str],
        flags: &[&str],
    ) -> Result<Self> {
        Self::render(run, plane, name, roles, namespaces::COFFERDAM, flags).await
    }

    /// Creates a service account with all rights, for an upstream program.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) async fn administrator(run: &SuiteRun, plane: &ControlPlane, name: &str) -> Result<Self> {
        let account = Self::without_rights(run, plane, name).await?;
        let subject = format!("--serviceaccount={}:{name}", namespaces::COFFERDAM);
        let role = "--clusterrole=cluster-admin";
        Kubectl::new(run, plane)?.run(&["create", "clusterrolebinding", name, role, &subject]).await?;
        Ok(account)
    }

    /// Creates a service account without rights.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) async fn without_rights(run: &SuiteRun, plane: &ControlPlane, name: &str) -> Result<Self> {
        let namespace = namespaces::COFFERDAM;
        create_namespace(plane, namespace).await?;
        let kubectl = Kubectl::new(run, plane)?;
        kubectl.run(&["create", "serviceaccount", name, "--namespace", namespace]).await?;
        Self::with_token(plane, &kubectl, name, &[], namespace).await
    }

    /// As [`new`](Self::new), with the account in `namespace`, and the account's rights for Cofferdam's own
    /// objects, such as leases, in `namespace`, too. Processes of Cofferdam that use the account need the
    /// same namespace in their flag `--namespace`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub async fn in_namespace(
        run: &SuiteRun,
        plane: &ControlPlane,
        roles: &[&str],
        namespace: &str,
    ) -> Result<Self> {
        Self::render(run, plane, &roles.join("-"), roles, namespace, &[]).await
    }

    /// As [`in_namespace`](Self::in_namespace), with another name and more flags of `cofferdam render rbac`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) async fn render(
        run: &SuiteRun,
        plane: &ControlPlane,
        name: &str,
        roles: &[&str],
        namespace: &str,
        flags: &[&str],
    ) -> Result<Self> {
        create_namespace(plane, namespace).await?;
        let mut render = vec!["render", "rbac", "--namespace", namespace, "--service-account", name];
        render.extend(roles.iter().flat_map(|role| ["--role", role]));
        render.extend(flags);
        let rules = run.directory().join(format!("{name}.yaml"));
        fs::write(&rules, process::run_to_completion(run.program(), &render).await?)?;

        let kubectl = Kubectl::new(run, plane)?;
        kubectl.run(&["apply", "--filename", &rules.display().to_string()]).await?;
        Self::with_token(plane, &kubectl, name, roles, namespace).await
    }

    /// Creates a token and a kubeconfig for an account that exists.
    async fn with_token(
        plane: &ControlPlane,
        kubectl: &Kubectl,
        name: &str,
        roles: &[&str],
        namespace: &str,
    ) -> Result<Self> {
        let token = kubectl.run(&["create", "token", name, "--namespace", namespace]).await?;
        let kubeconfig = plane.kubeconfig_with_token(name, token.trim())?;
        Ok(Self { roles: roles.iter().map(|role| (*role).to_owned()).collect(), kubeconfig })
    }

    /// The same account with another kubeconfig, such as one that connects to a proxy.
    #[must_use]
    pub(crate) fn with_kubeconfig(self, kubeconfig: &Path) -> Self {
        Self { kubeconfig: kubeconfig.to_owned(), ..self }
    }

    /// The roles of the account.
    #[must_use]
    pub fn roles(&self) -> &[String] {
        &self.roles
    }

    /// The kubeconfig of the account.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }
}

/// Creates a namespace if it does not exist.
async fn create_namespace(plane: &ControlPlane, name: &str) -> Result<()> {
    let object: Namespace = serde_json::from_value(json!({ "metadata": { "name": name } }))?;
    match Api::all(plane.client().clone()).create(&PostParams::default(), &object).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        created => Ok(created.map(drop)?),
    }
}

/// kubectl, as administrator.
pub(crate) struct Kubectl {
    program: PathBuf,
    kubeconfig: String,
    cache: String,
}

impl Kubectl {
    pub(crate) fn new(run: &SuiteRun, plane: &ControlPlane) -> Result<Self> {
        Ok(Self {
            program: run.peers().program("kubectl")?,
            kubeconfig: plane.kubeconfig(ApiUser::Admin)?.display().to_string(),
            // The default cache directory is below the user's home directory.
            cache: format!("--cache-dir={}", run.scratch().join("kubectl").display()),
        })
    }

    pub(crate) async fn run(&self, arguments: &[&str]) -> Result<String> {
        let kubeconfig = format!("--kubeconfig={}", self.kubeconfig);
        let arguments = [&[kubeconfig.as_str(), self.cache.as_str()], arguments].concat();
        process::run_to_completion(&self.program, &arguments).await
    }

    /// Runs a plugin: kubectl finds the program `kubectl-NAME` in `directory`.
    pub(crate) async fn run_plugin(&self, directory: &Path, arguments: &[&str]) -> Result<String> {
        // kubectl takes no flags before the name of a plugin.
        let variables = [format!("PATH={}", directory.display()), format!("KUBECONFIG={}", self.kubeconfig)];
        let program = self.program.display().to_string();
        let variables = variables.iter().map(String::as_str);
        let command: Vec<&str> =
            variables.chain([program.as_str()]).chain(arguments.iter().copied()).collect();
        process::run_to_completion("env", &command).await
    }
}
