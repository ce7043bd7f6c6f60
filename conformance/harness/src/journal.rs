//! The intent journal of Cofferdam's provisioner, as a user of the API sees it.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, api::ListParams};

use crate::namespaces;

/// The number of intents in all journals.
///
/// # Errors
/// If the request fails.
pub(crate) async fn count_intents(client: &Client) -> Result<usize> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespaces::COFFERDAM);
    let maps = maps.list(&ListParams::default().labels("cofferdam.dev/journal=intents")).await?;
    Ok(maps.iter().filter_map(|map| Some(map.data.as_ref()?.len())).sum())
}

/// Checks the number of intents in all journals.
///
/// # Errors
/// If it is another number, or the request fails.
pub(crate) async fn ensure_intents(client: &Client, expected: usize) -> Result<()> {
    let intents = count_intents(client).await?;
    ensure!(intents == expected, "the journal has {intents} intents: expected {expected}");
    Ok(())
}
