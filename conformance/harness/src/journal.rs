//! The intent journal of Cofferdam's provisioner, as a user of the API sees it.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, api::ListParams};

use crate::namespaces;

/// The JSON of the intents in all journals, by the uid of the claim.
///
/// # Errors
/// If the request fails.
pub(crate) async fn intents(client: &Client) -> Result<BTreeMap<String, String>> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespaces::COFFERDAM);
    let maps = maps.list(&ListParams::default().labels("cofferdam.dev/journal=intents")).await?;
    Ok(maps.into_iter().filter_map(|map| map.data).flatten().collect())
}

/// The number of intents in all journals.
///
/// # Errors
/// If the request fails.
pub(crate) async fn count_intents(client: &Client) -> Result<usize> {
    Ok(intents(client).await?.len())
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
