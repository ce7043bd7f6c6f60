//! The Secret that a StorageClass names and that the Go driver requires. Its value is a planted one.

use std::path::Path;

use anyhow::Result;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::{planted_secret::PlantedSecret, process::ManagedProcess, retry};

/// Name of the Secret.
pub(crate) const NAME: &str = "array";
/// Its key that the driver requires.
const KEY: &str = "token";

/// Methods of the controller service for which a suite's driver requires the Secret.
pub(crate) const CONTROLLER_METHODS: [&str; 5] = [
    "CreateVolume",
    "DeleteVolume",
    "ControllerPublishVolume",
    "ControllerUnpublishVolume",
    "ControllerExpandVolume",
];
/// Methods of the node service for which a suite's driver requires the Secret.
pub(crate) const NODE_METHODS: [&str; 3] = ["NodeStageVolume", "NodePublishVolume", "NodeExpandVolume"];

/// A Secret in the namespace of the claims.
#[derive(Clone)]
pub(crate) struct ClassSecret {
    namespace: String,
    planted: PlantedSecret,
}

impl ClassSecret {
    /// A Secret with a random value, which [`write`](Self::write) creates.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub(crate) fn random(namespace: &str) -> Result<Self> {
        Ok(Self { namespace: namespace.to_owned(), planted: PlantedSecret::random()? })
    }

    /// Arguments of the Go driver: calls of these methods without the Secret fail.
    pub(crate) fn driver_flags(&self, methods: &[&str]) -> Vec<String> {
        let value = self.planted.value();
        methods.iter().map(|method| format!("--require-secret={method}={KEY}={value}")).collect()
    }

    /// Parameters of the class: the pair of keys for all methods.
    pub(crate) fn class_parameters() -> Value {
        json!({
            "csi.storage.k8s.io/secret-name": NAME,
            "csi.storage.k8s.io/secret-namespace": "${pvc.namespace}",
        })
    }

    /// Writes the Secret with the value that the driver requires.
    ///
    /// # Errors
    /// If the API server rejects it.
    pub(crate) async fn write(&self, client: &Client) -> Result<()> {
        self.write_value(client, self.planted.value()).await
    }

    /// Writes the Secret with another value.
    ///
    /// # Errors
    /// If the API server rejects it.
    pub(crate) async fn write_value(&self, client: &Client, value: &str) -> Result<()> {
        let secrets: Api<Secret> = Api::namespaced(client.clone(), &self.namespace);
        if secrets.get_opt(NAME).await?.is_some() {
            return retry::merge_patch(&secrets, NAME, &json!({ "stringData": { KEY: value } })).await;
        }
        let object = json!({ "metadata": { "name": NAME }, "stringData": { KEY: value, "unused": "" } });
        retry::create(&secrets, &serde_json::from_value(object)?).await
    }

    /// Searches for the value, see [`PlantedSecret::search`].
    ///
    /// # Errors
    /// As there.
    pub(crate) async fn search(
        &self,
        client: &Client,
        directory: &Path,
        processes: impl IntoIterator<Item = &ManagedProcess>,
    ) -> Result<String> {
        self.planted.search(client, directory, processes, &self.namespace, NAME).await
    }

    /// Searches for the value in files, see [`PlantedSecret::ensure_not_in_files`].
    ///
    /// # Errors
    /// As there.
    pub(crate) fn ensure_not_in_files(&self, directory: &Path) -> Result<()> {
        self.planted.ensure_not_in_files(directory)
    }
}
