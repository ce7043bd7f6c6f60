//! API requests that suites make as users of the cluster, repeated while they fail with 429 or 5xx, or the
//! API server is unreachable.

use std::{fmt::Debug, ops::ControlFlow, time::Duration};

use anyhow::{Context as _, Result};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::wait::repeat;

/// A failing request is repeated for at most this long.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Minimum delay between two attempts.
const INTERVAL: Duration = Duration::from_millis(200);

/// Returns true if a request may succeed when it is repeated: 429, a server error, or no response.
fn is_transient(error: &kube::Error) -> bool {
    if let kube::Error::Api(status) = error {
        return status.code == 429 || status.code >= 500;
    }
    matches!(error, kube::Error::HyperError(_) | kube::Error::Service(_))
}

/// Repeats a request while it fails transiently, for at most 2 minutes. `send` gets the number of the
/// attempt, from 0.
///
/// # Errors
/// The first error that is not transient, or the last one before the timeout.
pub(crate) async fn request<T>(mut send: impl AsyncFnMut(u32) -> kube::Result<T>) -> Result<T> {
    let mut failed = 0;
    let result = repeat(TIMEOUT, INTERVAL, async |attempt| {
        failed = attempt;
        match send(attempt).await {
            Err(error) if is_transient(&error) => ControlFlow::Continue(error.into()),
            result => ControlFlow::Break(result.map_err(Into::into)),
        }
    })
    .await;
    if failed == 0 { result } else { result.with_context(|| format!("after {failed} transient errors")) }
}

/// Creates an object. A repeated request accepts that the object exists: an earlier one, whose response was
/// lost, may have created it.
///
/// # Errors
/// As [`request`].
pub(crate) async fn create<K>(api: &Api<K>, object: &K) -> Result<()>
where
    K: Clone + Serialize + DeserializeOwned + Debug,
{
    request(async |attempt| match api.create(&PostParams::default(), object).await {
        Err(kube::Error::Api(status)) if attempt > 0 && status.is_already_exists() => Ok(()),
        created => created.map(drop),
    })
    .await
}

/// Deletes an object. A repeated request accepts that the object does not exist.
///
/// # Errors
/// As [`request`].
pub(crate) async fn delete<K>(api: &Api<K>, name: &str) -> Result<()>
where
    K: Clone + DeserializeOwned + Debug,
{
    request(async |attempt| match api.delete(name, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if attempt > 0 && status.is_not_found() => Ok(()),
        deleted => deleted.map(drop),
    })
    .await
}

/// Merge-patches an object.
///
/// # Errors
/// As [`request`].
pub(crate) async fn merge_patch<K>(api: &Api<K>, name: &str, patch: &Value) -> Result<()>
where
    K: Clone + DeserializeOwned + Debug,
{
    let patch = Patch::Merge(patch);
    request(async |_| api.patch(name, &PatchParams::default(), &patch).await.map(drop)).await
}

/// Merge-patches the status of an object.
///
/// # Errors
/// As [`request`].
pub(crate) async fn merge_patch_status<K>(api: &Api<K>, name: &str, patch: &Value) -> Result<()>
where
    K: Clone + DeserializeOwned + Debug,
{
    let patch = Patch::Merge(patch);
    request(async |_| api.patch_status(name, &PatchParams::default(), &patch).await.map(drop)).await
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn error(code: u16, reason: &str) -> kube::Error {
        kube::Error::Api(Box::new(Status { code, reason: reason.to_owned(), ..Status::default() }))
    }

    #[tokio::test(start_paused = true)]
    async fn only_transient_errors_are_repeated() {
        for (code, transient) in
            [(429, true), (500, true), (503, true), (404, false), (409, false), (422, false)]
        {
            let mut attempts = 0;
            let result = request(async |attempt| {
                attempts = attempt + 1;
                if attempt < 2 { Err(error(code, "")) } else { Ok(()) }
            })
            .await;
            assert_eq!((result.is_ok(), attempts), (transient, if transient { 3 } else { 1 }), "{code}");
        }
        let result: Result<()> = request(async |_| Err(error(503, "ServiceUnavailable"))).await;
        let text = format!("{:#}", result.unwrap_err());
        assert!(text.starts_with("after 600 transient errors: "), "{text}");
    }
}
