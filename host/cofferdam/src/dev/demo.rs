//! The demo: what a user does with kubectl, done through the API's socket, with a check after every step.

use std::{fmt, time::Duration};

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, PostParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    timeline::{LineKind, Timeline},
    wait::{self, Overdue, Wish},
};

/// Each step takes milliseconds; on a machine that is busy with a build it may take seconds.
const LIMIT: Duration = Duration::from_secs(30);
const NAMESPACE: &str = "default";
const NAME: &str = "demo";
const SIZE: &str = "1Gi";

/// What did not hold.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DemoError {
    #[error("{what}: {source}")]
    Request { what: &'static str, source: kube::Error },
    #[error("the demo's own {kind} cannot be made: {source}")]
    Manifest { kind: &'static str, source: serde_json::Error },
    #[error(transparent)]
    Overdue(#[from] Overdue),
    #[error("{what} is {found}: expected {expected}")]
    Differs { what: &'static str, found: String, expected: String },
}

/// What the demo works with.
pub(crate) struct Demo<'a> {
    /// A client like a user's.
    pub(crate) client: Client,
    /// The driver that it shows.
    pub(crate) driver: &'a str,
    /// Keys in the driver's state, where it keeps any.
    pub(crate) state: &'a (dyn Fn() -> Option<Vec<String>> + Sync),
    /// Where it tells what it does.
    pub(crate) timeline: &'a Timeline,
}

impl Demo<'_> {
    /// Shows a volume come and go.
    ///
    /// # Errors
    /// [`DemoError`]: the first thing that did not hold.
    pub(crate) async fn run(&self) -> Result<(), DemoError> {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), NAMESPACE);
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let classes: Api<StorageClass> = Api::all(self.client.clone());

        self.say(format!("applies StorageClass {NAME}"));
        create(&classes, "apply StorageClass", "StorageClass", class(self.driver)).await?;
        self.say(format!("applies PersistentVolumeClaim {NAME}, {SIZE}"));
        create(&claims, "apply PersistentVolumeClaim", "PersistentVolumeClaim", claim()).await?;

        let (volume, handle) = self.bound(&claims, &volumes).await?;
        let kept = self.kept(&handle);
        if let Some(kept) = &kept {
            ensure("what the driver keeps of the volume", &list(kept), "something", !kept.is_empty())?;
        }

        self.say("deletes the claim".to_owned());
        let request = claims.delete(NAME, &DeleteParams::default()).await;
        request.map_err(|source| DemoError::Request { what: "delete PersistentVolumeClaim", source })?;
        gone(&claims, NAME).await?;
        gone(&volumes, &volume).await?;
        if let Some(left) = self.kept(&handle) {
            ensure("what the driver keeps of the volume", &list(&left), "nothing", left.is_empty())?;
            let rest = list(&(self.state)().unwrap_or_default());
            self.say(format!("finds nothing of the volume in the driver's state; left is {rest}"));
        }
        self.say(format!("deletes StorageClass {NAME}"));
        let request = classes.delete(NAME, &DeleteParams::default()).await;
        request.map_err(|source| DemoError::Request { what: "delete StorageClass", source })?;
        Ok(())
    }

    /// Keys of the driver's state that name the volume, where it keeps a state.
    fn kept(&self, handle: &str) -> Option<Vec<String>> {
        (self.state)().map(|keys| keys.into_iter().filter(|key| key.contains(handle)).collect())
    }

    /// Waits for the claim and checks what it is bound to; the volume's name and handle.
    async fn bound(
        &self,
        claims: &Api<PersistentVolumeClaim>,
        volumes: &Api<PersistentVolume>,
    ) -> Result<(String, String), DemoError> {
        let is_bound = |claim: Option<&PersistentVolumeClaim>| claim.and_then(claim_phase) == Some("Bound");
        let state = |claim: Option<&PersistentVolumeClaim>| match claim {
            Some(claim) => claim_phase(claim).unwrap_or("without a phase").to_owned(),
            None => "absent".to_owned(),
        };
        let wish = Wish { expected: "Bound", holds: &is_bound, state: &state, limit: LIMIT };
        let claim = wait::until(claims, NAME, &wish).await?.unwrap_or_default();
        let volume_name = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default();
        let volume = volumes
            .get(&volume_name)
            .await
            .map_err(|source| DemoError::Request { what: "get the claim's PersistentVolume", source })?;

        let spec = volume.spec.clone().unwrap_or_default();
        let csi = spec.csi.unwrap_or_default();
        ensure_equal("the volume's driver", &csi.driver, self.driver)?;
        let owner = spec.claim_ref.and_then(|reference| reference.uid).unwrap_or_default();
        ensure_equal("the uid in the volume's claimRef", &owner, &claim.uid().unwrap_or_default())?;
        let status = claim.status.unwrap_or_default();
        let size =
            status.capacity.and_then(|capacity| capacity.get("storage").cloned()).unwrap_or_default().0;
        ensure_equal("the claim's capacity", &size, SIZE)?;
        self.say(format!("sees {NAME} Bound to {volume_name}, {size}"));
        Ok((volume_name, csi.volume_handle))
    }

    fn say(&self, what: String) {
        self.timeline.line("demo", LineKind::User, format!("{NAMESPACE}/{NAME}"), what, None);
    }
}

fn list(keys: &[String]) -> String {
    if keys.is_empty() { "nothing".to_owned() } else { keys.join(", ") }
}

fn claim_phase(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.status.as_ref()?.phase.as_deref()
}

async fn create<K>(
    api: &Api<K>,
    what: &'static str,
    kind: &'static str,
    manifest: Value,
) -> Result<(), DemoError>
where
    K: Clone + fmt::Debug + DeserializeOwned + serde::Serialize,
{
    let object: K =
        serde_json::from_value(manifest).map_err(|source| DemoError::Manifest { kind, source })?;
    api.create(&PostParams::default(), &object)
        .await
        .map_err(|source| DemoError::Request { what, source })?;
    Ok(())
}

async fn gone<K>(api: &Api<K>, name: &str) -> Result<(), DemoError>
where
    K: Clone + fmt::Debug + DeserializeOwned + kube::Resource<DynamicType = ()> + Send + 'static,
{
    let is_gone = |object: Option<&K>| object.is_none();
    let state = |object: Option<&K>| match object {
        Some(object) if object.meta().deletion_timestamp.is_some() => {
            format!("being deleted, with finalizers {}", object.finalizers().join(", "))
        }
        Some(_) => "there".to_owned(),
        None => "gone".to_owned(),
    };
    wait::until(api, name, &Wish { expected: "gone", holds: &is_gone, state: &state, limit: LIMIT }).await?;
    Ok(())
}

fn ensure(what: &'static str, found: &str, expected: &str, holds: bool) -> Result<(), DemoError> {
    if holds {
        Ok(())
    } else {
        Err(DemoError::Differs { what, found: found.to_owned(), expected: expected.to_owned() })
    }
}

fn ensure_equal(what: &'static str, found: &str, expected: &str) -> Result<(), DemoError> {
    ensure(what, &format!("{found:?}"), &format!("{expected:?}"), found == expected)
}

fn class(driver: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": NAME},
        "provisioner": driver,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "Immediate",
    })
}

fn claim() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {
            "storageClassName": NAME,
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": SIZE}},
        },
    })
}
