//! The check that no scheduler waits for CSIStorageCapacity objects, which this program does not write.

use std::{collections::BTreeSet, time::Duration};

use cofferdam_domain::DriverName;
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::Api;
use tokio::time::sleep;

use crate::error::CommandError;

/// Time between two checks of a running process.
const INTERVAL: Duration = Duration::from_secs(60);

/// Rejects drivers whose CSIDriver has `storageCapacity: true`. For a pod with a WaitForFirstConsumer claim,
/// the scheduler then accepts only nodes with enough capacity in the driver's CSIStorageCapacity objects, and
/// no process would update them. A CSIDriver that cannot be read is logged once, until it can be read.
pub(crate) struct StorageCapacityCheck {
    api: Api<CSIDriver>,
    drivers: Vec<DriverName>,
    /// Drivers whose CSIDriver could not be read at the last check.
    unreadable: BTreeSet<DriverName>,
}

impl StorageCapacityCheck {
    pub(crate) fn new(client: kube::Client, drivers: Vec<DriverName>) -> Self {
        Self { api: Api::all(client), drivers, unreadable: BTreeSet::new() }
    }

    /// Checks the CSIDriver of each driver once.
    ///
    /// # Errors
    /// [`CommandError::StorageCapacity`]
    pub(crate) async fn run(&mut self) -> Result<(), CommandError> {
        for driver in &self.drivers {
            match self.api.get_opt(driver.as_str()).await {
                Ok(Some(object)) if object.spec.storage_capacity == Some(true) => {
                    return Err(CommandError::StorageCapacity(driver.clone()));
                }
                Err(error) if self.unreadable.insert(driver.clone()) => {
                    tracing::warn!(
                        %error,
                        "cannot read CSIDriver {driver}: if its storageCapacity is true, the scheduler uses \
                         CSIStorageCapacity objects that no process updates"
                    );
                }
                Ok(_) => {
                    self.unreadable.remove(driver);
                }
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Checks every minute: a CSIDriver can be created or replaced later. Returns the first error.
    pub(crate) async fn wait_for_failure(mut self) -> CommandError {
        loop {
            sleep(INTERVAL).await;
            if let Err(error) = self.run().await {
                return error;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_apiserver::{ApiServer, Options};
    use kube::api::PostParams;
    use serde_json::json;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_later_csi_driver_is_noticed() {
        const HOUR: Duration = Duration::from_secs(3600);
        let client = kube::Client::new(ApiServer::new(Options::default()).service(), "default");
        let check = || {
            let driver = DriverName::from("existing.example");
            StorageCapacityCheck::new(client.clone(), vec![driver])
        };
        let create = async |storage_capacity: bool| {
            let object = json!({"metadata": {"name": "existing.example"},
                "spec": {"storageCapacity": storage_capacity}});
            let drivers: Api<CSIDriver> = Api::all(client.clone());
            drivers.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
        };
        check().run().await.unwrap();
        assert!(timeout(HOUR, check().wait_for_failure()).await.is_err());
        let waiting = tokio::spawn(check().wait_for_failure());
        create(true).await;
        let error = timeout(2 * INTERVAL, waiting).await.unwrap().unwrap().to_string();
        assert!(error.contains("the storageCapacity of CSIDriver existing.example is true"), "{error}");
    }
}
