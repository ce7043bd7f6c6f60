//! A cluster for people: the one of the suite `install`, without a release, until the run is interrupted. A
//! script runs kubectl, Helm and ctr in it, so that the installation guide can be followed.

use std::{fs, os::unix::fs::PermissionsExt as _};

use anyhow::Result;

use super::install;
use crate::{control_plane::ApiUser, run::SuiteRun};

pub(super) async fn run(run: &SuiteRun) -> Result<()> {
    let (plane, node) = install::start_cluster(run).await?;
    let script = run.directory().join("enter");
    let kubeconfig = plane.kubeconfig(ApiUser::Admin)?;
    let address = plane.pod_address().map(|address| address.to_string()).unwrap_or_default();
    let text = format!(
        "#!/bin/sh\n\
         # Runs a command, or a shell, in the namespaces of the cluster.\n\
         pid=$(pgrep --full 'suite cluster --scratch {scratch} ' | head -1)\n\
         test -n \"$pid\" || {{ echo 'the cluster has ended' >&2; exit 1; }}\n\
         exec nsenter --target \"$pid\" --all --wd=\"$PWD\" env PATH=\"{}:$PATH\" KUBECONFIG={} \\\n  \
         CONTAINERD_ADDRESS={} CONTAINERD_NAMESPACE=k8s.io \"${{@:-bash}}\"\n",
        run.peers().directory().display(),
        kubeconfig.display(),
        node.socket(),
        scratch = run.scratch().display(),
    );
    fs::write(&script, text)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    run.add_note(&format!(
        "the cluster is ready: {} runs a shell or a command in it; pods reach the API server at {address}; \
         Ctrl-C ends it",
        script.display()
    ))?;
    // The programs of the cluster end with the run.
    std::future::pending().await
}
