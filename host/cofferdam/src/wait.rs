//! Waits for a condition of an object with a watch, as `kubectl wait` does.

use std::{fmt::Debug, time::Duration};

use cofferdam_domain::text::DurationText;
use futures::{StreamExt as _, pin_mut};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{ListParams, WatchEvent, WatchParams},
};
use serde::de::DeserializeOwned;

use crate::client::one_line;

/// Delay before a watch that failed or ended is restarted.
const WATCH_RETRY_DELAY: Duration = Duration::from_millis(100);

/// The condition was not met in time.
#[derive(Debug, thiserror::Error)]
#[error("{object} is {actual} after {}: expected it to be {expected}", DurationText(*.timeout))]
pub(crate) struct WaitTimeout {
    object: String,
    actual: String,
    expected: String,
    timeout: Duration,
}

/// A condition of an object.
pub(crate) struct Expectation<'a, K> {
    /// The expected state for error messages, such as `Bound`.
    pub(crate) expected: &'a str,
    /// Evaluates the condition. The argument is `None` if the object does not exist.
    pub(crate) is_met: &'a (dyn Fn(Option<&K>) -> bool + Sync),
    /// Describes the actual state for error messages. The argument is `None` if the object does not exist.
    pub(crate) describe: &'a (dyn Fn(Option<&K>) -> String + Sync),
    /// Time to wait.
    pub(crate) timeout: Duration,
}

/// Waits until the condition is met; returns the object of that moment, or `None` if it does not exist then.
///
/// # Errors
/// [`WaitTimeout`], with the object, its actual and its expected state.
pub(crate) async fn wait_for<K>(
    api: &Api<K>,
    name: &str,
    expectation: &Expectation<'_, K>,
) -> Result<Option<K>, WaitTimeout>
where
    K: Clone + Debug + DeserializeOwned + Resource<DynamicType = ()> + Send + 'static,
{
    let mut last = None;
    match tokio::time::timeout(expectation.timeout, watch_until(api, name, expectation, &mut last)).await {
        Ok(object) => Ok(object),
        Err(_) => Err(WaitTimeout {
            object: format!("{} {name}", K::kind(&())),
            actual: last.unwrap_or_else(|| "unknown, because the API does not respond,".to_owned()),
            expected: expectation.expected.to_owned(),
            timeout: expectation.timeout,
        }),
    }
}

async fn watch_until<K>(
    api: &Api<K>,
    name: &str,
    expectation: &Expectation<'_, K>,
    last: &mut Option<String>,
) -> Option<K>
where
    K: Clone + Debug + DeserializeOwned + Resource<DynamicType = ()> + Send + 'static,
{
    let field = format!("metadata.name={name}");
    loop {
        match list_and_watch(api, &field, expectation, last).await {
            Ok(Some(found)) => return found,
            Ok(None) => {}
            Err(error) => tracing::debug!(error = one_line(&error), "watching again"),
        }
        tokio::time::sleep(WATCH_RETRY_DELAY).await;
    }
}

/// Lists, then watches; returns `None` if the watch ends before the condition is met. The inner option is
/// `None` if the object does not exist.
async fn list_and_watch<K>(
    api: &Api<K>,
    field: &str,
    expectation: &Expectation<'_, K>,
    last: &mut Option<String>,
) -> Result<Option<Option<K>>, kube::Error>
where
    K: Clone + Debug + DeserializeOwned + Resource<DynamicType = ()> + Send + 'static,
{
    let list = api.list(&ListParams::default().fields(field)).await?;
    let version = list.metadata.resource_version.unwrap_or_default();
    let mut current = list.items.into_iter().next();
    let mut check = |object: &Option<K>| {
        *last = Some((expectation.describe)(object.as_ref()));
        (expectation.is_met)(object.as_ref())
    };
    if check(&current) {
        return Ok(Some(current));
    }
    let events = api.watch(&WatchParams::default().fields(field), &version).await?;
    pin_mut!(events);
    while let Some(event) = events.next().await {
        current = match event? {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => Some(object),
            WatchEvent::Deleted(object) => {
                tracing::debug!(name = %object.name_any(), "deleted");
                None
            }
            WatchEvent::Bookmark(_) => continue,
            WatchEvent::Error(_) => return Ok(None),
        };
        if check(&current) {
            return Ok(Some(current));
        }
    }
    Ok(None)
}

#[cfg(test)]
#[path = "wait_tests.rs"]
mod tests;
