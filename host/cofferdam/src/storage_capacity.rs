//! The check that no scheduler waits for CSIStorageCapacity objects, which this program does not write.

use cofferdam_domain::DriverName;
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::Api;

use crate::error::CommandError;

/// Rejects drivers whose CSIDriver has `storageCapacity: true`. For a pod with a WaitForFirstConsumer claim,
/// the scheduler then accepts only nodes with enough capacity in the driver's CSIStorageCapacity objects, and
/// nobody would keep these up to date. A CSIDriver that cannot be read is logged.
///
/// # Errors
/// [`CommandError::StorageCapacity`]
pub(crate) async fn check(client: &kube::Client, drivers: &[DriverName]) -> Result<(), CommandError> {
    let api = Api::<CSIDriver>::all(client.clone());
    for driver in drivers {
        match api.get_opt(driver.as_str()).await {
            Ok(Some(object)) if object.spec.storage_capacity == Some(true) => {
                return Err(CommandError::StorageCapacity(driver.clone()));
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(
                %error,
                "cannot read CSIDriver {driver}: if its storageCapacity is true, the scheduler uses \
                 CSIStorageCapacity objects that nobody updates"
            ),
        }
    }
    Ok(())
}
