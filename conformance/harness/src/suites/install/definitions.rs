//! The chart of the CustomResourceDefinitions of snapshots: `helm uninstall` keeps them, and neither Helm nor
//! kubectl takes over those of another installer.

use anyhow::{Result, ensure};

use super::{
    Cluster,
    helm::{Helm, HelmVersion, source_directory},
};
use crate::{process, snapshot_crds};

const RELEASE: &str = "snapshot-crds";
const CHART: &str = "deploy/helm/cofferdam-snapshot-crds";

/// Leaves definitions that no chart owns.
pub(super) async fn check(cluster: &Cluster<'_>) -> Result<()> {
    let chart = source_directory().join(CHART);
    let templates = chart.join("templates").display().to_string();
    let chart = chart.display().to_string();
    let helm = Helm::new(cluster.run, cluster.plane, HelmVersion::Three)?;
    helm.run(&["install", RELEASE, &chart]).await?;
    helm.run(&["uninstall", RELEASE]).await?;
    let kept = identities(cluster, &templates).await?;
    ensure!(kept.lines().count() == 3, "helm uninstall has left the definitions {kept:?}: expected 3");
    cluster.kubectl.run(&["delete", "--filename", &templates]).await?;

    snapshot_crds::install(cluster.client()).await?;
    let installed = identities(cluster, &templates).await?;
    for version in HelmVersion::ALL {
        let helm = Helm::new(cluster.run, cluster.plane, version)?;
        let refused = helm.run(&["install", RELEASE, &chart]).await;
        ensure_error(version.program(), refused, "invalid ownership metadata")?;
    }
    let rendered = process::run_to_completion(cluster.run.program(), &["render", "crds"]).await?;
    let file = cluster.run.directory().join("crds.yaml");
    std::fs::write(&file, rendered)?;
    let refused = cluster.kubectl.run(&["create", "--filename", &file.display().to_string()]).await;
    ensure_error("kubectl create", refused, "AlreadyExists")?;
    let unchanged = identities(cluster, &templates).await?;
    ensure!(unchanged == installed, "the definitions {installed:?} became {unchanged:?}");
    Ok(())
}

/// Uid, generation and annotations of each definition, one per line.
async fn identities(cluster: &Cluster<'_>, templates: &str) -> Result<String> {
    let fields = "{.metadata.uid} {.metadata.generation} {.metadata.annotations}";
    let output = format!("jsonpath={{range .items[*]}}{fields}{{\"\\n\"}}{{end}}");
    cluster.kubectl.run(&["get", "--filename", templates, "--output", &output]).await
}

fn ensure_error(program: &str, result: Result<String>, expected: &str) -> Result<()> {
    match result {
        Ok(output) => anyhow::bail!("{program} has replaced definitions of another installer: {output}"),
        Err(error) => {
            let text = format!("{error:#}");
            ensure!(text.contains(expected), "{program}: {text}: expected {expected:?}");
            Ok(())
        }
    }
}
